"""Convolution by windows of 1 x 1 in types of 16 bits as products, over arrays whose channels lie last; its gradients.

    out (positions, filters) = data (positions, channels) @ weight.T + bias
    gdata = gout @ weight        gweight = gout.T @ data

oneDNN's convolutions are the faster kernels, and want the weight in a layout of their own, which takes longer than the
kernel where positions are few; its matmul reads the weight as it lies, and writes its gradient so. Of bfloat16, two
threads with a matrix unit, us, convolution and product, forward, gradient of data and of weight:

    14 x 14, 1024 to 256           162, 69     109, 61      216, 131
    28 x 28, 128 to 512             94, 86      76, 59      144, 109
    56 x 56, 64 to 256              92, 92      63, 59      185, 192
    7 x 7, 2048 to 512             408, 154    238, 161     468, 595
    8 images of 14 x 14, 1024      504, 636    420, 466     923, 819
    8 of 7 x 7, 2048              1088, 758    915, 730    1630, 822

In inference, where a weight stays packed, the convolution is taken: 60 us in place of 162 in the first line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opbox_protocol.mxnet import numpy_dtype

from ...accumulation import NARROW
from ...compute import Array, Mode, Temp
from ..onednn.primitive import Operand, PrimitiveKernel
from ..runtime.memory_format import MemoryFormat
from ..runtime.packed_runs import PackedRuns
from .half_product import HalfProduct, half_product

__all__ = ["HalfPointwise", "data_as_product", "forward_as_product", "weight_as_product"]

MAX_POSITIONS, MIN_TERMS = 1024, 128
"""Maximum number of positions for forward and the gradient of data to be products; minimum for a weight's gradient."""
_Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class HalfPointwise:
    """A kernel of forward with the methods of a `PrimitiveKernel`, for arrays as they lie.

    Attributes:
        product: of matrices.
        packing: oneDNN's convolution, whose weight is packed.
    """

    product: HalfProduct
    packing: PrimitiveKernel

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.packing.operands

    @property
    def implementation(self) -> str:
        return self.product.implementation

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        return self.packing.packs

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The larger scratchpad, the packed weight, and what else the product needs."""
        (own, *packed), (scratchpad, *more) = self.packing.temps, self.product.temps
        larger = max(own, scratchpad, key=lambda temp: temp.shape)
        return (larger, *[replace(temp, only_packed=True) for temp in packed], *more)

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> Callable[[], Any]:
        """Return a call that runs the product; arguments are those of `PrimitiveKernel.bind`."""
        return self.product.bind([temps[0], *temps[len(self.packing.temps) :]], arrays)

    def packed(self, temps: Sequence[Array], arrays: Sequence[Array], mode: Mode) -> PackedRuns:
        """The same by the convolution, with its weight packed only where `mode` says that it is to be."""
        return self.packing.packed(temps[: len(self.packing.temps)], arrays, mode)


def _is_pointwise(data: MemoryFormat, weight: MemoryFormat, out: MemoryFormat, window: _Window) -> bool:
    """Return whether it is a product of matrices, as the arrays lie."""
    stride, _, pad = window
    if len(weight.shape) != 4 or weight.shape[2:] != (1, 1) or any(pad) or stride != (1, 1):
        return False
    types = {array.dtype for array in (data, weight, out)}
    if len(types) > 1 or not types <= set(NARROW):
        return False
    return data.channels_last and out.channels_last and weight.strides[:2] == (weight.shape[1], 1)


def _positions(out: MemoryFormat) -> int:
    return math.prod((out.shape[0], *out.shape[2:]))


def forward_as_product(
    data: MemoryFormat, weight: MemoryFormat, bias: MemoryFormat | None, out: MemoryFormat, window: _Window
) -> HalfProduct | None:
    """The product of a convolution, of arrays data, weight, out and bias if any; None where it is none, or slower."""
    positions, (filters, channels) = _positions(out), weight.shape[:2]
    if not _is_pointwise(data, weight, out, window) or positions > MAX_POSITIONS:
        return None
    return half_product(numpy_dtype(data.dtype), (positions, channels, filters), bias is not None, (False, True))


def data_as_product(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: _Window
) -> HalfProduct | None:
    """The product of the gradient of data, of arrays gout, weight and the gradient."""
    positions, (filters, channels) = _positions(gout), weight.shape[:2]
    if not _is_pointwise(data, weight, gout, window) or positions > MAX_POSITIONS:
        return None
    return half_product(numpy_dtype(data.dtype), (positions, filters, channels), False, (False, False))


def weight_as_product(
    gout: MemoryFormat, data: MemoryFormat, weight: MemoryFormat, bias: MemoryFormat | None, window: _Window
) -> HalfProduct | None:
    """The product of the gradient of a weight, of arrays gout, data and the gradient, where there is no bias."""
    positions, (filters, channels) = _positions(gout), weight.shape[:2]
    if bias is not None or not _is_pointwise(data, weight, gout, window) or positions < MIN_TERMS:
        return None
    return half_product(numpy_dtype(data.dtype), (filters, positions, channels), False, (True, False))
