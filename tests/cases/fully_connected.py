"""FullyConnected."""

from .case import Case

CASES = [
    Case("FullyConnected", {"data": (3, 4), "weight": (5, 4), "bias": (5,)}, {"num_hidden": 5}),
    Case("FullyConnected", {"data": (2, 3, 4), "weight": (5, 12)}, {"num_hidden": 5, "no_bias": True}),
    Case("FullyConnected", {"data": (2, 3, 4), "weight": (5, 4), "bias": (5,)}, {"num_hidden": 5, "flatten": False}),
]
