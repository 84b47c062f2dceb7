"""Convolution that adds to an array by oneDNN: the sum is the primitive's post-operation.

    data, weight, bias, addend -> out = Convolution(data, weight, bias) + addend

The primitive adds to what is in the array that it writes: the addend itself, where the plan put both in one place, and
else a copy of it. Sums are in another order than in two steps: float32 agrees within its rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...compute import Array, Arrays, CallSpec, Kernel, OpContext, Outputs
from ...layout import physical
from ...nn.summed_convolution import SUMMED, SummedParams
from .by_images import ByImages, ConvolutionKernel
from .convolution import forward_kernel
from .pointwise_convolution import PointwiseConvolution


@SUMMED.kernel("cpu", level="library")
def _(p: SummedParams, call: CallSpec) -> Kernel | None:
    if p.call.outputs[0].dtype != np.float32:
        return None  # of another type the output is rounded before it is added
    kernel = forward_kernel(p.params, p.call, adds=True)
    if kernel is None:
        return None
    if not p.apart:
        return Kernel(partial(_bind, kernel), tuple(kernel.temps), kernel.packs)
    if not isinstance(kernel, PointwiseConvolution) or not kernel.adds_apart:
        return None
    return Kernel(partial(_bind_apart, kernel), kernel.temps, kernel.packs)


def _arrays(p: SummedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> tuple[list[Array], Array]:
    """The arrays of the kernel, and the addend; as they lie."""
    data, weight, *bias, addend = [physical(x, s.layout) for x, s in zip(inputs, ctx.call.inputs, strict=True)]
    out = physical(outputs[0], p.call.outputs[0].layout)
    return [data, weight, out, *bias], addend


def _bind_apart(
    kernel: PointwiseConvolution, p: SummedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    """The addend stays as it is."""
    arrays, addend = _arrays(p, ctx, inputs, outputs)
    if ctx.packs:
        return kernel.packed(ctx.temp, arrays, ctx.mode, addend)
    return kernel.bind(ctx.temp, arrays, addend)


def _bind(
    kernel: ConvolutionKernel, p: SummedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], Any]:
    arrays, addend = _arrays(p, ctx, inputs, outputs)
    runs: Callable[[], Any]
    if ctx.packs and not isinstance(kernel, ByImages):
        runs = kernel.packed(ctx.temp, arrays, ctx.mode)
    else:
        runs = kernel.bind(ctx.temp, arrays)
    out = arrays[2]
    if addend.ctypes.data == out.ctypes.data:
        return runs

    def call_on_a_copy() -> None:
        np.copyto(out, addend)
        runs()

    return call_on_a_copy
