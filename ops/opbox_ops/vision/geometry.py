"""Boxes as arrays of planes: conversion of their formats, and how much two of them overlap.

A box is (left, top, right, bottom) in the format "corner", (x, y, width, height) in "center".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..compute import Array

__all__ = ["BoxFormat", "areas", "overlap", "planes", "to_center", "to_corner"]

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
    width = xp.minimum(a[2], b[2])
    width -= xp.maximum(a[0], b[0])
    height = xp.minimum(a[3], b[3])
    height -= xp.maximum(a[1], b[1])
    if margin:
        width += margin
        height += margin
    xp.maximum(width, 0, out=width)
    xp.maximum(height, 0, out=height)
    width *= height
    union = a[4] + b[4]
    union -= width
    width /= xp.where(width > 0, union, 1)
    return width
