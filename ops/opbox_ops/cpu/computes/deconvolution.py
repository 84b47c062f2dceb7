"""Deconvolution by convolutions: it is the gradient of one with respect to its data, as a layer.

    out = gradient of data(data, weight) + bias     gdata = convolution(gout, weight)     gweight = gradient of weight

of the convolution from out to data, with its groups, dilation and one to three dimensions, channels second or last.
Where windows do not overlap, or data is a few positions, NumPy's products are the faster ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...bound_calls import as_one
from ...compute import PLAIN, Arrays, ArraySpec, CallSpec, Kernel, OpContext, Outputs
from ...layout import physical_arrays, share_layout
from ...nn.deconvolution import DeconvolutionParams, backward, op, window_of
from ...nn.window import channels_first, is_last
from ..runtime.memory_format import MemoryFormat, memory_of
from ..runtime.packed_runs import bind_in_order
from .by_images import ConvolutionKernel, DataGradientKernel, WeightGradientKernel
from .convolution import backward_data_kernel, backward_weight_kernel, plain_forward_kernel, type_for_convolutions

MIN_POSITIONS = 4
"""Minimum number of positions of an image of data for oneDNN. 64 images of 1 x 1, 100 channels to 512 by 4 x 4, take
12.6 ms forward and 36.9 backward by oneDNN, and 6.2 and 11.0 by NumPy. By stride 2 and 2 x 2,
2 images of 14 x 14, 512 channels to 256: 10.2 and 13.3, 8.1 and 12.0."""

MAX_NUMBERS_PER_POSITION = 4096
"""Maximum number of elements of a bfloat16 weight, per position of data, that oneDNN reads as they are. 16 images of 4
x 4, 512 channels to 256 by 4 x 4 (8,192): 4.7 ms forward and 14.9 with gradients, by way of float32 3.4 and 11.2, as
the weight is reordered in 1.8; of 8 x 8, 256 channels to 128 (512): 1.3 ms and, by way of float32, 3.5."""


class _Memories(NamedTuple):
    """Descriptions of data, weight and out, and the window of the convolution from out to data."""

    data: MemoryFormat
    weight: MemoryFormat
    out: MemoryFormat
    window: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _memories(
    p: DeconvolutionParams, call: CallSpec, data: ArraySpec, weight: ArraySpec, out: ArraySpec
) -> _Memories | None:
    """None for arrays that oneDNN does not take."""
    dtype = type_for_convolutions(call)
    if dtype is None:
        return None
    spatial = (channels_first(data.shape, p.layout) or ())[2:]
    if dtype != np.float32:
        large = math.prod(weight.shape) > MAX_NUMBERS_PER_POSITION * data.shape[0] * math.prod(spatial)
        if large or not p.no_bias:
            return None  # a bias is added behind the rounding
    window = window_of(p, spatial)
    stride, dilate, pad = window
    if math.prod(spatial) < MIN_POSITIONS or all(s >= k for s, k in zip(stride, p.kernel, strict=True)):
        return None
    if any(q > d * (k - 1) for q, d, k in zip(pad, dilate, p.kernel, strict=True)):
        return None  # an output may be far larger than data then, and one call very long
    order = (0, len(p.kernel) + 1, *range(1, len(p.kernel) + 1)) if is_last(p.layout) else None
    memory = memory_of(weight, order)
    if p.num_group > 1:
        channels = memory.shape[0] // p.num_group
        shape = (p.num_group, channels, *memory.shape[1:])
        memory = MemoryFormat(shape, (channels * memory.strides[0], *memory.strides), memory.dtype)
    return _Memories(memory_of(data, order), memory, memory_of(out, order), window)


@op.kernel("cpu", level="library")
def _(p: DeconvolutionParams, call: CallSpec) -> Kernel | None:
    if not share_layout(call, (0,), (0,)):
        return None
    memories = _memories(p, call, call.inputs[0], call.inputs[1], call.outputs[0])
    kernel = None if memories is None else backward_data_kernel(*memories)
    return None if kernel is None else Kernel(partial(_bind, kernel), tuple(kernel.temps))


def _bind(
    kernel: DataGradientKernel, p: DeconvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    inputs, (out,) = physical_arrays(ctx.call, inputs, outputs)
    runs = kernel.bind(ctx.temp, (*inputs[:2], out))
    if p.no_bias:
        return runs
    bias = inputs[2] if _is_channels_last(p, ctx.call) else inputs[2].reshape(-1, *(1,) * (out.ndim - 2))

    def call() -> None:
        runs()
        np.add(out, bias, out=out)

    return call


def _is_channels_last(p: DeconvolutionParams, call: CallSpec) -> bool:
    """Return whether the channels of the arrays as they lie, data or gout and all others, come last."""
    return is_last(p.layout) or call.inputs[0].layout != PLAIN


def _gradients(
    p: DeconvolutionParams, call: CallSpec
) -> tuple[ConvolutionKernel | None, WeightGradientKernel | None] | None:
    """Return the kernels of the wanted gradients of data and of weight; None where oneDNN has no implementation."""
    if not share_layout(call, (0, 1), (0,)):
        return None
    memories = _memories(p, call, call.inputs[1], call.inputs[2], call.inputs[0])
    if memories is None:
        return None
    data, weight, out, window = memories
    of_data = plain_forward_kernel(out, weight, data, window) if call.wants(0) else None
    of_weight = backward_weight_kernel(data, out, weight, window) if call.wants(1) else None
    missing = (call.wants(0) and of_data is None) or (call.wants(1) and of_weight is None)
    return None if missing else (of_data, of_weight)


@backward.kernel("cpu", level="library")
def _(p: DeconvolutionParams, call: CallSpec) -> Kernel | None:
    kernels = _gradients(p, call)
    if kernels is None:
        return None
    temps = [temp for kernel in kernels if kernel is not None for temp in kernel.temps]
    return Kernel(partial(_bind_gradients, kernels), tuple(temps))


def _bind_gradients(
    kernels: tuple[ConvolutionKernel | None, WeightGradientKernel | None],
    p: DeconvolutionParams,
    ctx: OpContext,
    inputs: Arrays,
    outputs: Outputs,
) -> Callable[[], Any]:
    (gout, data, weight), outputs = physical_arrays(ctx.call, inputs, outputs)
    arrays = (gout, weight, outputs[0]), (data, gout, outputs[1])
    runs = bind_in_order(kernels, ctx.temp, arrays)
    if not p.no_bias and outputs[2] is not None:
        channels = gout.ndim - 1 if _is_channels_last(p, ctx.call) else 1
        axes = tuple([axis for axis in range(gout.ndim) if axis != channels])
        runs.append(lambda: np.sum(gout, axis=axes, out=outputs[2]))
    return as_one(runs)
