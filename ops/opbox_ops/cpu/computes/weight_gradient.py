"""The gradient of a convolution's weight as matrix products over arrays whose channels lie last.

For each chunk of output positions, the windows of data are laid out as the rows of a matrix, and

    gweight += gout.T @ windows        gweight (filters, taps * channels)

goes through oneDNN's `sgemm`. Without AVX-512, oneDNN 3.2's own kernels for this gradient take two to seven times as
long as forward's where an image is large. With it they are the better ones for windows over images that stay in the
second-level cache, and for all windows that several threads share, as one thread lays them out here (`_is_own_better`).
A chunk of windows stays in the cache. Where products in blocks are to be had, those read the windows
(`blocked_gradients`): of all convolutions without AVX-512, with it where windows jump over data, and whatever the
matrix unit takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from numpy.lib.stride_tricks import as_strided

from ...cache import CHUNK_BYTES
from ...call_list import CallList
from ...compute import Array, Temp
from ..algorithms.column_sums import column_sums
from ..algorithms.window_sizes import WindowSizes
from ..onednn.library import library
from ..onednn.primitive import PrimitiveKernel
from ..onednn.reorder import plain_weight
from ..runtime.memory_format import MemoryFormat
from . import short_rows, window_products, winograd_convolution
from .blocked_gradients import BlockedWeightGradient
from .by_images import MAX_PIECE_MULTIPLICATIONS
from .product import blocked_kernel

__all__ = ["WeightGradient", "weight_gradient"]

MIN_CHANNELS = 8
"""Minimum number of channels: with fewer, a row of windows is so short that laying it out takes as long as the
product."""

MIN_WEIGHT_NUMBERS = 1 << 14
"""Minimum number of elements of a weight. A smaller one stays in the first cache with oneDNN's kernels for AVX2, and a
larger one does not.

Two threads, ms, oneDNN and in blocks: 64 x 32 x 32 x 16, 3 x 3, 16 filters 2.3 and 2.7; 64 x 32 x 32 x 3, 3 x 3, 32
filters 0.7 and 1.9; 64 x 16 x 16 x 32, 3 x 3 with stride 2, 64 filters 1.2 and 1.0; 8 x 28 x 28 x 256, 3 x 3 with
stride 2, 256 filters 18 and 11.
"""

IMAGE_BYTES = 2 << 20
"""With AVX-512 oneDNN's own kernels reach 105 to 115 GFLOP/s where an image of data and one of out take less together,
and 70 where they take more; products reach 80 to 90."""
MIN_POSITIONS = 64
"""Minimum number of positions of an image of out; products of fewer take 0.75 to 0.9 of those kernels' time (7 x 7, by
3 x 3)."""

OURS = winograd_convolution.IMPLEMENTATION, window_products.IMPLEMENTATION, short_rows.IMPLEMENTATION
"""Implementations that are none of oneDNN's: they have been chosen for their speed."""

_Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class WeightGradient:
    """A kernel for the gradient of a convolution's weight: made of shapes, to be bound to arrays.

    Attributes:
        data, out: shapes as they lie: (batch, height, width, channels), (batch, height, width, filters).
        kernel, stride, dilate, pad: the convolution's.
        last: whether the weight lies as (filters, *kernel, channels), and not as (filters, channels, *kernel).
    """

    data: tuple[int, int, int, int]
    out: tuple[int, int, int, int]
    kernel: _Pair
    stride: _Pair
    dilate: _Pair
    pad: _Pair
    last: bool

    @property
    def _columns(self) -> int:
        return math.prod(self.kernel) * self.data[3]

    @property
    def _chunk(self) -> _Pair:
        """Images and rows of the output in one chunk: whole images where one fits."""
        batch, height, width, _ = self.out
        rows = max(1, CHUNK_BYTES // (4 * width * self._columns))
        return (min(batch, max(1, rows // height)), height) if rows >= height else (1, rows)

    @property
    def _is_product(self) -> bool:
        """Return whether data is the matrix of windows as it lies."""
        return self.kernel == self.stride == (1, 1) and self.pad == (0, 0)

    @property
    def _reordered(self) -> bool:
        return not self.last and self.kernel != (1, 1)

    def _strip(self, rows: int) -> _Pair:
        """Rows and columns of the data, with its padding, under `rows` rows of the output."""
        height, width = (
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip((rows, self.out[2]), self.stride, self.kernel, self.dilate, strict=True)
        )
        return height, width

    @property
    def temps(self) -> list[Temp]:
        """The padded strip of data, the matrix of windows, the gradient before it is reordered, and the reorder's."""
        images, rows = self._chunk
        filters, channels = self.out[3], self.data[3]
        padded = self.pad != (0, 0)
        return [
            Temp((images, *self._strip(rows), channels) if padded else (0,)),
            Temp((0,) if self._is_product else (images * rows * self.out[2] * self._columns,)),
            Temp((filters * self._columns,) if self._reordered else (0,)),
            *(self._reorder.temps if self._reordered else ()),
        ]

    def bind(self, temps: Sequence[Array], gout: Array, data: Array, weight: Array, bias: Array | None) -> CallList:
        """Return a call that writes the gradients of weight and, where `bias` is not None, of bias."""
        strip, matrix, gradient, *scratches = temps
        filters, channels = self.out[3], self.data[3]
        runs = CallList()
        gout, data = runs.contiguous(gout).reshape(-1, filters), runs.contiguous(data)
        target = gradient if self._reordered else weight
        if self._is_product:
            dnnl = library()
            assert dnnl is not None
            x, into = data.reshape(-1, channels), target.reshape(filters, channels)
            step = max(1, MAX_PIECE_MULTIPLICATIONS // (filters * channels))
            for first in range(0, len(x), step):
                at = slice(first, first + step)
                runs.calls.append(dnnl.product(gout[at], x[at], into, add=first > 0))
        else:
            self._windows(runs, strip, matrix, gout, data, target)
        if self._reordered:
            runs.calls.append(self._reorder.bind(scratches, (target, weight)))
        if bias is not None:
            runs.calls.append(column_sums(gout, bias))
        return runs

    @property
    def _reorder(self) -> PrimitiveKernel:
        """From the gradient as the products write it to the gradient as the weight lies."""
        chosen = plain_weight(self.out[3], self.data[3], self.kernel)
        assert chosen is not None
        return chosen

    def _windows(self, runs: CallList, strip: Array, matrix: Array, gout: Array, data: Array, target: Array) -> None:
        """Append the calls of each chunk: lay out its windows, and add its product."""
        batch, height, width, filters = self.out
        images, rows = self._chunk
        dnnl = library()
        assert dnnl is not None
        first = True
        for n in range(0, batch, images):
            count = min(images, batch - n)
            for row in range(0, height, rows):
                size = min(rows, height - row)
                source = self._under(runs, strip, data[n : n + count], row, size)
                shape = (count, size, width, *self.kernel, self.data[3])
                s = source.strides
                steps = [a * b for a, b in zip(s[1:3], self.stride, strict=True)]
                taps = [a * b for a, b in zip(s[1:3], self.dilate, strict=True)]
                windows = as_strided(source, shape, (s[0], *steps, *taps, s[3]), writeable=False)
                contiguous = matrix[: math.prod(shape)].reshape(shape)
                runs.copy(contiguous, windows)
                start, positions = (n * height + row) * width, count * size * width
                runs.calls.append(
                    dnnl.product(
                        gout[start : start + positions],
                        contiguous.reshape(positions, self._columns),
                        target.reshape(filters, self._columns),
                        add=not first,
                    )
                )
                first = False

    def _under(self, runs: CallList, strip: Array, data: Array, row: int, size: int) -> Array:
        """The data under `size` rows of the output: with its padding, which calls write to `strip`, or as it lies."""
        top = row * self.stride[0] - self.pad[0]
        if self.pad == (0, 0):
            return data[:, top:]
        height, width = self._strip(size)
        inside = strip[: data.shape[0], :height]
        above, before = max(0, -top), self.pad[1]
        below = min(height, data.shape[1] - top)
        after = min(width, before + data.shape[2])
        runs.calls.append(lambda: inside.fill(0))
        runs.copy(inside[:, above:below, before:after], data[:, top + above : top + below, : after - before])
        return inside


def weight_gradient(
    data: MemoryFormat,
    out: MemoryFormat,
    window: tuple[tuple[int, ...], ...],
    kernel: tuple[int, ...],
    last: bool,
    own: str,
    threads: int,
) -> WeightGradient | BlockedWeightGradient | None:
    """Return a kernel of products for this gradient; None where oneDNN's own kernel, named `own`, is the better one.

    data and out are as oneDNN takes them, the channels second; `window` is stride, dilation and padding; `threads` is
    how many threads work on it either way. `own` is empty where there is no oneDNN; only a kernel of our own computes
    the gradient then.
    """
    if "amx" in own or own in OURS or len(kernel) != 2 or data.dtype != "float32":
        return None
    if not (data.channels_last and out.channels_last):
        return None
    shapes = [(m.shape[0], m.shape[2], m.shape[3], m.shape[1]) for m in (data, out)]
    size, stride, dilate, pad = [(sizes[0], sizes[1]) for sizes in (kernel, *window)]
    blocked = blocked_kernel()
    if own and "avx512" not in own and math.prod(kernel) * data.shape[1] * out.shape[1] < MIN_WEIGHT_NUMBERS:
        return None
    few = data.shape[1] < MIN_CHANNELS or not own
    if blocked is not None:
        windows = WindowSizes(shapes[0], shapes[1][1:3], size, stride, dilate, pad)
        gradient_in_blocks = BlockedWeightGradient(blocked, windows, out.shape[1], last)
        if "avx512" not in own or (stride != (1, 1) and not few) or gradient_in_blocks.splits:
            return gradient_in_blocks
    if few:
        return None
    gradient = WeightGradient(shapes[0], shapes[1], size, stride, dilate, pad, last)
    return None if "avx512" in own and _is_own_better(gradient, threads) else gradient


def _is_own_better(gradient: WeightGradient, threads: int) -> bool:
    """Return whether oneDNN's kernel with AVX-512 takes less time.

    Not for 1 x 1, whose gradient it would have to reorder back: 2048 x 1024 take 17 ms then, and 4 here. In one thread
    not where it jumps over data, or writes a large gradient of few sums.
    """
    if gradient.kernel == (1, 1):
        return False
    if threads > 1:
        return True
    if gradient.stride != (1, 1):
        return False
    image = 4 * sum(math.prod(shape[1:]) for shape in (gradient.data, gradient.out))
    return image <= IMAGE_BYTES and math.prod(gradient.out[1:3]) >= MIN_POSITIONS
