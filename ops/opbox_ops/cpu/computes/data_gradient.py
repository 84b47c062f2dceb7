"""The gradient of a convolution's data by matrix products, over arrays whose channels lie last.

    gdata = gout @ weight        1 x 1: (positions, filters) @ (filters, channels)
    windows = gout @ weight      else: (positions, filters) @ (filters, taps * channels), added up to images

oneDNN's own kernel wants the weight in a layout of its own. Where the weight is larger than both arrays, as in the last
layers of a residual network, laying it out takes as long as the kernel; a product reads it once, as it lies.

That kernel fills vectors with channels: of 20 channels it computes 32, and takes twice to three times as long as the
product and the sums do (LeNet's second convolution at batch 100, one thread with AVX-512: 8.1 and 4.0 ms).

Products in blocks take the place of oneDNN's `sgemm` where they are to be had, and all gradients of 1 x 1
(`blocked_gradients`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...cache import CACHE_BYTES
from ...call_list import CallList
from ...compute import Array, Temp
from ..algorithms.blocked_product import BlockedProduct, ProductSizes
from ..algorithms.window_sums import window_sums
from ..onednn.library import library
from ..onednn.primitive import PrimitiveKernel
from ..onednn.reorder import reorder
from ..runtime.memory_format import MemoryFormat
from .blocked_gradients import BlockedDataGradient
from .by_images import MAX_PIECE_MULTIPLICATIONS
from .product import blocked_kernel
from .winograd_convolution import IMPLEMENTATION

__all__ = ["DataGradient", "WindowedGradient", "data_gradient"]

VECTOR = 16
"""Numbers of float32 in a vector of AVX-512."""
MIN_CHANNELS_FOR_ONEDNN = 2 * VECTOR
"""Number of channels from which on oneDNN computes it: its kernel leaves less than a quarter of its vectors empty: 40
channels take 11.2 and 11.8 ms."""
MIN_FILTERS = 16
"""Minimum number of filters: with fewer, adding windows up takes as long as the product."""
MIN_TAPS = 9
"""Minimum number of elements of a filter in a channel."""
MIN_PRODUCTS = 256
"""Minimum of filters times channels for products in blocks: 16 by 16 fill the registers."""


@dataclass(frozen=True, slots=True)
class DataGradient:
    """A kernel for the gradient of data: made of shapes, to be bound to arrays.

    Attributes:
        channels, filters: data's and out's.
    """

    channels: int
    filters: int

    @property
    def temps(self) -> tuple[Temp, ...]:
        """None."""
        return ()

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """Return a call that writes the gradient; `arrays` are gout, weight and the gradient of data."""
        gout, weight, gdata = arrays
        dnnl = library()
        assert dnnl is not None
        runs = CallList()
        gout, weight = runs.contiguous(gout), runs.contiguous(weight)
        rows, matrix = gout.reshape(-1, self.filters), weight.reshape(self.filters, self.channels)
        target, step = gdata.reshape(-1, self.channels), max(1, MAX_PIECE_MULTIPLICATIONS // matrix.size)
        for first in range(0, len(rows), step):
            at = slice(first, first + step)
            runs.calls.append(dnnl.product(rows[at], matrix, target[at], add=False, transposed=False))
        return runs


@dataclass(frozen=True, slots=True)
class WindowedGradient:
    """A kernel for the gradient of few channels: windows by a product, a few images at a time, and their sums.

    Attributes:
        data, out: shapes as they lie: (batch, height, width, channels), (batch, height, width, filters).
        weight: how the weight lies.
        stride: the convolution's.
        blocked: the functions of products in blocks; None where they are oneDNN's.
    """

    data: tuple[int, int, int, int]
    out: tuple[int, int, int, int]
    weight: MemoryFormat
    stride: tuple[int, int]
    blocked: BlockedProduct | None

    @property
    def kernel(self) -> tuple[int, ...]:
        return self.weight.shape[2:]

    @property
    def _columns(self) -> int:
        return math.prod(self.kernel) * self.data[3]

    @property
    def _images(self) -> int:
        """Images whose windows stay in the cache."""
        return max(1, min(self.out[0], CACHE_BYTES // (4 * math.prod(self.out[1:3]) * self._columns)))

    @property
    def _reorder(self) -> PrimitiveKernel:
        """From the weight as it is to the weight with its channels last."""
        inside = MemoryFormat.plain((self.out[3], *self.kernel, self.data[3]), "float32", (0, 3, 1, 2))
        chosen = reorder(self.weight, inside)
        assert chosen is not None
        return chosen

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The weight with its channels last, the windows, and the reorder's."""
        windows = self._images * math.prod(self.out[1:3]) * self._columns
        return (Temp((self.out[3] * self._columns,)), Temp((windows,)), *self._reorder.temps)

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """Return a call that writes the gradient; `arrays` are gout, weight and the gradient of data."""
        (reordered, scratch, *scratches), (gout, weight, gdata) = temps, arrays
        dnnl = library()
        assert dnnl is not None
        runs = CallList()
        gout, matrix = runs.contiguous(gout), reordered.reshape(self.out[3], self._columns)
        runs.calls.append(self._reorder.bind(scratches, (weight, reordered)))
        positions = math.prod(self.out[1:3])
        for n in range(0, self.out[0], self._images):
            images = slice(n, min(n + self._images, self.out[0]))
            count = images.stop - n
            windows = scratch[: count * positions * self._columns]
            rows, product = gout[images].reshape(-1, self.out[3]), windows.reshape(-1, self._columns)
            if self.blocked is None:
                runs.calls.append(dnnl.product(rows, matrix, product, add=False, transposed=False))
            else:
                sizes = ProductSizes(len(rows), self.out[3], self._columns)
                runs.calls.append(self.blocked.product(sizes, (rows, matrix, None, product)))
            shape = (count, *self.out[1:3], *self.kernel, self.data[3])
            runs.calls.append(window_sums(windows.reshape(shape), gdata[images], self.stride))
        return runs


def data_gradient(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: tuple[tuple[int, ...], ...], own: str
) -> DataGradient | BlockedDataGradient | WindowedGradient | None:
    """Return a kernel of products for this gradient; None where oneDNN's own kernel, named `own`, is the better one.

    `own` is empty where there is no oneDNN; only a kernel of our own computes the gradient then.

    The arrays are as oneDNN takes them, the channels second; `window` is stride, dilation and padding.
    """
    blocked = blocked_kernel()
    stride, dilate, pad = window
    filters, channels, *kernel = weight.shape
    if own == IMPLEMENTATION or len(kernel) != 2 or any(pad) or data.dtype != "float32":
        return None
    if not (data.channels_last and gout.channels_last):
        return None
    shapes = [(m.shape[0], m.shape[2], m.shape[3], m.shape[1]) for m in (data, gout)]
    if kernel == [1, 1]:
        if blocked is not None:
            own_gradient = BlockedDataGradient(blocked, shapes[1], channels, (stride[0], stride[1]))
            pays = own_gradient.fills_panels and filters * channels >= MIN_PRODUCTS
            return own_gradient if pays or not own else None
        if not own:
            return None
        positions = data.shape[0] * data.shape[2] * data.shape[3]
        better = all(s == 1 for s in stride) and filters * channels >= positions * (filters + channels)
        return DataGradient(channels, filters) if better else None
    if not own:
        return None
    few = channels < MIN_CHANNELS_FOR_ONEDNN and channels % VECTOR and filters >= MIN_FILTERS
    if not few or math.prod(kernel) < MIN_TAPS or any(d != 1 for d in dilate):
        return None
    if blocked is None and "avx512" not in own:
        return None
    return WindowedGradient(shapes[0], shapes[1], weight, (stride[0], stride[1]), blocked)
