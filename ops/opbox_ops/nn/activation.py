"""Activation: out = f(data), elementwise; data and out have one shape.

    relu      max(x, 0)                gdata = gout where out > 0
    sigmoid   1 / (1 + exp(-x))        gdata = gout out (1 - out)
    tanh      tanh x                   gdata = gout (1 - out^2)
    softrelu  log(1 + exp x)           gdata = gout (1 - exp(-out))
    softsign  x / (1 + |x|)            gdata = gout (1 - |out|)^2

The gradients are written in out, so that data need not be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import all_same_shape
from ..node import Entry, Node
from ..params import Field, Params
from ..registry import register, register_backward
from .slabs import SLAB, slabs


class ActivationParams(Params):
    act_type: Literal["relu", "sigmoid", "softrelu", "softsign", "tanh"] = Field(description="The function.")


op = register("Activation", ActivationParams).inplace((0, 0))
op.infer_shape(all_same_shape)
backward = register_backward("_backward_Activation", ActivationParams, outputs=("data",)).inplace((0, 0))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Activation", node, [ograds[0], *node.entries()])


@cache
def _zeros(dtype: np.dtype[Any]) -> Array:
    return np.zeros(SLAB, dtype)


def _relu(xp: Any, x: Array, out: Array) -> None:
    # numpy has vector instructions for the larger of two arrays, and none for that of an array and a number.
    if xp is np and x.size <= SLAB and x.flags.c_contiguous:
        np.maximum(x, _zeros(x.dtype)[: x.size].reshape(x.shape), out=out)
    else:
        xp.maximum(x, 0, out=out)


def _sigmoid(xp: Any, x: Array, out: Array) -> None:
    xp.negative(x, out=out)
    xp.exp(out, out=out)
    xp.add(out, 1, out=out)
    xp.reciprocal(out, out=out)


def _softrelu(xp: Any, x: Array, out: Array) -> None:
    xp.logaddexp(x, x.dtype.type(0), out=out)


def _softsign(xp: Any, x: Array, out: Array) -> None:
    xp.divide(x, xp.abs(x) + 1, out=out)


def _tanh(xp: Any, x: Array, out: Array) -> None:
    xp.tanh(x, out=out)


FORWARD: dict[str, Callable[[Any, Array, Array], None]] = {
    "relu": _relu,
    "sigmoid": _sigmoid,
    "softrelu": _softrelu,
    "softsign": _softsign,
    "tanh": _tanh,
}
"""`(xp, x, out)`; out may be x."""

SLOPE: dict[str, Callable[[Any, Array], Array]] = {
    "relu": lambda xp, y: y > 0,
    "sigmoid": lambda xp, y: (1 - y) * y,
    "softrelu": lambda xp, y: -xp.expm1(-y),
    "softsign": lambda xp, y: xp.square(1 - xp.abs(y)),
    "tanh": lambda xp, y: 1 - y * y,
}
"""`(xp, out)` to the factor on gout."""


@op.compute()
def _(p: ActivationParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    function = FORWARD[p.act_type]
    for x, out in slabs(ctx, inputs[0], outputs[0]):
        if req[0] == OpReq.ADD:
            value = ctx.xp.empty_like(x)
            function(ctx.xp, x, value)
            assign(out, req[0], value)
        elif req[0]:
            function(ctx.xp, x, out)


@backward.compute()
def _(p: ActivationParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    slope = SLOPE[p.act_type]
    for gout, y, gdata in slabs(ctx, *inputs, outputs[0]):
        if req[0] == OpReq.ADD:
            assign(gdata, req[0], gout * slope(ctx.xp, y))
        elif req[0]:
            ctx.xp.multiply(gout, slope(ctx.xp, y), out=gdata)
