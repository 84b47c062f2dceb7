"""BatchNorm and the ReLU behind it as one step, forward and backward, as a plan pass has it.

    data, gamma, beta, moving_mean, moving_var -> relu(BatchNorm(data)), mean, var
    gout, data, gamma, beta, mean, var, moving_mean, moving_var, addend if any -> gdata + addend, ggamma, gbeta

of float32 with the channels last. Backward works out again where ReLU's input was above 0, from data, which BatchNorm's
gradient reads anyway: neither that input nor its gradient is in any array.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..cpu.algorithms.norm_sweeps import Norm, NormSweeps
from ..layout import CHANNELS_LAST, physical
from ..operator import Op
from ..params import Params
from .batch_norm import BatchNormParams, settle_gamma

__all__ = [
    "NORMALIZED_RELU",
    "NORMALIZED_RELU_BACKWARD",
    "NormalizedReluParams",
    "is_for_sweeps",
    "norm_of",
    "sweeps_of",
]


class NormalizedReluParams(Params):
    params: Any
    """BatchNorm's."""
    adds: bool = False
    """Whether backward has an addend."""


_STATES = ("moving_mean", "moving_var")

NORMALIZED_RELU = Op(
    "_normalized_relu",
    NormalizedReluParams,
    lambda p: ["data", "gamma", "beta", *_STATES],
    lambda p: ["output", "mean", "var"],
    (),
    "BatchNorm with ReLU.",
)
NORMALIZED_RELU_BACKWARD = Op(
    "_backward_normalized_relu",
    NormalizedReluParams,
    lambda p: ["ograd", "data", "gamma", "beta", "mean", "var", *_STATES, *(("addend",) if p.adds else ())],
    lambda p: ["data", "gamma", "beta"],
    (),
    "The gradients of BatchNorm with ReLU.",
)
NORMALIZED_RELU_BACKWARD.set_attr("FMutateInputs", lambda p: (6, 7))


def is_for_sweeps(p: BatchNormParams, data: ArraySpec) -> bool:
    """True if a BatchNorm over such data is for these sweeps: NumPy adds a single channel up in another order."""
    return data.layout == CHANNELS_LAST and p.axis == 1 and data.dtype == np.float32 and data.shape[1] > 1


def sweeps_of(data: ArraySpec) -> NormSweeps:
    """The sweeps over such data."""
    return NormSweeps(data.shape[0] * int(np.prod(data.shape[2:])), data.shape[1])


def norm_of(p: BatchNormParams) -> Norm:
    """What the sweeps read of BatchNorm's parameters."""
    return Norm(p.eps, p.momentum, p.fix_gamma)


def _matrix(array: Array, spec: ArraySpec) -> Array:
    """The array as a matrix (positions, channels)."""
    return physical(array, spec.layout).reshape(-1, spec.shape[1])


def _forward_temps(p: NormalizedReluParams, call: CallSpec) -> list[Temp]:
    """Temporaries of forward: mean and var where they are unwanted outputs, variance, scale, and the sweeps'."""
    room = Temp(call.inputs[1].shape)
    return [room, room, room, room, *sweeps_of(call.inputs[0]).forward_temps]


@NORMALIZED_RELU.compute("cpu", temps=_forward_temps, accepts=lambda p, call: True, prepares=True)
def _(p: NormalizedReluParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Any:
    norm, sweeps, (mean, inverse, variance, scale, *rooms) = p.params, sweeps_of(ctx.call.inputs[0]), ctx.temp
    mean, inverse = (room if out is None else out for room, out in zip((mean, inverse), outputs[1:3], strict=True))
    x, y = _matrix(inputs[0], ctx.call.inputs[0]), _matrix(outputs[0], ctx.call.outputs[0])
    forward = sweeps.forward(norm_of(norm), x, y, inputs[1:], (mean, inverse, variance, scale), rooms)

    def run() -> None:
        settle_gamma(norm, ctx, inputs[1], outputs)
        forward(ctx.is_train and not norm.use_global_stats)

    return run


def _backward_temps(p: NormalizedReluParams, call: CallSpec) -> list[Temp]:
    """Temporaries of backward: scale, ggamma, gbeta, share, less, gdata where it is unwanted, and the sweeps'."""
    return [*[Temp(call.inputs[2].shape)] * 5, *sweeps_of(call.inputs[1]).temps]


@NORMALIZED_RELU_BACKWARD.compute("cpu", temps=_backward_temps, accepts=lambda p, call: True, prepares=True)
def _(p: NormalizedReluParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Any:
    gout, data, gamma, beta, mean, inverse, moving_mean, moving_var, *addend = inputs
    specs, norm = ctx.call.inputs, p.params
    gx = None if outputs[0] is None else _matrix(outputs[0], ctx.call.outputs[0])
    added = _matrix(addend[0], specs[8]) if addend else None
    backward = sweeps_of(specs[1]).backward(
        norm_of(norm),
        (_matrix(data, specs[1]), _matrix(gout, specs[0]), added, gx),
        (gamma, beta, moving_mean, moving_var, mean, inverse),
        (outputs[1], outputs[2]),
        ctx.temp[:5],
        ctx.temp[5:],
    )
    return lambda: backward(ctx.is_train and not norm.use_global_stats)
