"""The columns of a convolution: one for each output position, with the input values under the kernel.

A convolution is then a matrix product, weight (filters, channels * taps) by columns (channels * taps, positions). All
columns of a batch would be large, so they are made a block at a time, sized to stay in the cache, on a GPU to a share
of its memory: a few samples, or a few output rows of one sample.

Columns are made in two copies, which keeps NumPy's inner loops long: `rows` holds the input shifted by each tap of
the kernel but its first axis, padding included; the taps of the first axis are then whole runs of it.

    rows    (channel, *kernel[1:], samples, input rows, *out[1:])
    columns (channel, *kernel,     samples, output rows, *out[1:])

The layout is the im2col of Chellapilla et al., "High Performance Convolutional Neural Networks for Document
Processing" (2006), with the samples of a block side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ..cache import COLUMN_BYTES, GPU_COLUMN_BYTES
from ..compute import Array
from ..pausing import pause
from .window import under

__all__ = ["Block", "Geometry"]

ENOUGH = 256
"""Positions of a sample at which a matrix product over them alone is worth more than putting samples side by side."""


@dataclass(frozen=True, slots=True)
class Block:
    """Samples `start` to `stop`, and of each of them output rows `top` to `bottom`."""

    start: int
    stop: int
    top: int
    bottom: int

    @property
    def samples(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> int:
        return self.bottom - self.top


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution's sizes: `data` (batch, channel, *spatial), `out` (*spatial), and a number a spatial dimension.

    `device` ("cpu" or "gpu") says how large a block is.
    """

    data: tuple[int, ...]
    filters: int
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilate: tuple[int, ...]
    pad: tuple[int, ...]
    device: str

    @property
    def pointwise(self) -> bool:
        """True if the columns are the data itself: a kernel of 1 that visits every position."""
        return max(self.kernel) == 1 and max(self.stride) == 1 and max(self.pad) == 0

    @property
    def depth(self) -> int:
        """Rows of the columns' matrix: channels times taps."""
        return self.data[1] * math.prod(self.kernel)

    @property
    def row(self) -> int:
        """Positions in one output row (a slice along the first spatial dimension)."""
        return math.prod(self.out[1:])

    def largest(self, itemsize: int) -> Block:
        """The largest block."""
        nbytes = COLUMN_BYTES if self.device == "cpu" else GPU_COLUMN_BYTES
        fits = max(1, nbytes // max(1, itemsize * (self.depth + self.filters) * self.row))
        batch, height = self.data[0], self.out[0]
        if self.pointwise and height * self.row >= ENOUGH:
            # The product reads the data and writes the output in place.
            batch = min(batch, 1)
        if fits >= height:
            return Block(0, min(batch, max(1, fits // max(1, height))), 0, height)
        return Block(0, min(batch, 1), 0, fits)

    def blocks(self, itemsize: int) -> Iterator[Block]:
        """Blocks that cover all samples and output rows."""
        largest = self.largest(itemsize)
        if not largest.samples or not largest.rows:
            return
        for start in range(0, self.data[0], largest.samples):
            for top in range(0, self.out[0], largest.rows):
                stop, bottom = min(start + largest.samples, self.data[0]), min(top + largest.rows, self.out[0])
                yield Block(start, stop, top, bottom)

    def rows_shape(self, block: Block) -> tuple[int, ...]:
        return self.data[1], *self.kernel[1:], block.samples, self._height(block), *self.out[1:]

    def columns_shape(self, block: Block) -> tuple[int, ...]:
        return self.data[1], *self.kernel, block.samples, block.rows, *self.out[1:]

    def gather(self, data: Array, block: Block, rows: Array, columns: Array) -> Array:
        """The columns of `block`, in `columns` (or, when the two are alike, in `rows`)."""
        for tap in itertools.product(*map(range, self.kernel[1:])):
            pause()
            row = rows[(slice(None), *tap)]
            valid, source = self._under(tap, block)
            for axis, inside in enumerate(valid, start=2):
                before = (slice(None),) * axis
                row[(*before, slice(0, inside.start))] = 0
                row[(*before, slice(inside.stop, None))] = 0
            taken = data[(slice(block.start, block.stop), slice(None), *source)]
            row[(slice(None), slice(None), *valid)] = taken.swapaxes(0, 1)
        if self.kernel[0] == 1:
            return rows
        for i in range(self.kernel[0]):
            columns[:, i] = rows[self._shift(i, block)]
        return columns

    def scatter(self, columns: Array, block: Block, rows: Array, data: Array) -> None:
        """Add the columns of `block` to the positions of `data` that `gather` took them from."""
        if self.kernel[0] == 1:
            rows = columns.reshape(rows.shape)
        else:
            rows[...] = 0
            for i in range(self.kernel[0]):
                rows[self._shift(i, block)] += columns[:, i]
        for tap in itertools.product(*map(range, self.kernel[1:])):
            pause()
            valid, source = self._under(tap, block)
            part = rows[(slice(None), *tap, slice(None), *valid)]
            data[(slice(block.start, block.stop), slice(None), *source)] += part.swapaxes(0, 1)

    def _height(self, block: Block) -> int:
        """Rows of `rows`: the input rows under the block. A kernel one row high skips those that its stride skips."""
        if self.kernel[0] == 1:
            return block.rows
        return (block.rows - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilate[0] + 1

    def _shift(self, i: int, block: Block) -> tuple[slice, ...]:
        """Return the index of the rows in `rows` that tap `i` of the kernel's first axis reads for a block."""
        start = i * self.dilate[0]
        taken = slice(start, start + (block.rows - 1) * self.stride[0] + 1, self.stride[0])
        return (*(slice(None),) * (len(self.kernel) + 1), taken)

    def _under(self, tap: tuple[int, ...], block: Block) -> tuple[list[slice], list[slice]]:
        """For the taps of the kernel's other axes: a dimension's positions inside the data, and the data there."""
        step = self.stride[0] if self.kernel[0] == 1 else 1
        starts = [block.top * self.stride[0] - self.pad[0]]
        starts += [t * d - p for t, d, p in zip(tap, self.dilate[1:], self.pad[1:], strict=True)]
        counts = [self._height(block), *self.out[1:]]
        strides = (step, *self.stride[1:])
        met = [under(*axis) for axis in zip(starts, counts, strides, self.data[2:], strict=True)]
        return [valid for valid, _ in met], [source for _, source in met]
