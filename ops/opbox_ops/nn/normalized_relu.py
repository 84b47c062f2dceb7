"""BatchNorm and the ReLU behind it as one step, forward and backward, as a plan pass has it.

    data, gamma, beta, moving_mean, moving_var -> relu(BatchNorm(data)), mean, var
    gout, data, gamma, beta, mean, var, moving_mean, moving_var, addend if any -> gdata + addend, ggamma, gbeta

on a CPU of float32 with the channels last. Backward works out again where ReLU's input was above 0, from
data, which BatchNorm's gradient reads anyway: neither that input nor its gradient is in any array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..compute import Array, Arrays, ArraySpec, CallSpec, Kernel, OpContext, Outputs, Temp
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


def is_for_sweeps(p: BatchNormParams, call: CallSpec, data: ArraySpec) -> bool:
    """True if a BatchNorm over such data is for the CPU's sweeps: NumPy adds a single channel up in another order."""
    alike = data.dtype == np.float32 and all(spec.dtype == data.dtype for spec in call.inputs)
    return data.layout == CHANNELS_LAST and p.axis == 1 and alike and data.shape[1] > 1


def sweeps_of(data: ArraySpec) -> NormSweeps:
    """The sweeps over such data."""
    return NormSweeps(data.shape[0] * int(np.prod(data.shape[2:])), data.shape[1])


def norm_of(p: BatchNormParams) -> Norm:
    """What the sweeps read of BatchNorm's parameters."""
    return Norm(p.eps, p.momentum, p.fix_gamma)


def _matrix(array: Array, spec: ArraySpec) -> Array:
    """The array as a matrix (positions, channels)."""
    return physical(array, spec.layout).reshape(-1, spec.shape[1])


@NORMALIZED_RELU.kernel("cpu")
def _(p: NormalizedReluParams, call: CallSpec) -> Kernel | None:
    # Mean and variance where they are unwanted outputs, variance, scale, and the sweeps' temporaries.
    sweeps, channels = sweeps_of(call.inputs[0]), Temp(call.inputs[1].shape)
    return Kernel(partial(_bind, sweeps), (*[channels] * 4, *sweeps.forward_temps))


def _bind(
    sweeps: NormSweeps, p: NormalizedReluParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    norm, (mean, inverse, variance, scale, *scratches) = p.params, ctx.temp
    mean, inverse = (
        scratch if out is None else out for scratch, out in zip((mean, inverse), outputs[1:3], strict=True)
    )
    x, y = _matrix(inputs[0], ctx.call.inputs[0]), _matrix(outputs[0], ctx.call.outputs[0])
    forward = sweeps.forward(norm_of(norm), x, y, inputs[1:], (mean, inverse, variance, scale), scratches)

    def run() -> None:
        settle_gamma(norm, ctx, inputs[1], outputs)
        forward(ctx.is_train and not norm.use_global_stats)

    return run


@NORMALIZED_RELU_BACKWARD.kernel("cpu")
def _(p: NormalizedReluParams, call: CallSpec) -> Kernel | None:
    # Scale, ggamma, gbeta, share, less, gdata where it is unwanted, and the sweeps' temporaries.
    sweeps = sweeps_of(call.inputs[1])
    return Kernel(partial(_bind_gradients, sweeps), (*[Temp(call.inputs[2].shape)] * 5, *sweeps.temps))


def _bind_gradients(
    sweeps: NormSweeps, p: NormalizedReluParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> Callable[[], None]:
    gout, data, gamma, beta, mean, inverse, moving_mean, moving_var, *addend = inputs
    specs, norm = ctx.call.inputs, p.params
    gx = None if outputs[0] is None else _matrix(outputs[0], ctx.call.outputs[0])
    added = _matrix(addend[0], specs[8]) if addend else None
    backward = sweeps.backward(
        norm_of(norm),
        (_matrix(data, specs[1]), _matrix(gout, specs[0]), added, gx),
        (gamma, beta, moving_mean, moving_var, mean, inverse),
        (outputs[1], outputs[2]),
        ctx.temp[:5],
        ctx.temp[5:],
    )
    return lambda: backward(ctx.is_train and not norm.use_global_stats)
