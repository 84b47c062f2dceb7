"""oneDNN's convolution and its gradients, made from the memory formats of their arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..runtime.memory_format import MemoryFormat
from .cache import MAX_CACHED_KERNELS
from .library import Algorithm, ArgumentNumber, Propagation, Query, dims
from .primitive import Operand, PrimitiveKernel

__all__ = ["convolution_forward", "convolution_backward_data", "convolution_backward_weights"]

_Window = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Stride, dilation and padding."""


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def convolution_forward(
    data: MemoryFormat,
    weight: MemoryFormat,
    bias: MemoryFormat | None,
    out: MemoryFormat,
    window: _Window,
    adds: bool = False,
) -> PrimitiveKernel | None:
    """A convolution, of arrays data, weight, out and bias if any; with `adds` it adds to what is in out."""
    operands = [
        Operand(ArgumentNumber.SOURCE, data),
        Operand(ArgumentNumber.WEIGHTS, weight, Query.WEIGHTS, free=True),
        Operand(ArgumentNumber.DESTINATION, out, written=True),
        *([] if bias is None else [Operand(ArgumentNumber.BIAS, bias)]),
    ]

    def arguments(source: int, weights: int, target: int, added: int | None = None) -> tuple[Any, ...]:
        kind = (Propagation.TRAINING, Algorithm.CONVOLUTION_DIRECT)
        return (*kind, source, weights, added, target, *_window(window))

    return PrimitiveKernel.of("convolution_forward", operands, arguments, adds=adds)


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def convolution_backward_data(
    gout: MemoryFormat, weight: MemoryFormat, data: MemoryFormat, window: _Window
) -> PrimitiveKernel | None:
    """The gradient of a convolution's data, of arrays gout, weight and the gradient."""
    operands = [
        Operand(ArgumentNumber.DIFF_DESTINATION, gout),
        Operand(ArgumentNumber.WEIGHTS, weight, Query.WEIGHTS, free=True),
        Operand(ArgumentNumber.DIFF_SOURCE, data, written=True),
    ]

    def arguments(target: int, weights: int, source: int) -> tuple[Any, ...]:
        return (Algorithm.CONVOLUTION_DIRECT, source, weights, target, *_window(window))

    hint = convolution_forward(data, weight, None, gout, window)
    return None if hint is None else PrimitiveKernel.of("convolution_backward_data", operands, arguments, hint)


@lru_cache(maxsize=MAX_CACHED_KERNELS)
def convolution_backward_weights(
    gout: MemoryFormat, data: MemoryFormat, weight: MemoryFormat, bias: MemoryFormat | None, window: _Window
) -> PrimitiveKernel | None:
    """The gradients of a convolution's weight and, if any, bias; of arrays gout, data and the gradients."""
    operands = [
        Operand(ArgumentNumber.DIFF_DESTINATION, gout),
        Operand(ArgumentNumber.SOURCE, data),
        Operand(ArgumentNumber.DIFF_WEIGHTS, weight, Query.DIFF_WEIGHTS, free=True, written=True),
        *([] if bias is None else [Operand(ArgumentNumber.DIFF_BIAS, bias, written=True)]),
    ]

    def arguments(target: int, source: int, weights: int, added: int | None = None) -> tuple[Any, ...]:
        return (Algorithm.CONVOLUTION_DIRECT, source, weights, added, target, *_window(window))

    hint = convolution_forward(data, weight, bias, gout, window)
    return None if hint is None else PrimitiveKernel.of("convolution_backward_weights", operands, arguments, hint)


def _window(window: _Window) -> list[Any]:
    """Stride, dilation, padding before and after, as oneDNN takes them: a dilation of 0 skips nothing."""
    stride, dilate, pad = window
    return [dims(numbers) for numbers in (stride, tuple(d - 1 for d in dilate), pad, pad)]
