"""Shapes, known and unknown: here and on the wire -1 is an unknown dimension, None an unknown rank, 0 an empty axis.

MXNet's Python face and its files write 0 for an unknown dimension and () for an unknown rank; `from_mxnet` and
`to_mxnet` translate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from .mxnet import INTEGER, tuple_parts

__all__ = ["Shape", "from_mxnet", "known", "shape_from_text", "show_shape", "size_of", "to_mxnet", "unify"]

Shape: TypeAlias = "tuple[int, ...] | None"


def known(shape: Shape) -> bool:
    """Return whether the rank and every dimension are known."""
    return shape is not None and all(d >= 0 for d in shape)


def size_of(shape: Iterable[int]) -> int:
    """Number of elements, as an exact Python integer."""
    return math.prod(shape)


def show_shape(shape: Shape) -> str:
    """A shape for messages: `(2, ?, 3)`, or `unknown`."""
    if shape is None:
        return "unknown"
    inner = ", ".join("?" if d < 0 else str(d) for d in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def unify(a: Shape, b: Shape) -> Shape:
    """The shape that agrees with both, as known as the two together; ValueError when they contradict each other."""
    if a is None or b is None:
        return b if a is None else a
    if len(a) != len(b):
        raise ValueError("rank")
    merged = []
    for x, y in zip(a, b, strict=True):
        if x >= 0 and y >= 0 and x != y:
            raise ValueError("dimension")
        merged.append(x if x >= 0 else y)
    return tuple(merged)


def from_mxnet(shape: Sequence[int]) -> Shape:
    """A shape in MXNet's terms in ours.

    Example:
        >>> from_mxnet((2, 0)), from_mxnet(())
        ((2, -1), None)
    """
    return tuple(d if d > 0 else -1 for d in shape) or None


def to_mxnet(shape: Sequence[int] | None) -> tuple[int, ...]:
    """A shape in our terms in MXNet's.

    Example:
        >>> to_mxnet((2, -1)), to_mxnet(None)
        ((2, 0), ())
    """
    return () if shape is None else tuple(max(d, 0) for d in shape)


def shape_from_text(text: str) -> tuple[int, ...]:
    """The integers of an attribute such as `__shape__`: "(2, 0)", "[2, 0]", "2".

    Raises:
        ValueError: it holds something else.
    """
    parts = tuple_parts(text)
    if not all(map(INTEGER.fullmatch, parts)):
        raise ValueError(f"expected a tuple of integers, got {text!r}")
    return tuple(int(part.rstrip("lL")) for part in parts)
