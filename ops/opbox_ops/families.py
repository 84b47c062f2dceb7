"""Families of operators, for lists that people read: a folder of this package each, and what it is called there."""

from __future__ import annotations

from . import registry

__all__ = ["FAMILIES", "family"]

FAMILIES = {
    "nn": "Layers",
    "loss": "Losses and output layers",
    "elementwise": "Element by element",
    "broadcast": "Broadcasting",
    "reduce": "Reductions",
    "shape": "Shapes and parts",
    "index": "Indices and order",
    "linalg": "Matrices",
    "init": "Constants and sequences",
    "random": "Random numbers",
    "update": "Optimizer steps",
    "vision": "Object detection",
    "image": "Images",
    "rnn": "Recurrent layers",
    "sequence": "Sequences",
    "control_flow": "Loops and branches",
}
"""Titles by folder, in the order in which they are listed."""


def family(op: registry.Op) -> str:
    """The folder that an operator is declared in."""
    return registry.module(op.name).split(".")[1]
