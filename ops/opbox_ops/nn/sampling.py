"""Bilinear sampling: images read between their elements, and the gradients of that.

An image's value at (y, x) is that of its four neighbours, weighted by their nearness; what lies outside of the image
counts as 0, unless its edges are extended over the last half-open element (`clamp`). On the CPU all images' samples are
one product with a sparse matrix, a row of four weights for each position, and the images' gradient is one with its
transpose; of few numbers each image has a dense matrix. On the GPU neighbours are taken, weighted and added up. Images
are (m, channel, height * width), positions (m, n), samples (m, channel, n).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from ..compute import Array, OpContext

__all__ = ["Corners", "FewCorners", "added", "corners"]


FEW = 2**14
"""Elements up to which the matrices are dense: making a sparse one takes SciPy longer than such products."""


@dataclass(frozen=True, slots=True)
class Corners:
    """The four neighbours of m * n positions: each attribute but `size` is (m * n * 4,).

    Attributes:
        size: (m, n, height * width).
        places: where the neighbours are, among the elements of all images.
        weights: their weights; 0 where they do not count.
        down, right: the derivatives of the weights by y and x.
    """

    size: tuple[int, int, int]
    places: Array
    weights: Array
    down: Array
    right: Array

    def _matrix(self) -> Any:
        """A row for each position, with the weights at its neighbours."""
        m, n, elements = self.size
        rows = np.arange(0, 4 * m * n + 1, 4, dtype=self.places.dtype)
        return scipy.sparse.csr_matrix((self.weights, self.places, rows), shape=(m * n, m * elements))

    def sample(self, xp: Any, images: Array) -> Array:
        """The samples (m, channel, n)."""
        if xp is np:
            samples = self._matrix() @ _columns(xp, images)
        else:
            neighbours = _columns(xp, images).take(self.places, axis=0) * self.weights[:, None]
            samples = neighbours.reshape(self.size[0] * self.size[1], 4, -1).sum(axis=1)
        return samples.reshape(*self.size[:2], -1).swapaxes(1, 2)

    def slopes(self, xp: Any, images: Array, gsamples: Array) -> tuple[Array, Array]:
        """The gradients of y and x (m, n), from those of the samples."""
        gcolumns = _columns(xp, gsamples)
        neighbours = _columns(xp, images).take(self.places, axis=0).reshape(len(gcolumns), 4, -1)
        products = xp.einsum("pkc,pc->pk", neighbours, gcolumns)
        gy, gx = (xp.einsum("pk,pk->p", products, slope.reshape(-1, 4)) for slope in (self.down, self.right))
        return gy.reshape(self.size[:2]), gx.reshape(self.size[:2])

    def spread(self, xp: Any, gsamples: Array) -> Array:
        """The gradient of the images, from those of the samples."""
        m, n, elements = self.size
        gcolumns = _columns(xp, gsamples)
        if xp is np:
            total = self._matrix().T @ gcolumns
        else:
            total = xp.zeros((m * elements, gcolumns.shape[1]), gcolumns.dtype)
            shares = gcolumns[:, None] * self.weights.reshape(m * n, 4, 1)
            xp.add.at(total, self.places, shares.reshape(4 * m * n, -1))
        return total.reshape(m, elements, -1).swapaxes(1, 2)


class FewCorners:
    """What `Corners` does, with a matrix for each image: a row for each position, a column for each element.

    Args:
        y, x: the positions (m, n), in elements.
        height, width: of the images.
        clamp: whether the edges are extended.
    """

    def __init__(self, y: Array, x: Array, height: int, width: int, *, clamp: bool) -> None:
        self.shape, self.clamp = (*y.shape, height, width), clamp
        self.at = np.stack([y, x])
        self.last = np.array([[[height - 1]], [[width - 1]]], y.dtype)
        self.places = np.arange(max(height, width), dtype=y.dtype)
        reach = np.clip(self.at, 0, self.last) if clamp else self.at
        weights = reach[..., None] - self.places
        np.abs(weights, out=weights)
        np.subtract(1, weights, out=weights)
        self.by_y, self.by_x = self._counted(np.maximum(weights, 0, out=weights))

    def _counted(self, weights: Array) -> tuple[Array, Array]:
        """Weights along y (m, n, height) and x (m, n, width), 0 where the edges are not extended to."""
        if self.clamp:
            inside: Array = (self.at >= 0) & (self.at < self.last + 1)
            weights = weights * inside.all(axis=0)[..., None]
        return weights[0, ..., : self.shape[2]], weights[1, ..., : self.shape[3]]

    def _matrices(self) -> Array:
        m, n, height, width = self.shape
        return (self.by_y[..., None] * self.by_x[..., None, :]).reshape(m, n, height * width)

    def sample(self, xp: Any, images: Array) -> Array:
        """The samples (m, channel, n)."""
        samples: Array = images @ self._matrices().swapaxes(1, 2)
        return samples

    def slopes(self, xp: Any, images: Array, gsamples: Array) -> tuple[Array, Array]:
        """The gradients of y and x (m, n), from those of the samples."""
        products = (gsamples.swapaxes(1, 2) @ images).reshape(self.shape)
        before = np.floor(self.at)
        after = np.minimum(before + 1, self.last) if self.clamp else before + 1
        rises = (self.places == after[..., None]).astype(self.at.dtype) - (self.places == before[..., None])
        down, right = self._counted(rises)
        along_y, along_x = products @ self.by_x[..., None], self.by_y[..., None, :] @ products
        return (along_y[..., 0] * down).sum(axis=2), (along_x[..., 0, :] * right).sum(axis=2)

    def spread(self, xp: Any, gsamples: Array) -> Array:
        """The gradient of the images, from those of the samples."""
        total: Array = gsamples @ self._matrices()
        return total


def _columns(xp: Any, array: Array) -> Array:
    """(m, channel, k) as (m * k, channel): an element's channels are one run of memory."""
    m, channels, k = array.shape
    return xp.ascontiguousarray(array.swapaxes(1, 2)).reshape(m * k, channels)


def added(xp: Any, places: Array, values: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of `shape` with each of the values added at its place (in the flat array)."""
    total = xp.bincount(places.reshape(-1), values.reshape(-1), minlength=math.prod(shape))
    return total.reshape(shape).astype(values.dtype, copy=False)


def corners(
    ctx: OpContext, y: Array, x: Array, height: int, width: int, *, clamp: bool = False
) -> Corners | FewCorners:
    """The neighbours of the positions (y, x), in elements, of images of `height` and `width`."""
    xp, (m, n) = ctx.xp, y.shape
    elements, dtype = height * width, y.dtype
    if xp is np and y.size * elements <= FEW:
        return FewCorners(y, x, height, width, clamp=clamp)
    index = "i4" if 4 * m * max(n, elements) < 1 << 31 else "i8"
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
    # Positions far outside would not fit an integer.
    far = float(max(height, width) + 2)
    y, x = xp.clip(y, -far, far), xp.clip(x, -far, far)
    top, left = xp.floor(y), xp.floor(x)
    rows, columns = (start.astype(index)[..., None] + xp.arange(2, dtype=index) for start in (top, left))
    row, column = xp.clip(rows, 0, height - 1), xp.clip(columns, 0, width - 1)
    if clamp:
        counts = inside[..., None, None]
    else:
        counts = (row == rows)[..., :, None] & (column == columns)[..., None, :]
    signs = xp.asarray((-1, 1), dtype)
    y, x = y - top, x - left
    near_y, near_x = xp.stack([1 - y, y], axis=-1)[..., :, None], xp.stack([1 - x, x], axis=-1)[..., None, :] * counts
    starts = xp.arange(0, m * elements, elements, dtype=index)[:, None, None, None]
    places = starts + (row * width)[..., :, None] + column[..., None, :]
    weights, down, right = near_y * near_x, near_x * signs[:, None], near_y * counts * signs
    shape = (m, n, 2, 2)
    flat = (xp.broadcast_to(array, shape).reshape(-1) for array in (places, weights, down, right))
    return Corners((m, n, elements), *flat)
