"""softmax_cross_entropy: out = -sum over the batch of log softmax(data)[label].

data (batch, classes), label (batch,) of class numbers, out (1,). gdata = gout (softmax(data) - one_hot(label)); label
has no gradient. A label that is no class adds to the loss what a probability of zero would (-log 1e-8).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList
from ..nn.softmax import softmax_into
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register, register_backward

LEAST = 1e-8
"""Probabilities are taken to be at least this, as in MXNet."""

op = register("softmax_cross_entropy", inputs=("data", "label"))
backward = register_backward("_backward_softmax_cross_entropy", outputs=("data",))


@op.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    ins.rank(0, 2)
    ins.rank(1, 1)
    label = ins.merge(1, (ins[0] or (-1,))[:1])
    ins.merge(0, (*(label or (-1,)), -1))
    outs.merge(0, (1,))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_softmax_cross_entropy", node, [ograds[0], *node.inputs], outputs=1)


def _probabilities(xp: Any, data: Array) -> Array:
    out = xp.empty(data.shape, np.dtype("f") if data.dtype.itemsize < 4 else data.dtype)
    softmax_into(xp, out, OpReq.WRITE, data, 1)
    return out


@op.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    xp, (data, label) = ctx.xp, inputs
    if not data.size:
        assign(outputs[0], req[0], 0)
        return
    out = _probabilities(xp, data)
    chosen = xp.clip(label, 0, data.shape[1] - 1).astype("i8")
    picked = xp.where(chosen == label.astype("i8"), out[xp.arange(data.shape[0]), chosen], 0)
    assign(outputs[0], req[0], -xp.log(xp.maximum(picked, LEAST)).sum())


@backward.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    xp, (gout, data, label) = ctx.xp, inputs
    value = _probabilities(xp, data)
    value -= xp.arange(data.shape[1]) == label.astype("i8")[:, None]
    assign(outputs[0], req[0], value * gout)
