"""BatchNorm and the ReLU behind it on a GPU, channels last: the kernels of `batch_norm_last`, told to rectify.

Neither ReLU's input nor its gradient is in any array: backward works out from data where that input was above 0.
Results have the bits of two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..layout import physical_arrays
from ..nn.normalized_relu import NORMALIZED_RELU, NORMALIZED_RELU_BACKWARD, NormalizedReluParams
from .batch_norm_last import accepts, backward_temps, bind_backward, bind_forward, forward_temps


def _forward_accepts(p: NormalizedReluParams, call: CallSpec) -> bool:
    return accepts(p.params, call, (0,))


def _backward_accepts(p: NormalizedReluParams, call: CallSpec) -> bool:
    return accepts(p.params, call, (0, 1, 8) if p.adds else (0, 1))


def _forward_temps(p: NormalizedReluParams, call: CallSpec) -> list[Temp]:
    return forward_temps(p.params, call)


def _backward_temps(p: NormalizedReluParams, call: CallSpec) -> list[Temp]:
    return backward_temps(p.params, call)


@NORMALIZED_RELU.compute("gpu", prepares=True, accepts=_forward_accepts, temps=_forward_temps)
def _(p: NormalizedReluParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    call: Callable[[], Any] = bind_forward(p.params, ctx, inputs, outputs, relu=True)
    return call


@NORMALIZED_RELU_BACKWARD.compute("gpu", prepares=True, accepts=_backward_accepts, temps=_backward_temps)
def _(p: NormalizedReluParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, _ = physical_arrays(ctx.call, inputs, outputs)
    addend = arrays.pop() if p.adds else None
    return bind_backward(p.params, ctx, arrays, outputs, relu=True, addend=addend)
