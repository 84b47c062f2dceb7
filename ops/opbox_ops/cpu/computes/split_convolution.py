"""Convolutions by the processor's matrix unit, as products over windows that are nowhere laid out.

    out = windows @ weight.T + bias      (positions, taps * channels) @ (taps * channels, filters)
    gdata = windows of gout @ weight     the same where windows do not jump, with the weight turned round

Data and out have their channels last. The weight is packed tap by tap: once for inference, in each run of a training,
where that takes as long as the product if positions are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...call_list import CallList
from ...compute import Array, Mode, Temp
from ..algorithms.blocked_product import MANY_SPLIT, MAX_TAPS, MIN_COLUMNS, STEP, BlockedProduct, ProductSizes
from ..algorithms.window_sizes import WindowSizes
from ..onednn.primitive import Operand
from ..runtime.memory_format import MemoryFormat
from ..runtime.packed_runs import PackedRuns
from .plain_operands import are_plain, data_gradient_operands, forward_operands, windows_of
from .product import blocked_kernel

__all__ = ["IMPLEMENTATION", "SplitConvolution", "split_convolution", "split_data_gradient"]

IMPLEMENTATION = "split"

_Window = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class SplitConvolution:
    """A kernel for a convolution, of arrays data, weight, out and bias if any, or for the gradient of data.

    It has the methods of a `PrimitiveKernel`.

    Attributes:
        kernel: the compiled functions.
        windows: the convolution's, over data.
        filters: channels of out.
        operands: as in a `PrimitiveKernel`.
        adds: whether it adds to what is in out.
        rotated: whether it is the gradient of data, of arrays gout, weight and the gradient: a convolution of gout.
        relu: whether it writes the larger of the sum and 0; NaN stays NaN.
    """

    kernel: BlockedProduct
    windows: WindowSizes
    filters: int
    operands: tuple[Operand, ...]
    adds: bool = False
    rotated: bool = False
    relu: bool = False

    @property
    def implementation(self) -> str:
        return IMPLEMENTATION

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """The weight, whose packed copy is the first of `temps`."""
        return ((1, 0),)

    @property
    def sizes(self) -> ProductSizes:
        """The product's."""
        positions = self.windows.data[0] * math.prod(self.windows.out)
        return ProductSizes(positions, self.windows.columns, self.filters, (False, not self.rotated), reads_packed=True)

    @property
    def pays(self) -> bool:
        """Whether the matrix unit can compute it, beside so many positions that packing the weight is little.

        For fewer columns splitting the windows, a tap after the other, takes longer than the products. Two threads, ms,
        oneDNN and split: 8 x 56 x 56 x 64, 3 x 3 with stride 2, 32 filters 0.73 and 0.94, 48 0.96 and 1.08, 64 1.24 and
        1.21, 96 2.03 and 1.34; 8 x 56 x 56 x 32, 5 x 5, 32 filters 3.5 and 4.3, 64 8.0 and 5.2.
        """
        sizes = self.sizes
        return sizes.splits and sizes.rows >= MANY_SPLIT and sizes.columns >= MIN_COLUMNS

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The packed weight."""
        return (Temp((self.sizes.packed,)),)

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array], *, norm: Array | None = None) -> CallList:
        """Return a call that runs it; arguments are those of `PrimitiveKernel.bind`, `norm` of
        `BlockedProduct.product`."""
        pack, product = self._calls(temps[0], arrays, norm)
        pack.calls += product.calls
        return pack

    def packed(
        self, temps: Sequence[Array], arrays: Sequence[Array], mode: Mode, *, norm: Array | None = None
    ) -> PackedRuns:
        """The same, with the weight packed only where `mode` says that it is to be."""
        return PackedRuns(*self._calls(temps[0], arrays, norm), mode)

    def _calls(self, scratch: Array, arrays: Sequence[Array], norm: Array | None) -> tuple[CallList, CallList]:
        (data, weight, out, *bias), pack, runs = arrays, CallList(), CallList()
        weight = pack.contiguous(weight)
        pack.calls.append(self.kernel.pack_taps(self.sizes, weight, scratch, rotated=self.rotated))
        places = runs.contiguous(data), weight, runs.contiguous(bias[0]) if bias else None, out
        how: Any = {"adds": self.adds, "norm": norm, "relu": self.relu}
        runs.calls.append(self.kernel.product(self.sizes, places, packed=scratch, windows=self.windows, **how))
        return pack, runs


def split_convolution(
    data: MemoryFormat,
    weight: MemoryFormat,
    bias: MemoryFormat | None,
    out: MemoryFormat,
    window: _Window,
    adds: bool = False,
) -> SplitConvolution | None:
    """Return the kernel of a convolution; None where the matrix unit cannot compute it, or is not the faster.

    The arrays are as oneDNN takes them, the channels second; `window` is stride, dilation and padding. With `adds` it
    adds to what is in out.
    """
    kernel = _kernel(data, weight, out)
    if kernel is None:
        return None
    windows = windows_of(data, weight, out, window)
    chosen = SplitConvolution(kernel, windows, out.shape[1], forward_operands(data, weight, bias, out), adds)
    return chosen if chosen.pays else None


def split_data_gradient(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: _Window
) -> SplitConvolution | None:
    """Return the kernel of the gradient of data, as `split_convolution` does; None where windows jump."""
    stride, dilate, pad = window
    kernel = _kernel(gout, weight, data, rotated=True)
    if kernel is None or {*stride} != {1}:
        return None
    around = tuple([d * (k - 1) - p for d, k, p in zip(dilate, weight.shape[2:], pad, strict=True)])
    if min(around) < 0:
        return None
    windows = windows_of(gout, weight, data, (stride, dilate, around))
    operands = data_gradient_operands(gout, weight, data)
    chosen = SplitConvolution(kernel, windows, data.shape[1], operands, rotated=True)
    return chosen if chosen.pays else None


def _kernel(
    data: MemoryFormat, weight: MemoryFormat, out: MemoryFormat, rotated: bool = False
) -> BlockedProduct | None:
    """The compiled functions, where they can read such windows: of a convolution whose weight may be `rotated`."""
    if len(weight.shape) != 4 or weight.shape[1] != (out if rotated else data).shape[1]:
        return None
    if not are_plain(data, weight, out):
        return None
    if data.shape[1] % STEP or not math.prod(weight.shape[2:]) > 1 or max(weight.shape[2:]) > MAX_TAPS:
        return None
    return blocked_kernel()
