"""Bilinear sampling: images read between their elements, and the gradients of that.

An image's value at (y, x) is that of its four neighbours, weighted by their nearness; what lies outside of the image
counts as 0, unless its edges are extended over the last half-open element (`clamp`).
Images are (m, channel, height * width), positions (m, n), samples (m, channel, n).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from ..compute import Array

__all__ = ["Corners", "added", "corners"]


@dataclass(frozen=True, slots=True)
class Corners:
    """The four neighbours of positions, one after the other, each (m, n).

    Attributes:
        xp: numpy or cupy.
        places: where the neighbours are in an image's height * width.
        weights: their weights; 0 where they do not count.
        down, right: the derivatives of the weights by y and x.
    """

    xp: Any
    places: list[Array]
    weights: list[Array]
    down: list[Array]
    right: list[Array]

    def sample(self, images: Array) -> Array:
        """The samples (m, channel, n)."""
        parts = zip(self._values(images), self.weights, strict=True)
        first, weight = next(parts)
        total = first * weight[:, None]
        for values, weight in parts:
            total += values * weight[:, None]
        return total

    def _values(self, images: Array) -> Any:
        for place in self.places:
            yield self.xp.take_along_axis(images, place[:, None], axis=2)

    def slopes(self, images: Array, gsamples: Array) -> tuple[Array, Array]:
        """The gradients of y and x (m, n), from those of the samples."""
        gy, gx = 0, 0
        for values, down, right in zip(self._values(images), self.down, self.right, strict=True):
            along = (values * gsamples).sum(axis=1)
            gy, gx = gy + along * down, gx + along * right
        return gy, gx

    def spread(self, gsamples: Array, size: int) -> Array:
        """The gradient of the images (m, channel, size), from those of the samples."""
        m, channels = gsamples.shape[:2]
        rows = self.xp.arange(m * channels).reshape(m, channels, 1) * size
        total = self.xp.zeros((m, channels, size), gsamples.dtype)
        for place, weight in zip(self.places, self.weights, strict=True):
            total += added(self.xp, rows + place[:, None], gsamples * weight[:, None], total.shape)
        return total


def added(xp: Any, places: Array, values: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of `shape` with each of the values added at its place (in the flat array)."""
    total = xp.bincount(places.reshape(-1), values.reshape(-1), minlength=math.prod(shape))
    return total.reshape(shape).astype(values.dtype, copy=False)


def corners(xp: Any, y: Array, x: Array, height: int, width: int, *, clamp: bool = False) -> Corners:
    """The neighbours of the positions (y, x), in elements, of images of `height` and `width`."""
    dtype, far = y.dtype, float(max(height, width) + 2)
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    # Positions far outside would not fit an integer.
    y, x = xp.clip(y, -far, far), xp.clip(x, -far, far)
    top, left = xp.floor(y), xp.floor(x)
    near = ((1 - (y - top), y - top), (1 - (x - left), x - left))
    top, left = top.astype(int), left.astype(int)
    places, weights, down, right = [], [], [], []
    for dy, dx in itertools.product((0, 1), repeat=2):
        row, column = xp.clip(top + dy, 0, height - 1), xp.clip(left + dx, 0, width - 1)
        counts = inside if clamp else (row == top + dy) & (column == left + dx)
        places.append(row * width + column)
        weights.append((near[0][dy] * near[1][dx] * counts).astype(dtype, copy=False))
        down.append((near[1][dx] * counts * (1 if dy else -1)).astype(dtype, copy=False))
        right.append((near[0][dy] * counts * (1 if dx else -1)).astype(dtype, copy=False))
    return Corners(xp, places, weights, down, right)
