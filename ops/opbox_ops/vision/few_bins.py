"""Position-sensitive pooling of few numbers: one dense matrix from the pixels of all images to the bins of all regions.

A bin reads one group of the channels, and there pixels whose weights are a product of one along y and one along x. Bins
are numbered row by row; arrays that are there for x and for y have x first, as regions have.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..compute import Array
from .regions import FEW

__all__ = ["BinTables", "FewBins", "bin_tables", "few"]


class BinTables(NamedTuple):
    """What depends on no values.

    Attributes:
        along: the number of each bin along x and along y (2, bins).
        reads: whether a bin reads a group of the channels (bins, 1, groups).
        places: numbers of the pixels along the longer side of the image.
        last: the last pixel along x and along y (2, 1).
    """

    along: Array
    reads: Array
    places: Array
    last: Array


@lru_cache(maxsize=64)
def bin_tables(pooled: int, group: int, size: tuple[int, int], dtype: np.dtype[Any]) -> BinTables:
    """The tables for `pooled` by `pooled` bins, `group` by `group` groups, and images of `size`: height, width."""
    bins = np.arange(pooled)
    row, column = np.repeat(bins, pooled), np.tile(bins, pooled)
    channel = (row * group // pooled) * group + column * group // pooled
    tables = BinTables(
        np.stack([column, row]).astype(dtype),
        channel[:, None, None] == np.arange(group**2),
        np.arange(max(size), dtype=dtype),
        np.array([[size[1] - 1], [size[0] - 1]], dtype),
    )
    for table in tables:
        table.flags.writeable = False
    return tables


def few(xp: Any, data: tuple[int, ...], rois: Array, pooled: int, channels: int) -> bool:
    """Whether there is a matrix for data's shape, and a small one; `channels` of data are one group's."""
    batch, all_channels, height, width = data
    return xp is np and 0 < rois.shape[0] * pooled**2 * batch * (all_channels // channels) * height * width <= FEW


class FewBins:
    """The matrix of the bins' weights.

    Args:
        tables: those of the call.
        rois: the regions (n, 5); one whose image is not in data is 0.
        data: data's shape.
        classes: parts of each group's channels that have weights of their own.
    """

    def __init__(self, tables: BinTables, rois: Array, data: tuple[int, ...], classes: int = 1) -> None:
        self.data, self.classes = data, classes
        image = rois[:, 0].astype(np.int64)
        on = image[:, None, None, None] == np.arange(data[0])[:, None]
        # (n, bins, batch * groups, 1)
        reads = on & tables.reads
        self.reads = reads.reshape(*reads.shape[:2], -1, 1)

    def matrix(self, x: Array, y: Array) -> Array:
        """(classes, n * bins, batch * groups * pixels) from the weights along x and y (classes, n, bins, places)."""
        height, width = self.data[2:]
        product = y[..., :height, None] * x[..., None, :width]
        matrix = product.reshape(*product.shape[:3], 1, height * width) * self.reads
        return matrix.reshape(self.classes, -1, matrix.shape[3] * matrix.shape[4])

    def gather(self, matrix: Array, data: Array) -> Array:
        """The weighted sums of data's pixels: (classes, channels, n * bins)."""
        groups = self.reads.shape[2] // max(self.data[0], 1)
        apart = data.reshape(self.data[0], self.classes, -1, groups * self.data[2] * self.data[3])
        pixels = apart.transpose(1, 2, 0, 3).reshape(self.classes, apart.shape[2], -1)
        sums: Array = pixels.astype(matrix.dtype, copy=False) @ matrix.swapaxes(1, 2)
        return sums

    def by_class(self, out: Array) -> Array:
        """An array like the output (n, classes * channels, rows, columns) as (classes, channels, n, bins): a view."""
        n, channels, rows, columns = out.shape
        return out.reshape(n, self.classes, channels // self.classes, rows * columns).transpose(1, 2, 0, 3)

    def flat(self, gout: Array, dtype: Any) -> Array:
        """gout in the order of `gather`'s sums."""
        apart = self.by_class(gout)
        return apart.reshape(*apart.shape[:2], -1).astype(dtype, copy=False)

    def spread(self, matrix: Array, flat: Array, gdata: Array) -> None:
        """The gradient of `gather` into `gdata`."""
        sums = flat @ matrix
        apart = gdata.reshape(self.data[0], self.classes, sums.shape[1], -1)
        apart[...] = sums.reshape(*sums.shape[:2], self.data[0], -1).transpose(2, 0, 1, 3)
