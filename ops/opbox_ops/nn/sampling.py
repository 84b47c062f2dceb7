"""Bilinear sampling: images read between their elements, and the gradients of that.

An image's value at (y, x) is that of its four neighbours, weighted by their nearness; what lies outside of the image
counts as 0, unless its edges are extended over the last half-open element (`clamp`). All images' samples are one
product with a sparse matrix, a row of four weights for each position, and the images' gradient is one with its
transpose. Images are (m, channel, height * width), positions (m, n), samples (m, channel, n).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

from ..compute import Array, OpContext

__all__ = ["Corners", "added", "corners"]


@dataclass(frozen=True, slots=True)
class Corners:
    """The four neighbours of m * n positions: each attribute but `size` and `sparse` is (m * n * 4,).

    Attributes:
        sparse: scipy.sparse or its twin on the GPU.
        size: (m, n, height * width).
        places: where the neighbours are, among the elements of all images.
        weights: their weights; 0 where they do not count.
        down, right: the derivatives of the weights by y and x.
    """

    sparse: Any
    size: tuple[int, int, int]
    places: Array
    weights: Array
    down: Array
    right: Array

    def _matrix(self, values: Array, rows: Array) -> Any:
        """A row for each position, with `values` at its neighbours."""
        m, n, elements = self.size
        return self.sparse.csr_matrix((values, self.places, rows), shape=(m * n, m * elements))

    def _rows(self, xp: Any) -> Array:
        return xp.arange(0, 4 * self.size[0] * self.size[1] + 1, 4, dtype=self.places.dtype)

    def sample(self, xp: Any, images: Array) -> Array:
        """The samples (m, channel, n)."""
        samples = self._matrix(self.weights, self._rows(xp)) @ _columns(xp, images)
        return xp.ascontiguousarray(samples.reshape(*self.size[:2], -1).swapaxes(1, 2))

    def slopes(self, xp: Any, images: Array, gsamples: Array) -> tuple[Array, Array]:
        """The gradients of y and x (m, n), from those of the samples."""
        columns, gcolumns, rows = _columns(xp, images), _columns(xp, gsamples), self._rows(xp)
        gy, gx = (((self._matrix(v, rows) @ columns) * gcolumns).sum(axis=1) for v in (self.down, self.right))
        return gy.reshape(self.size[:2]), gx.reshape(self.size[:2])

    def spread(self, xp: Any, gsamples: Array) -> Array:
        """The gradient of the images, from those of the samples."""
        m, _, elements = self.size
        total = self._matrix(self.weights, self._rows(xp)).T @ _columns(xp, gsamples)
        return total.reshape(m, elements, -1).swapaxes(1, 2)


def _columns(xp: Any, array: Array) -> Array:
    """(m, channel, k) as (m * k, channel): an element's channels are one run of memory."""
    m, channels, k = array.shape
    return xp.ascontiguousarray(array.swapaxes(1, 2)).reshape(m * k, channels)


def added(xp: Any, places: Array, values: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of `shape` with each of the values added at its place (in the flat array)."""
    total = xp.bincount(places.reshape(-1), values.reshape(-1), minlength=math.prod(shape))
    return total.reshape(shape).astype(values.dtype, copy=False)


def corners(ctx: OpContext, y: Array, x: Array, height: int, width: int, *, clamp: bool = False) -> Corners:
    """The neighbours of the positions (y, x), in elements, of images of `height` and `width`."""
    xp, (m, n) = ctx.xp, y.shape
    elements, dtype = height * width, y.dtype
    index = "i4" if 4 * m * max(n, elements) < 1 << 31 else "i8"
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    # Positions far outside would not fit an integer.
    far = float(max(height, width) + 2)
    y, x = xp.clip(y, -far, far), xp.clip(x, -far, far)
    top, left = xp.floor(y), xp.floor(x)
    near = ((1 - (y - top), y - top), (1 - (x - left), x - left))
    top, left = top.astype(index), left.astype(index)
    starts = xp.arange(m, dtype=index)[:, None] * elements
    places = xp.empty((m, n, 4), index)
    weights, down, right = (xp.empty((m, n, 4), dtype) for _ in range(3))
    for k, (dy, dx) in enumerate(itertools.product((0, 1), repeat=2)):
        row, column = xp.clip(top + dy, 0, height - 1), xp.clip(left + dx, 0, width - 1)
        counts = inside if clamp else (row == top + dy) & (column == left + dx)
        places[..., k] = starts + row * width + column
        weights[..., k] = near[0][dy] * near[1][dx] * counts
        down[..., k] = near[1][dx] * counts * (1 if dy else -1)
        right[..., k] = near[0][dy] * counts * (1 if dx else -1)
    flat = (array.reshape(-1) for array in (places, weights, down, right))
    return Corners(ctx.backend.sparse, (m, n, elements), *flat)
