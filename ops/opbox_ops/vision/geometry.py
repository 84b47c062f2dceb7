"""Boxes as arrays of planes: conversion of their formats, and how much two of them overlap.

A box is (left, top, right, bottom) in the format "corner", (x, y, width, height) in "center".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..compute import Array

__all__ = [
    "BoxFormat",
    "areas",
    "overlap",
    "planes",
    "to_center",
    "to_corner",
    "write_center",
    "write_corners",
    "write_overlap",
]

BoxFormat = Literal["center", "corner"]


def planes(boxes: Array) -> list[Array]:
    """The four coordinates of (…, 4), contiguous."""
    return [boxes[..., i].copy() for i in range(4)]


def to_corner(box: Sequence[Array]) -> list[Array]:
    """Planes x, y, width, height as left, top, right, bottom."""
    x, y, width, height = box
    half_width, half_height = width / 2, height / 2
    return [x - half_width, y - half_height, x + half_width, y + half_height]


def to_center(box: Sequence[Array]) -> list[Array]:
    """Planes left, top, right, bottom as x, y, width, height."""
    left, top, right, bottom = box
    return [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]


def areas(xp: Any, box: Sequence[Array], margin: int = 0) -> Array:
    """Area of corner boxes, 0 for those that are inside out; `margin` 1 counts pixels from edge to edge."""
    left, top, right, bottom = box
    return xp.maximum(right - left + margin, 0) * xp.maximum(bottom - top + margin, 0)


def overlap(xp: Any, a: Sequence[Array], b: Sequence[Array], margin: int = 0) -> Array:
    """Intersection over union of corner boxes with their areas (five planes each, broadcast together).

    Boxes that do not meet overlap by 0, whatever their areas.
    """
    shape = np.broadcast_shapes(a[0].shape, b[0].shape)
    out, height, union = (xp.empty(shape, a[0].dtype) for _ in range(3))
    write_overlap(xp, a, b, out, height, union, xp.empty(shape, bool), margin)
    return out


def write_overlap(
    xp: Any,
    a: Sequence[Array],
    b: Sequence[Array],
    out: Array,
    height: Array,
    union: Array,
    apart: Array,
    margin: int = 0,
) -> None:
    """`overlap` into `out`; height, union and apart (bool) are scratch of its shape."""
    xp.minimum(a[2], b[2], out=out)
    out -= xp.maximum(a[0], b[0], out=union)
    xp.minimum(a[3], b[3], out=height)
    height -= xp.maximum(a[1], b[1], out=union)
    if margin:
        out += margin
        height += margin
    xp.maximum(out, 0, out=out)
    xp.maximum(height, 0, out=height)
    out *= height
    xp.add(a[4], b[4], out=union)
    union -= out
    xp.less_equal(out, 0, out=apart)
    xp.copyto(union, 1, where=apart)
    out /= union


def write_corners(xp: Any, boxes: Array, box_format: str, out: Array) -> None:
    """Write the planes left, top, right, bottom and area of boxes (n, 4) to the first five of `out` (6, n)."""
    left, top, right, bottom, area, spare = out
    if box_format == "corner":
        out[:4] = boxes.T
    else:
        for axis in (0, 1):
            xp.divide(boxes[:, axis + 2], 2, out=spare)
            xp.subtract(boxes[:, axis], spare, out=out[axis])
            xp.add(boxes[:, axis], spare, out=out[axis + 2])
    for first, last, extent in ((left, right, area), (top, bottom, spare)):
        xp.subtract(last, first, out=extent)
        xp.maximum(extent, 0, out=extent)
    area *= spare


def write_center(xp: Any, first: Array, last: Array, middle: Array, extent: Array) -> None:
    """Write middle and extent of boxes along an axis, from where they begin and end."""
    xp.add(first, last, out=middle)
    middle /= 2
    xp.subtract(last, first, out=extent)
