"""Dropout and Flatten."""

from .case import Case

CASES = [
    Case("Dropout", {"data": (3, 4, 5)}, {"p": 0.3}, random=True, oracle=False, why="MXNet's draws differ"),
    Case("Dropout", {"data": (3, 4, 5)}, {"axes": (1,)}, random=True, oracle=False, why="MXNet's draws differ"),
    Case("Dropout", {"data": (3, 4, 5)}, {"p": 0.0}),
    Case("Dropout", {"data": (3, 4, 5)}, {"p": 0.5}, is_train=False, grad=False),
    Case("Flatten", {"data": (3, 4, 5)}),
    Case("Flatten", {"data": (3, 4)}),
]
