"""Gradients of the weights of convolutions over images with few channels, where rows of out are long.

oneDNN's kernels without AVX-512 are for sums of many channels. Two threads, ms, oneDNN and in C: 8 images of 224 x 224
x 3, 64 filters of 7 x 7 with stride 2 20.7 and 14.0, of 3 x 3 47.0 and 19.8; 1 image of 224 x 224 x 3, of 3 x 3 6.0
and 2.2; 64 of 32 x 32 x 3, 32 filters of 3 x 3 1.1 and 1.4. Sums of many positions are added in parts: a seventh of
the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...call_list import CallList
from ...compute import Array, Temp
from ..algorithms.column_sums import column_sums
from ..algorithms.short_rows import LONGEST, ShortRows, short_rows
from ..algorithms.window_sizes import WindowSizes
from ..onednn.primitive import Operand
from ..runtime.memory_format import MemoryFormat
from .plain_operands import filters_first, weight_gradient_operands, windows_of
from .product import has_fast_kernels

__all__ = ["IMPLEMENTATION", "ShortRowsGradient", "short_rows_gradient"]

IMPLEMENTATION = "short rows"
LONG = 4096
"""Numbers of a row of out. Below, what a row takes beside its multiplications is more than oneDNN loses."""


@dataclass(frozen=True, slots=True)
class ShortRowsGradient:
    """A kernel for the gradients of weight and, if any, of bias; of arrays gout, data, and the gradients.

    It has the methods of a `PrimitiveKernel`.

    Attributes:
        kernel: the compiled function.
        windows: the convolution's.
        filters: channels of out.
        operands: as in a `PrimitiveKernel`.
    """

    kernel: ShortRows
    windows: WindowSizes
    filters: int
    operands: tuple[Operand, ...]

    @property
    def implementation(self) -> str:
        return IMPLEMENTATION

    @property
    def packs(self) -> tuple[tuple[int, int], ...]:
        """None."""
        return ()

    @property
    def temps(self) -> tuple[Temp, ...]:
        """Sums, and rows of data with their padding."""
        return tuple([Temp((size,)) for size in self.kernel.scratch(self.windows, self.filters)])

    def bind(self, temps: Sequence[Array], arrays: Sequence[Array]) -> CallList:
        """Return a call that writes the gradients; arguments are those of `PrimitiveKernel.bind`."""
        gout, data, gweight, *gbias = arrays
        runs, (sums, rows) = CallList(), temps
        gout, data = runs.contiguous(gout), runs.contiguous(data)
        target = filters_first(gweight, self.operands[2].memory)
        runs.calls.append(self.kernel.gradient(self.windows, (gout, data, target), (sums, rows)))
        if gbias:
            runs.calls.append(column_sums(gout.reshape(-1, self.filters), gbias[0]))
        return runs


def short_rows_gradient(
    gout: MemoryFormat,
    data: MemoryFormat,
    weight: MemoryFormat,
    bias: MemoryFormat | None,
    window: tuple[tuple[int, ...], ...],
) -> ShortRowsGradient | None:
    """Return the kernel of the gradient of a weight; None where the kernel cannot compute it, or oneDNN is the faster.

    The arrays are as oneDNN takes them, the channels second; `window` is stride, dilation and padding.
    """
    if len(weight.shape) != 4 or {array.dtype for array in (gout, data, weight)} != {"float32"}:
        return None
    if not (data.channels_last and gout.channels_last) or has_fast_kernels():
        return None
    windows, filters = windows_of(data, weight, gout, window), gout.shape[1]
    span = windows.kernel[1] * windows.data[3]
    if windows.dilate[1] != 1 or span > LONGEST or windows.out[1] * filters < LONG:
        return None
    function = short_rows()
    if function is None:
        return None
    return ShortRowsGradient(function, windows, filters, weight_gradient_operands(gout, data, weight, bias))
