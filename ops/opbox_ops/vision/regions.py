"""Regions of interest: which image each is on, and pooling as one sparse matrix.

What pools a region by interpolation is linear in data: every output is a weighted sum of a few pixels, with the same
weights for many channels. The weights are one sparse matrix, a row for each output and a column for each pixel; the
output is its product with data, the channels last, and data's gradient the product of its transpose with gout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from opbox_protocol.errors import ShapeError

from ..compute import Array
from ..infer import ShapeList

__all__ = ["FEW", "FewSamples", "Samples", "bilinear", "images_of", "infer_regions", "near"]

FEW = 2**14
"""Elements up to which the matrix is a dense one: making a sparse one takes SciPy longer than such a product."""


def infer_regions(ins: ShapeList, outs: ShapeList, channels: int, pooled: tuple[int, int], width: int) -> None:
    """data (batch, channel, height, width), rois (n, `width`), out (n, `channels`, *pooled)."""
    ins.rank(0, 4)
    rois = ins.merge(1, (-1, width))
    assert rois is not None
    out = outs.merge(0, (rois[0], channels, *pooled))
    assert out is not None
    ins.merge(1, (out[0], width))


def images_of(xp: Any, rois: Array, batch: int) -> tuple[Array, Array]:
    """The image of each region, and which regions are on none (their number is out of range)."""
    image = rois[:, 0].astype(xp.int64)
    nowhere = (image < 0) | (image >= batch)
    return xp.where(nowhere, 0, image), nowhere


class Samples:
    """Weighted pixels, as rows of a matrix.

    Args:
        xp: numpy or cupy.
        shape: rows, columns.
        rows, columns, weights: the entries of the matrix, one-dimensional; what recurs is added up.
    """

    def __init__(self, xp: Any, shape: tuple[int, int], rows: Array, columns: Array, weights: Array) -> None:
        self.xp, self.shape = xp, shape
        self.rows, self.columns, self.weights = rows, columns, weights

    def gather(self, pixels: Array) -> Array:
        """The weighted sums: (columns, channels) to (rows, channels)."""
        if self.xp is np:
            return self._matrix(pixels.dtype) @ pixels
        return self._scatter(pixels, self.columns, self.rows, self.shape[0])

    def spread(self, gout: Array) -> Array:
        """The gradient of `gather`: (rows, channels) to (columns, channels)."""
        if self.xp is np:
            return self._matrix(gout.dtype).T @ gout
        return self._scatter(gout, self.rows, self.columns, self.shape[1])

    def _matrix(self, dtype: Any) -> Any:
        rows, columns = self.shape
        if rows * columns > FEW:
            return scipy.sparse.coo_array((self.weights, (self.rows, self.columns)), self.shape).tocsr()
        places = self.rows * columns + self.columns
        return np.bincount(places, self.weights, rows * columns).astype(dtype, copy=False).reshape(self.shape)

    def _scatter(self, source: Array, taken: Array, target: Array, size: int) -> Array:
        total = self.xp.zeros((size, source.shape[1]), source.dtype)
        self.xp.add.at(total, target, source[taken] * self.weights[:, None])
        return total


class FewSamples:
    """What `Samples` does, where each region has a small dense matrix: a row for each bin, a column for each pixel.

    Args:
        xp: numpy or cupy.
        image: the number of each region's image (n,).
        matrix: the regions' weights (n, bins, pixels of an image).
        batch: how many images there are.
    """

    def __init__(self, xp: Any, image: Array, matrix: Array, batch: int) -> None:
        self.xp, self.image, self.matrix, self.batch = xp, image, matrix, batch

    def gather(self, pixels: Array) -> Array:
        """The weighted sums: (batch * pixels, channels) to (n * bins, channels)."""
        sums = self.matrix @ pixels.reshape(self.batch, -1, pixels.shape[1])[self.image]
        return sums.reshape(-1, pixels.shape[1])

    def spread(self, gout: Array) -> Array:
        """The gradient of `gather`: (n * bins, channels) to (batch * pixels, channels)."""
        regions, bins, pixels = self.matrix.shape
        total = self.xp.zeros((self.batch, pixels, gout.shape[1]), gout.dtype)
        self.xp.add.at(total, self.image, self.matrix.swapaxes(1, 2) @ gout.reshape(regions, bins, -1))
        return total.reshape(-1, gout.shape[1])


def near(xp: Any, at: Array, last: Array | int, size: int) -> Array:
    """The bilinear weights of `size` pixels along an axis (…, size), for positions clamped to 0 and `last`."""
    distance = xp.clip(at, 0, last)[..., None] - xp.arange(size, dtype=at.dtype)
    xp.abs(distance, out=distance)
    xp.subtract(1, distance, out=distance)
    weights: Array = xp.maximum(distance, 0, out=distance)
    return weights


def bilinear(xp: Any, y: Array, x: Array, height: int, width: int) -> list[tuple[Array, Array, Array, Array]]:
    """The four pixels around positions, clamped to the image.

    Returns:
        For each of the four: its number row * width + column, its weight, and the weight's derivatives by y and x.
    """
    y, x = xp.clip(y, 0, height - 1), xp.clip(x, 0, width - 1)
    top, left = xp.floor(y), xp.floor(x)
    down, right = y - top, x - left
    row, column = top.astype(xp.int64), left.astype(xp.int64)
    # On a pixel, and at the edge that a position was clamped to, both neighbours are one, and the derivative is 0.
    below, beside = row + (down > 0), column + (right > 0)
    up, before = 1 - down, 1 - right
    return [
        (row * width + column, up * before, -before, -up),
        (row * width + beside, up * right, -right, up),
        (below * width + column, down * before, before, -down),
        (below * width + beside, down * right, right, down),
    ]


def check_size(size: Sequence[int]) -> tuple[int, int]:
    """The pooled height and width."""
    if len(size) != 2 or min(size) < 1:
        raise ShapeError(f"pooled_size: expected two positive numbers (height, width), got {tuple(size)}")
    return size[0], size[1]
