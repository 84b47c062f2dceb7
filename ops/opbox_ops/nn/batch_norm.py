"""BatchNorm: out = gamma (data - mean) / sqrt(variance + eps) + beta, each channel for itself.

data and out have one shape, gamma, beta, moving_mean and moving_var are (channel,), channel being data's dimension
`axis`. In training mean and variance are those of the batch, otherwise, and with use_global_stats, the moving ones.
The outputs mean and var, hidden unless output_mean_var, hold the mean and 1 / sqrt(variance + eps) that were used.
With fix_gamma gamma counts as 1, and its gradient is 0; it is set to 1 in training where the output mean is wanted, as
it is by backward, and stays as it is elsewhere. With n elements a channel, x = (data - mean) var:

    gbeta = sum gout      ggamma = sum gout x      gdata = gamma var (gout - gbeta / n - x ggamma / n)

and gdata = gamma var gout with global statistics. As in MXNet, backward brings the moving statistics up to date:
moving = momentum moving + (1 - momentum) of the batch's, with the batch's biased variance.
Ioffe and Szegedy, "Batch Normalization" (2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from opbox_protocol.mxnet import STATE_INITIALIZERS

from ..accumulation import accumulation_type
from ..cache import CHANNEL_BLOCK
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis
from ..node import Entry, Node
from ..params import Bool, Field, Float, Int, OptFloat, Params
from ..registry import Slot, register, register_backward, when


class BatchNormParams(Params):
    eps: Float = Field(1e-3, description="Added to the variance.")
    momentum: Float = Field(0.9, description="Weight of the old moving statistics.")
    fix_gamma: Bool = Field(True, description="Keep gamma at 1.")
    use_global_stats: Bool = Field(False, description="Use the moving statistics in training too.")
    output_mean_var: Bool = Field(False, description="Show the outputs mean and var.")
    axis: Int = Field(1, description="The axis of the channels.")
    cudnn_off: Bool = Field(False, description="Has no effect; for MXNet's files.")
    min_calib_range: OptFloat = Field(None, description="Has no effect; for MXNet's files.")
    max_calib_range: OptFloat = Field(None, description="Has no effect; for MXNet's files.")


_shown = when("output_mean_var")

op = register(
    "BatchNorm",
    BatchNormParams,
    inputs=("data", "gamma", "beta", Slot("moving_mean", aux=True), Slot("moving_var", aux=True)),
    outputs=("output", Slot("mean", visible=_shown), Slot("var", visible=_shown, doc="1 / sqrt(variance + eps)")),
).inplace((0, 0))
op.set_attr("FSetInputVarAttrOnCompose", STATE_INITIALIZERS)
op.set_attr("TSkipsUnread", True)
backward = register_backward("_backward_BatchNorm", BatchNormParams, outputs=("data", "gamma", "beta"))
backward.inplace((0, 0))
op.set_attr("FSpatialOperands", lambda p: ((0,), (0,)) if p.axis == 1 else None)
backward.set_attr("FSpatialOperands", lambda p: ((0, 1), (0,)) if p.axis == 1 else None)


@op.infer_shape
def infer_shapes(p: BatchNormParams, ins: ShapeList, outs: ShapeList) -> None:
    """data and out have one shape, all else is (channel,)."""
    shape = ins.merge(0, outs.merge(0, ins[0]))
    axis = None if shape is None else canonical_axis(p.axis, len(shape))
    channels: tuple[int, ...] = (-1,) if shape is None or axis is None else (shape[axis],)
    for slots, indices in ((ins, (1, 2, 3, 4)), (outs, (1, 2))) * 2:
        for i in indices:
            channels = slots.merge(i, channels) or channels
    if shape is not None and axis is not None:
        ins.merge(0, tuple(channels[0] if a == axis else d for a, d in enumerate(shape)))


@op.infer_type
def infer_types(p: BatchNormParams, ins: TypeList, outs: TypeList) -> None:
    """data and out have one type; all else is of the type that they are added up in."""
    dtype = ins.merge(0, outs.merge(0, ins.only(0, "float16", "float32", "float64", "bfloat16")))
    if dtype is not None:
        # Statistics and their parameters are at least single precision.
        statistics_type = accumulation_type(dtype)
        for i in (1, 2, 3, 4):
            ins.merge(i, statistics_type)
        for i in (1, 2):
            outs.merge(i, statistics_type)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    data, gamma, _, *moving = node.inputs
    inputs = [ograds[0], data, gamma, Entry(node, 1), Entry(node, 2), *moving]
    return backward_node("_backward_BatchNorm", node, inputs)


# Backward writes the moving statistics: its last two inputs.
backward.set_attr("FMutateInputs", lambda p: (5, 6))


class _Channels:
    """data's axes as (before, channel, after), and blocks of its channels."""

    def __init__(self, p: BatchNormParams, shape: tuple[int, ...], device: str) -> None:
        axis = p.axis % len(shape)
        self.shape = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        self.count = self.shape[0] * self.shape[2]
        # Along the last axis, a block of few channels would read a little of each cache line.
        least = 1 if self.shape[2] >= 16 else 64
        fits = max(least, CHANNEL_BLOCK // max(1, self.count)) if device == "cpu" else self.shape[1]
        self.block = min(self.shape[1], fits)
        # NumPy sums products as it makes them.
        self.products = device != "cpu"

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, self.shape[1], max(1, self.block)):
            yield slice(start, min(start + self.block, self.shape[1]))

    def temps(self, dtype: Any) -> list[Temp]:
        """Room for a block in the type that is computed in, for its sums along the last axis, and for its products."""
        size = self.count * self.block
        return [Temp((size,), dtype), Temp((self.shape[0] * self.block,), dtype), Temp((size * self.products,), dtype)]

    def cut(self, scratch: Array, channels: slice) -> Array:
        """The part of such room that `channels` take: (before, channel, after)."""
        shape = (self.shape[0], channels.stop - channels.start, self.shape[2])
        return scratch[: math.prod(shape)].reshape(shape)

    def total(self, ctx: OpContext, x: Array, channels: slice, out: Array, y: Array | None = None) -> None:
        """Write x, or x * y, summed over all but the channels, to the part `channels` of `out`."""
        xp, (_, sums, products, *_) = ctx.xp, ctx.temp
        count = channels.stop - channels.start
        sums = sums[: self.shape[0] * count].reshape(self.shape[0], count)
        if y is not None and self.products:
            x = xp.multiply(x, y, out=self.cut(products, channels))
            y = None
        if y is None:
            xp.sum(x, axis=2, dtype=sums.dtype, out=sums)
        else:
            xp.einsum("bca,bca->bc", x, y, out=sums)
        xp.sum(sums, axis=0, out=out[channels])


def _column(values: Array) -> Array:
    return values[:, None]


def forward_temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    """Temporaries beside a block's: the factor on the centred data, and statistics that are unwanted as outputs."""
    statistics = call.outputs[1]
    scratch = Temp(statistics.shape, statistics.dtype)
    unread = [scratch for k in (1, 2) if not call.wants(k)]
    return [*_Channels(p, call.inputs[0].shape, call.device).temps(statistics.dtype), scratch, *unread]


@op.compute(temps=forward_temps)
def forward(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, relu: bool = False) -> None:
    """Write out, mean and var; with `relu`, out is max(0, out), and a fourth output is 1 where that is above 0."""
    xp = ctx.xp
    data, gamma, beta, moving_mean, moving_var = inputs
    settle_gamma(p, ctx, gamma, outputs)
    channels = _Channels(p, data.shape, ctx.backend.device_type)
    x = data.reshape(channels.shape)
    value = None if outputs[0] is None else outputs[0].reshape(channels.shape)
    mask = outputs[3].view(bool).reshape(channels.shape) if relu and outputs[3] is not None else None
    of_batch = ctx.is_train and not p.use_global_stats
    n = max(1, channels.count)
    factor, *unread = ctx.temp[3:]
    mean, inverse = (unread.pop() if out is None else out for out in outputs[1:3])
    if not of_batch:
        xp.copyto(mean, moving_mean)
        invert(xp, moving_var, p.eps, inverse)
    for block in channels:
        centred = channels.cut(ctx.temp[0], block)
        if of_batch:
            xp.copyto(centred, x[:, block])
            channels.total(ctx, centred, block, mean)
            mean[block] /= n
            xp.subtract(centred, _column(mean[block]), out=centred)
            channels.total(ctx, centred, block, inverse, centred)
            inverse[block] /= n
            invert(xp, inverse[block], p.eps, inverse[block])
        else:
            xp.subtract(x[:, block], _column(mean[block]), out=centred)
        if value is not None or mask is not None:
            centred *= _column(_scale(p, xp, inverse[block], gamma[block], factor[block]))
            centred += _column(beta[block])
            if mask is not None:
                xp.greater(centred, 0, out=mask[:, block])
            if value is not None:
                value[:, block] = xp.maximum(centred, 0, out=centred) if relu else centred


def settle_gamma(p: BatchNormParams, ctx: OpContext, gamma: Array, outputs: Outputs) -> None:
    """Set gamma to 1 in training, where it is fixed and the output mean is wanted, unless it is read-only."""
    if p.fix_gamma and ctx.is_train and outputs[1] is not None and getattr(gamma.flags, "writeable", True):
        gamma[...] = 1


def invert(xp: Any, variance: Array, eps: float, out: Array) -> None:
    """out = 1 / sqrt(variance + eps)"""
    xp.add(variance, eps, out=out)
    xp.sqrt(out, out=out)
    xp.reciprocal(out, out=out)


def _scale(p: BatchNormParams, xp: Any, inverse: Array, gamma: Array, out: Array) -> Array:
    """The factor on what is centred: inverse * gamma."""
    return inverse if p.fix_gamma else xp.multiply(inverse, gamma, out=out)


def backward_temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    """Beside a block's: a factor, ggamma, gbeta, 1 / sqrt(variance + eps), and gout in the type that is computed in."""
    gout, data, _, mean = call.inputs[:4]
    block = _Channels(p, data.shape, call.device).temps(mean.dtype)
    scratch = Temp(mean.shape, mean.dtype)
    return [*block, *[scratch] * 4, *([] if gout.dtype == mean.dtype else block[:1])]


@backward.compute(temps=backward_temps)
def gradients(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, mask: Array | None = None) -> None:
    """Write gdata, ggamma and gbeta, and the moving statistics; gout counts where `mask`, of data's shape, is 1."""
    xp = ctx.xp
    gout, data, gamma, mean, inverse, moving_mean, moving_var = inputs
    channels = _Channels(p, data.shape, ctx.backend.device_type)
    n = max(1, channels.count)
    x, g = data.reshape(channels.shape), gout.reshape(channels.shape)
    value = None if outputs[0] is None else outputs[0].reshape(channels.shape)
    of_batch = ctx.is_train and not p.use_global_stats
    factor, ggamma, gbeta, moving_inverse, *scratch = ctx.temp[3:]
    if not of_batch:  # also behind a forward in training
        mean, inverse = moving_mean, moving_inverse
        invert(xp, moving_var, p.eps, inverse)
    for block in channels:
        centred, gblock = channels.cut(ctx.temp[0], block), g[:, block]
        if scratch:
            gblock = channels.cut(scratch[0], block)
            xp.copyto(gblock, g[:, block])
            if mask is not None:
                gblock *= mask.reshape(channels.shape)[:, block]
        xp.subtract(x[:, block], _column(mean[block]), out=centred)
        channels.total(ctx, gblock, block, gbeta)
        channels.total(ctx, gblock, block, ggamma, centred)
        ggamma[block] *= inverse[block]
        if value is None:
            continue
        if of_batch:
            share = xp.multiply(ggamma[block], inverse[block], out=factor[block])
            share *= -1 / n
            centred *= _column(share)
            centred += gblock
            xp.multiply(gbeta[block], 1 / n, out=share)
            centred -= _column(share)
        else:
            xp.copyto(centred, gblock)
        centred *= _column(_scale(p, xp, inverse[block], gamma[block], factor[block]))
        value[:, block] = centred
    if outputs[1] is not None:
        outputs[1][...] = 0 if p.fix_gamma else ggamma
    if outputs[2] is not None:
        outputs[2][...] = gbeta
    if of_batch and channels.count:
        move(xp, moving_mean, mean, p.momentum, factor)
        xp.square(inverse, out=gbeta)
        xp.reciprocal(gbeta, out=gbeta)
        gbeta -= p.eps
        move(xp, moving_var, gbeta, p.momentum, factor)


def move(xp: Any, moving: Array, batch: Array, momentum: float, scratch: Array) -> None:
    moving *= momentum
    moving += xp.multiply(batch, 1 - momentum, out=scratch)
