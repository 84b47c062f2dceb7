"""Convolution by windows of 1 x 1 as one matrix product, over arrays whose channels lie last.

    out (positions, filters) = data (positions, channels) @ weight.T + bias

oneDNN's convolution wants the weight in a layout of its own, and where the weight is as large as the arrays, laying it
out takes as long as the kernel; a product reads the weight as it lies, piece by piece, into the cache. So training,
whose update writes to the weight after each step, lays nothing out; inference reads a packed weight, which is a little
faster than the convolution's, and gives the same bits. All such layers of ResNet-50, two threads with AVX-512, in ms:

    batch                                    1     8
    convolution, the weight laid out      14.6  78.6
    product, the weight as it lies        10.6  76.1
    convolution, the weight packed        10.1  74.5
    product, the weight packed             9.8  72.3

Where windows jump over positions, those that they do not are gathered first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...bound_calls import Call, as_one
from ...call_list import CallList
from ...compute import Array, Mode, Temp
from ..algorithms.blocked_product import ProductSizes
from ..runtime.memory_format import MemoryFormat
from .packable_product import PackableProduct, packable_product
from .product import has_fast_kernels

__all__ = ["PointwiseConvolution", "pointwise_convolution"]

MANY_CHANNELS = 512
"""Two threads with AVX2, ms, in blocks and by oneDNN, the weight as it lies: 7 x 7 x 512 to 2048 0.66 and 0.82. Over a
few hundred positions oneDNN is a twentieth faster, over many as fast: 8 x 14 x 14 x 1024 to 256 6.17 and 6.10, 8 x 28 x
28 x 512 to 128 5.41 and 5.73."""


@dataclass(frozen=True, slots=True)
class PointwiseConvolution(PackableProduct):
    """A kernel for a convolution of 1 x 1, of arrays data, weight, out and bias if any: of the data that it takes.

    Attributes:
        stride: the convolution's, by which positions are gathered; None where it takes all.
        gathered: elements of the data that it takes; 0 where it takes all.
    """

    stride: tuple[int, int] | None
    gathered: int

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The product's, and the gathered data."""
        return (*self._of_product.temps, Temp((self.gathered,)))

    @property
    def _of_product(self) -> PackableProduct:
        return PackableProduct(self.unpacked, self.packing)

    def bind(
        self, temps: Sequence[Array], arrays: Sequence[Array], addend: Array | None = None, norm: Array | None = None
    ) -> CallList:
        """Return a call that runs it; arguments are those of `PackableProduct.bind`."""
        runs, data = self._gathering(temps, arrays[0])
        runs.calls.append(self._of_product.bind(temps[:2], [data, *arrays[1:]], addend, norm))
        return runs

    def packed(
        self,
        temps: Sequence[Array],
        arrays: Sequence[Array],
        mode: Mode,
        addend: Array | None = None,
        norm: Array | None = None,
    ) -> Call:
        """The same, with the weight packed only where `mode` says that it is to be."""
        runs, data = self._gathering(temps, arrays[0])
        product = self._of_product.packed(temps[:2], [data, *arrays[1:]], mode, addend, norm)
        return as_one([*runs.calls, product])

    def _gathering(self, temps: Sequence[Array], data: Array) -> tuple[CallList, Array]:
        """A call that gathers the data, and the array that it writes: no call, and the data, where it takes all."""
        runs = CallList()
        if self.stride is None:
            return runs, data
        source = data[:, :: self.stride[0], :: self.stride[1]]
        target = temps[2].reshape(source.shape)
        runs.copy(target, source)
        return runs, target


def pointwise_convolution(
    data: MemoryFormat,
    weight: MemoryFormat,
    bias: MemoryFormat | None,
    out: MemoryFormat,
    window: tuple[tuple[int, ...], ...],
    adds: bool = False,
) -> PointwiseConvolution | None:
    """Return the kernel of a product for this convolution; None where it is none, or oneDNN's own is the better one.

    The arrays are as oneDNN takes them, the channels second; `window` is stride, dilation and padding. With `adds` it
    adds to what is in out.
    """
    stride, _, pad = window
    if len(weight.shape) != 4 or weight.shape[2:] != (1, 1) or any(pad):
        return None
    filters, channels = weight.shape[:2]
    if {array.dtype for array in (data, weight, out)} != {"float32"} or not (data.channels_last and out.channels_last):
        return None
    if weight.strides[:2] != (channels, 1):
        return None
    positions = math.prod((out.shape[0], *out.shape[2:]))
    sizes = positions, channels, filters
    in_blocks = adds or _is_for_blocks(ProductSizes(*sizes))
    product = packable_product(sizes, bias is not None, adds, in_blocks)
    if product is None:
        return None
    whole = stride == (1, 1)
    taken = None if whole else (stride[0], stride[1]), 0 if whole else positions * channels
    return PointwiseConvolution(product.unpacked, product.packing, *taken)


def _is_for_blocks(sizes: ProductSizes) -> bool:
    """Return whether a product in blocks takes less time than oneDNN's product with AVX-512, or convolution without.

    With AVX-512 it does, or as much: over 1024 channels a twentieth more in training, and less where the weight is
    packed. oneDNN's convolution is a twentieth faster over many channels: laying the weight out is little beside some
    positions. Two threads with AVX-512, GFLOP/s, in blocks, packed and by oneDNN, arrays outside the caches: 8 x 14 x
    14 x 1024 to 256 278, 289 and 292, 14 x 14 x 1024 to 256 268, 298 and 285, 8 x 7 x 7 x 2048 to 512 300, 340 and 313,
    8 x 28 x 28 x 512 to 128 312, 314 and 294.
    """
    if not sizes.fills_panels or has_fast_kernels():
        return sizes.fills_panels
    weight = sizes.terms * sizes.columns
    large = weight >= 2 * sizes.rows * (sizes.terms + sizes.columns)
    return sizes.terms < MANY_CHANNELS or sizes.packs_first or large
