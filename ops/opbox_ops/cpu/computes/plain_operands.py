"""Operands and windows of convolutions that run by kernels of our own, which read all arrays as they lie."""

from __future__ import annotations

from numpy.lib.stride_tricks import as_strided

from ...compute import Array
from ..algorithms.window_sizes import WindowSizes
from ..onednn.library import ArgumentNumber
from ..onednn.primitive import Operand
from ..runtime.memory_format import MemoryFormat

__all__ = [
    "are_plain",
    "data_gradient_operands",
    "filters_first",
    "forward_operands",
    "weight_gradient_operands",
    "windows_of",
]


def are_plain(data: MemoryFormat, weight: MemoryFormat, out: MemoryFormat) -> bool:
    """Whether all are of float32, data and out have their channels last, and the weight lies as its shape says."""
    if {array.dtype for array in (data, weight, out)} != {"float32"} or not (data.channels_last and out.channels_last):
        return False
    return weight.strides == MemoryFormat.plain(weight.shape, "float32").strides


def forward_operands(
    data: MemoryFormat, weight: MemoryFormat, bias: MemoryFormat | None, out: MemoryFormat
) -> tuple[Operand, ...]:
    """Of arrays data, weight, out, and bias if any."""
    return (
        Operand(ArgumentNumber.SOURCE, data),
        Operand(ArgumentNumber.WEIGHTS, weight),
        Operand(ArgumentNumber.DESTINATION, out, written=True),
        *([] if bias is None else [Operand(ArgumentNumber.BIAS, bias)]),
    )


def data_gradient_operands(gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat) -> tuple[Operand, ...]:
    """Of arrays gout, weight and the gradient of data."""
    return (
        Operand(ArgumentNumber.DIFF_DESTINATION, gout),
        Operand(ArgumentNumber.WEIGHTS, weight),
        Operand(ArgumentNumber.DIFF_SOURCE, data, written=True),
    )


def weight_gradient_operands(
    gout: MemoryFormat, data: MemoryFormat, weight: MemoryFormat, bias: MemoryFormat | None
) -> tuple[Operand, ...]:
    """Of arrays gout, data, and the gradients of weight and, if any, of bias."""
    return (
        Operand(ArgumentNumber.DIFF_DESTINATION, gout),
        Operand(ArgumentNumber.SOURCE, data),
        Operand(ArgumentNumber.DIFF_WEIGHTS, weight, written=True),
        *([] if bias is None else [Operand(ArgumentNumber.DIFF_BIAS, bias, written=True)]),
    )


def filters_first(weight: Array, memory: MemoryFormat) -> Array:
    """A weight, or its gradient, as (filters, channels, *kernel), however it lies."""
    return as_strided(weight, memory.shape, [step * weight.itemsize for step in memory.strides])


def windows_of(
    data: MemoryFormat, weight: MemoryFormat, out: MemoryFormat, window: tuple[tuple[int, ...], ...]
) -> WindowSizes:
    """The sizes of a convolution's windows of two dimensions; `window` is stride, dilation and padding."""
    batch, channels, height, width = data.shape
    size, kernel, stride, dilate, pad = [(pair[0], pair[1]) for pair in (out.shape[2:], weight.shape[2:], *window)]
    return WindowSizes((batch, height, width, channels), size, kernel, stride, dilate, pad)
