"""Weights of OpenCV's interpolations along one axis: which pixels each output reads, and how much of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

__all__ = ["AREA", "CUBIC", "LINEAR", "NEAREST", "AxisWeights", "weights_of"]

NEAREST, LINEAR, CUBIC, AREA, LANCZOS = range(5)
"""OpenCV's numbers. -AREA stands for the linear weights that it takes for AREA where an axis grows."""
SHARPNESS = -0.75
"""The parameter a of the cubic kernel."""

Array = Any


@dataclass(frozen=True)
class AxisWeights:
    """For each tap: the pixel that every output reads, and its weight in float32."""

    at: list[Array]
    weight: list[Array]


@lru_cache(maxsize=256)
def weights_of(kind: int, size: int, new: int, *, across: bool = False) -> AxisWeights:
    """Weights that bring an axis of `size` pixels to `new` ones.

    `across` is the horizontal axis: linear weights outside of it are 0 and 1 there. Down the image OpenCV shares them
    between two taps that read one row, which whole numbers round otherwise.
    """
    scale = size / new
    out = np.arange(new)
    if kind == NEAREST:
        return AxisWeights([np.minimum(np.floor(out * scale).astype(np.int64), size - 1)], [np.ones(new, np.float32)])
    if kind == AREA:
        return _area(size, new, scale)
    if kind == -AREA:
        first = np.floor(out * scale).astype(np.int64)
        part = (out + 1) - (first + 1) / scale
        part = np.where(part <= 0, 0, part - np.floor(part)).astype(np.float32)
    else:
        position = ((out + 0.5) * scale - 0.5).astype(np.float32)
        first = np.floor(position).astype(np.int64)
        part = position - first.astype(np.float32)
    if kind in (LINEAR, -AREA):
        if across:
            outside = (first < 0) | (first >= size - 1)
            part = np.where(outside, np.float32(0), part)
        start, weights = 0, [1 - part, part]
    elif kind == CUBIC:
        start, weights = -1, _cubic(part)
    else:
        start, weights = -3, _lanczos(part)
    return AxisWeights([np.clip(first + start + tap, 0, size - 1) for tap in range(len(weights))], weights)


def _cubic(x: Array) -> list[Array]:
    a = np.float32(SHARPNESS)
    near, far = x + 1, 1 - x
    first = ((a * near - 5 * a) * near + 8 * a) * near - 4 * a
    second = ((a + 2) * x - (a + 3)) * x * x + 1
    third = ((a + 2) * far - (a + 3)) * far * far + 1
    return [first, second, third, 1 - first - second - third]


def _lanczos(x: Array) -> list[Array]:
    """sin(y) sin(y / 4) / y^2 at the eight distances, scaled to add up to 1."""
    angles = [-(x.astype(np.float64) + 3 - i) * math.pi / 4 for i in range(8)]
    on_pixel = x < np.finfo(np.float32).eps
    values = [np.sin(4 * y) * np.sin(y) / np.where(y == 0, 1, 4 * y * y) for y in angles]
    total = sum(values)
    return [
        np.where(on_pixel, 1.0 if i == 3 else 0.0, value / np.where(total == 0, 1, total)).astype(np.float32)
        for i, value in enumerate(values)
    ]


def _area(size: int, new: int, scale: float) -> AxisWeights:
    """The part of each pixel that lies in the interval of an output."""
    begin = np.arange(new) * scale
    end = np.minimum(begin + scale, size)
    width = np.minimum(scale, size - begin)
    first = np.floor(begin + 1e-3).astype(np.int64)
    at, weight = [], []
    for tap in range(math.ceil(scale) + 1):
        pixel = first + tap
        part = np.minimum(end, pixel + 1) - np.maximum(begin, pixel)
        part = np.where(part > 1e-3, part, 0)
        at.append(np.minimum(pixel, size - 1))
        weight.append((part / width).astype(np.float32))
    return AxisWeights(at, weight)
