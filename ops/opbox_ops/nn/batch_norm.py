"""BatchNorm: out = gamma (data - mean) / sqrt(variance + eps) + beta, each channel for itself.

data and out have one shape, gamma, beta, moving_mean and moving_var are (channel,), channel being data's dimension
`axis`. In training mean and variance are those of the batch, otherwise, and with use_global_stats, the moving ones.
The outputs mean and var, hidden unless output_mean_var, hold the mean and 1 / sqrt(variance + eps) that were used.
With fix_gamma gamma is 1, is set to 1, and its gradient is 0. With n elements a channel, x = (data - mean) var:

    gbeta = sum gout      ggamma = sum gout x      gdata = gamma var (gout - gbeta / n - x ggamma / n)

and gdata = gamma var gout with global statistics. As in MXNet, backward brings the moving statistics up to date:
moving = momentum moving + (1 - momentum) of the batch's, with the batch's biased variance.
Ioffe and Szegedy, "Batch Normalization" (2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, Temp, assign
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis
from ..node import Entry, Node
from ..params import Bool, Field, Float, Int, OptFloat, Params
from ..registry import Slot, register, register_backward, when

BLOCK = 1 << 17
"""Elements of the channels that the CPU works on at once: what later passes read again is still in the cache."""


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
backward = register_backward("_backward_BatchNorm", BatchNormParams, outputs=("data", "gamma", "beta"))
backward.inplace((0, 0))


@op.infer_shape
def _(p: BatchNormParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    axis = None if shape is None else canonical_axis(p.axis, len(shape))
    channels: tuple[int, ...] = (-1,) if shape is None or axis is None else (shape[axis],)
    for slots, indices in ((ins, (1, 2, 3, 4)), (outs, (1, 2))) * 2:
        for i in indices:
            channels = slots.merge(i, channels) or channels
    if shape is not None and axis is not None:
        ins.merge(0, tuple(channels[0] if a == axis else d for a, d in enumerate(shape)))


@op.infer_type
def _(p: BatchNormParams, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.merge(0, outs.merge(0, ins.only(0, "float16", "float32", "float64", "bfloat16")))
    if dtype is not None:
        # Statistics and their parameters are at least single precision.
        kept = np.dtype("f") if dtype.itemsize < 4 else dtype
        for i in (1, 2, 3, 4):
            ins.merge(i, kept)
        for i in (1, 2):
            outs.merge(i, kept)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    data, gamma, _, *moving = node.inputs
    inputs = [ograds[0], data, gamma, Entry(node, 1), Entry(node, 2), *moving]
    return backward_node("_backward_BatchNorm", node, inputs)


# Backward writes the moving statistics: its last two inputs.
backward.set_attr("FMutateInputs", lambda p: (5, 6))


class _Channels:
    """data's axes as (before, channel, after), and blocks of its channels."""

    def __init__(self, p: BatchNormParams, shape: tuple[int, ...]) -> None:
        axis = p.axis % len(shape)
        self.shape = (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        self.count = self.shape[0] * self.shape[2]

    def block(self, gpu: bool) -> int:
        # Along the last axis, a block of few channels would read a little of each cache line.
        least = 1 if self.shape[2] >= 16 else 64
        return self.shape[1] if gpu else min(self.shape[1], max(least, BLOCK // max(1, self.count)))

    def blocks(self, ctx: OpContext) -> Iterator[slice]:
        size = self.block(ctx.backend.device_type != "cpu")
        for start in range(0, self.shape[1] if size else 0, max(1, size)):
            yield slice(start, min(start + size, self.shape[1]))

    def scratch(self, ctx: OpContext, channels: slice) -> Array:
        """A temporary for a block, in the type that is computed in; all of data's size on a GPU."""
        shape = (self.shape[0], channels.stop - channels.start, self.shape[2])
        size = math.prod(shape)
        space = ctx.temp[0] if ctx.temp[0].size >= size else ctx.xp.empty((size,), ctx.temp[0].dtype)
        return space[:size].reshape(shape)


def _temporary(p: BatchNormParams, shape: tuple[int, ...], dtype: Any) -> list[Temp]:
    channels = _Channels(p, shape)
    return [Temp((channels.count * channels.block(False),), dtype)]


@op.resources
def _(p: BatchNormParams, ins: Any, in_types: Any, outs: Any, out_types: Any) -> list[Temp]:
    return _temporary(p, ins[0], out_types[1])


@backward.resources
def _(p: BatchNormParams, ins: Any, in_types: Any, outs: Any, out_types: Any) -> list[Temp]:
    return _temporary(p, ins[1], in_types[3])


def _total(xp: Any, x: Array, y: Array | None = None) -> Array:
    """x, or x * y, summed over all but the channels."""
    if y is None:
        return x.sum(axis=2).sum(axis=0)
    return xp.einsum("bca,bca->bc", x, y).sum(axis=0)


def _column(values: Array) -> Array:
    return values[:, None]


@op.compute()
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    xp = ctx.xp
    data, gamma, beta, moving_mean, moving_var = inputs
    if p.fix_gamma and getattr(gamma.flags, "writeable", True):
        gamma[...] = 1
    channels = _Channels(p, data.shape)
    x = data.reshape(channels.shape)
    whole = req[0] in (OpReq.WRITE, OpReq.INPLACE) and outputs[0].flags.c_contiguous
    value = outputs[0].reshape(channels.shape) if whole else xp.empty(channels.shape, outputs[0].dtype)
    of_batch = ctx.is_train and not p.use_global_stats
    mean, inverse = xp.empty_like(moving_mean), xp.empty_like(moving_var)
    if not of_batch:
        mean[...] = moving_mean
        inverse[...] = 1 / xp.sqrt(moving_var + p.eps)
    for block in channels.blocks(ctx):
        centred = channels.scratch(ctx, block)
        if of_batch:
            centred[...] = x[:, block]
            mean[block] = _total(xp, centred) / max(1, channels.count)
            centred -= _column(mean[block])
            inverse[block] = 1 / xp.sqrt(_total(xp, centred, centred) / max(1, channels.count) + p.eps)
        else:
            xp.subtract(x[:, block], _column(mean[block]), out=centred)
        if req[0]:
            centred *= _column(inverse[block] if p.fix_gamma else inverse[block] * gamma[block])
            centred += _column(beta[block])
            value[:, block] = centred
    if not whole:
        assign(outputs[0], req[0], value.reshape(outputs[0].shape))
    assign(outputs[1], req[1], mean)
    assign(outputs[2], req[2], inverse)


@backward.compute()
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    xp = ctx.xp
    gout, data, gamma, mean, inverse, moving_mean, moving_var = inputs
    channels = _Channels(p, data.shape)
    n = max(1, channels.count)
    x, g = data.reshape(channels.shape), gout.reshape(channels.shape)
    whole = req[0] in (OpReq.WRITE, OpReq.INPLACE) and outputs[0].flags.c_contiguous
    value = outputs[0].reshape(channels.shape) if whole else xp.empty(channels.shape, outputs[0].dtype)
    of_batch = ctx.is_train and not p.use_global_stats
    ggamma, gbeta = xp.empty_like(mean), xp.empty_like(mean)
    for block in channels.blocks(ctx):
        centred = channels.scratch(ctx, block)
        given = g[:, block].astype(mean.dtype, copy=False)
        xp.subtract(x[:, block], _column(mean[block]), out=centred)
        gbeta[block] = _total(xp, given)
        ggamma[block] = _total(xp, given, centred) * inverse[block]
        if req[0]:
            if of_batch:
                centred *= _column(ggamma[block] * inverse[block] * (-1 / n))
                centred += given
                centred -= _column(gbeta[block] * (1 / n))
            else:
                centred[...] = given
            centred *= _column(inverse[block] if p.fix_gamma else inverse[block] * gamma[block])
            value[:, block] = centred
    if not whole:
        assign(outputs[0], req[0], value.reshape(outputs[0].shape))
    assign(outputs[1], req[1], 0 if p.fix_gamma else ggamma)
    assign(outputs[2], req[2], gbeta)
    if of_batch and channels.count:
        moving_mean *= p.momentum
        moving_mean += mean * (1 - p.momentum)
        moving_var *= p.momentum
        moving_var += (1 / xp.square(inverse) - p.eps) * (1 - p.momentum)
