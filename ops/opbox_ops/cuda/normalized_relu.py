"""BatchNorm and the ReLU behind it on a GPU: the kernels of `batch_norm` and `batch_norm_last`, told to rectify.

Neither ReLU's input nor its gradient is in any array: backward works out from data where that input was above 0.
Results have the bits of two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..layout import CHANNELS_LAST, physical_arrays
from ..nn.normalized_relu import NORMALIZED_RELU, NORMALIZED_RELU_BACKWARD, NormalizedReluParams
from . import batch_norm, batch_norm_last
from .batch_norm import backward_temps as plain_backward_temps
from .batch_norm import forward_temps as plain_forward_temps


def _by_rows(p: NormalizedReluParams, call: CallSpec) -> bool:
    """Return whether channels lie last."""
    return call.inputs[0].layout == CHANNELS_LAST or batch_norm.by_last_axis(p.params, call)


def _forward_temps(p: NormalizedReluParams, call: CallSpec) -> list[Temp]:
    return batch_norm_last.forward_temps(p.params, call) if _by_rows(p, call) else plain_forward_temps(p.params, call)


def _backward_temps(p: NormalizedReluParams, call: CallSpec) -> list[Temp]:
    return batch_norm_last.backward_temps(p.params, call) if _by_rows(p, call) else plain_backward_temps(p.params, call)


def _accepts(p: NormalizedReluParams, call: CallSpec) -> bool:
    """True for all that the plan pass joins: calls that the kernels of BatchNorm alone take."""
    return True


@NORMALIZED_RELU.compute("gpu", prepares=True, accepts=_accepts, temps=_forward_temps)
def _(p: NormalizedReluParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    kernels: Any = batch_norm_last if _by_rows(p, ctx.call) else batch_norm
    call: Callable[[], Any] = kernels.bind_forward(p.params, ctx, inputs, outputs, relu=True)
    return call


@NORMALIZED_RELU_BACKWARD.compute("gpu", prepares=True, accepts=_accepts, temps=_backward_temps)
def _(p: NormalizedReluParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, _ = physical_arrays(ctx.call, inputs, outputs)
    addend = arrays.pop() if p.adds else None
    if _by_rows(p, ctx.call):
        return batch_norm_last.bind_backward(p.params, ctx, arrays, outputs, relu=True, addend=addend)
    beta = arrays.pop(3)
    call: Callable[[], Any] = batch_norm.bind_backward(p.params, ctx, arrays, outputs, beta=beta, addend=addend)
    return call
