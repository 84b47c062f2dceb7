"""LeakyReLU: out = x where x > 0, and a leak below; data, out and mask have one shape, gamma is (channel,) or (1,).

leaky  slope x                  gdata = slope gout
elu    slope (exp x - 1)        gdata = slope exp(x) gout
selu   as elu with slope a, all times s, with the constants of Klambauer et al., "Self-Normalizing Neural
       Networks" (2017)
gelu   x (1 + erf(x / sqrt 2)) / 2, at every x: Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016)
prelu  gamma[channel] x         ggamma = gout x summed over all but the channels: He et al., "Delving Deep into
       Rectifiers" (2015)
rrelu  mask x, mask uniform between lower_bound and upper_bound in training, their mean otherwise
"""

from __future__ import annotations

import math
from typing import Any, Literal

from ..compute import Array, Arrays, OpContext, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList
from ..node import Entry, Node
from ..params import Field, Float, Params
from ..registry import Slot, register, register_backward, when
from .slabs import slabs

SELU_SLOPE, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


class LeakyReLUParams(Params):
    act_type: Literal["elu", "gelu", "leaky", "prelu", "rrelu", "selu"] = Field("leaky", description="The function.")
    slope: Float = Field(0.25, description="Slope below zero, for leaky and elu.")
    lower_bound: Float = Field(0.125, description="Least slope of rrelu.")
    upper_bound: Float = Field(0.334, description="Greatest slope of rrelu.")


_INPUTS = ("data", Slot("gamma", when("act_type", "prelu")))
_OUTPUTS = ("output", Slot("mask", when("act_type", "rrelu"), doc="The slopes that were drawn."))

op = register("LeakyReLU", LeakyReLUParams, inputs=_INPUTS, outputs=_OUTPUTS).inplace((0, 0))
backward = register_backward("_backward_LeakyReLU", LeakyReLUParams, outputs=_INPUTS).inplace((0, 0))


@op.infer_shape
def _(p: LeakyReLUParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = outs.merge(0, ins[0])
    shape = ins.merge(0, shape)
    if p.act_type == "rrelu":
        ins.merge(0, outs.merge(0, outs.merge(1, shape)))
    if p.act_type != "prelu" or shape is None or ins[1] == (1,):
        return
    channels = (shape[1],) if len(shape) > 1 else (1,)
    if ins[1] is None or channels[0] >= 0:
        ins.merge(1, channels)
    gamma = ins[1]
    if gamma is not None and len(shape) > 1 and gamma[0] > 1:
        ins.merge(0, (-1, gamma[0], *(-1 for _ in shape[2:])))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    more = [Entry(node, 1)] if node.num_outputs > 1 else []
    return backward_node("_backward_LeakyReLU", node, [ograds[0], *node.inputs, *more])


def _leaky(p: LeakyReLUParams, ctx: OpContext, x: Array) -> Array:
    """out of the functions that need nothing beside x."""
    xp = ctx.xp
    if p.act_type == "leaky":
        return xp.where(x > 0, x, x * p.slope)
    if p.act_type == "gelu":
        return x * _phi(ctx, x)
    slope, scale = (p.slope, 1.0) if p.act_type == "elu" else (SELU_SLOPE, SELU_SCALE)
    return xp.where(x > 0, x, xp.expm1(x) * slope) * scale


def _slope(p: LeakyReLUParams, ctx: OpContext, x: Array) -> Array:
    """Their derivative."""
    xp = ctx.xp
    if p.act_type == "leaky":
        return xp.where(x > 0, x.dtype.type(1), x.dtype.type(p.slope))
    if p.act_type == "gelu":
        return _phi(ctx, x) + x * xp.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    slope, scale = (p.slope, 1.0) if p.act_type == "elu" else (SELU_SLOPE, SELU_SCALE)
    return xp.where(x > 0, x.dtype.type(1), xp.exp(x) * slope) * scale


def _phi(ctx: OpContext, x: Array) -> Any:
    """The normal distribution function."""
    wide = x.astype("f", copy=False) if x.dtype.itemsize < 4 else x
    return ((ctx.special.erf(wide * math.sqrt(0.5)) + 1) * 0.5).astype(x.dtype, copy=False)


def _spread(gamma: Array, ndim: int) -> Array:
    """gamma, to broadcast over data."""
    return gamma.reshape(-1, *([1] * (ndim - 2))) if ndim > 1 else gamma


@op.compute()
def _(p: LeakyReLUParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    xp, data = ctx.xp, inputs[0]
    if p.act_type == "rrelu":
        mask = xp.empty(data.shape, data.dtype)
        if ctx.is_train:
            ctx.random.uniform(mask, p.lower_bound, p.upper_bound)
        else:
            mask[...] = (p.lower_bound + p.upper_bound) / 2
        assign(outputs[0], req[0], xp.where(data > 0, data, data * mask))
        assign(outputs[1], req[1], mask)
    elif p.act_type == "prelu":
        if req[0]:
            assign(outputs[0], req[0], xp.where(data > 0, data, data * _spread(inputs[1], data.ndim)))
    elif req[0]:
        for x, out in slabs(ctx, data, outputs[0]):
            assign(out, req[0], _leaky(p, ctx, x))


@backward.compute()
def _(p: LeakyReLUParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    xp, gout, data = ctx.xp, inputs[0], inputs[1]
    if p.act_type == "rrelu":
        assign(outputs[0], req[0], xp.where(data > 0, gout, gout * inputs[2]))
    elif p.act_type == "prelu":
        # Written last may be gdata alone: it may share gout's memory.
        if req[1]:
            wide = "f" if data.dtype.itemsize < 4 else data.dtype
            below = xp.where(data > 0, 0, gout * data).astype(wide, copy=False)
            axes = tuple(a for a in range(data.ndim) if a != 1 or outputs[1].size == 1)
            assign(outputs[1], req[1], below.sum(axis=axes).reshape(outputs[1].shape))
        if req[0]:
            assign(outputs[0], req[0], xp.where(data > 0, gout, gout * _spread(inputs[2], data.ndim)))
    elif req[0]:
        for g, x, gdata in slabs(ctx, gout, data, outputs[0]):
            assign(gdata, req[0], g * _slope(p, ctx, x))
