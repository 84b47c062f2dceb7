"""FullyConnected: out = data @ weight.T + bias, with data's trailing axes flattened.

data (batch, *features), weight (num_hidden, prod(features)), bias (num_hidden,), out (batch, num_hidden).
With flatten=False only the last axis is transformed: data (*batch, features), out (*batch, num_hidden).

    gdata = gout @ weight        gweight = gout.T @ data        gbias = gout summed over the batch
"""

from __future__ import annotations

from typing import Any

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList, size_of
from ..node import Entry, Node
from ..params import Bool, Field, Params, PositiveInt
from ..registry import Slot, register, register_backward, unless


class FullyConnectedParams(Params):
    num_hidden: PositiveInt = Field(description="Rows of weight: the width of the output.")
    no_bias: Bool = Field(False, description="Leave bias out.")
    flatten: Bool = Field(True, description="Flatten all axes of data but the first.")


_ARGUMENTS = ("data", "weight", Slot("bias", unless("no_bias")))

op = register("FullyConnected", FullyConnectedParams, inputs=_ARGUMENTS)
backward = register_backward("_backward_FullyConnected", FullyConnectedParams, outputs=_ARGUMENTS)


@op.infer_shape
def _(p: FullyConnectedParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is not None and len(data) > 0:
        features = data[1:] if p.flatten else data[-1:]
        ins.merge(1, (p.num_hidden, size_of(features) if all(d >= 0 for d in features) else -1))
        outs.merge(0, (data[0], p.num_hidden) if p.flatten else (*data[:-1], p.num_hidden))
    else:
        ins.merge(1, (p.num_hidden, -1))
    if not p.no_bias:
        ins.merge(2, (p.num_hidden,))
    out, weight = outs[0], ins[1]
    if out is not None and data is not None and len(data) > 0:
        features = weight[1] if weight is not None and len(data) == 2 else -1
        if p.flatten:
            ins.merge(0, (out[0], *([-1] * (len(data) - 2)), features) if len(data) > 1 else (out[0],))
        else:
            ins.merge(0, (*out[:-1], weight[1] if weight is not None else -1))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_FullyConnected", node, [ograds[0], *node.inputs[:2]])


def _matrix(p: FullyConnectedParams, data: Array) -> Array:
    return data.reshape(data.shape[0], -1) if p.flatten else data.reshape(-1, data.shape[-1])


@op.compute()
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    data, weight = _matrix(p, inputs[0]), inputs[1]
    out = outputs[0].reshape(data.shape[0], p.num_hidden)
    if req[0] in (1, 2) and out.dtype.char in "fd":
        ctx.xp.matmul(data, weight.T, out=out)
    else:
        wide = "f" if out.dtype.char == "e" else out.dtype
        assign(out, req[0], data.astype(wide, copy=False) @ weight.T.astype(wide, copy=False))
    if not p.no_bias and req[0]:
        out += inputs[2]


@backward.compute()
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    gout, data, weight = inputs
    x = _matrix(p, data)
    g = gout.reshape(x.shape[0], p.num_hidden)
    wide = "f" if g.dtype.char == "e" else g.dtype
    g, x = g.astype(wide, copy=False), x.astype(wide, copy=False)
    _product(ctx.xp, outputs[0].reshape(x.shape), req[0], g, weight.astype(wide, copy=False))
    _product(ctx.xp, outputs[1], req[1], g.T, x)
    if not p.no_bias and req[2]:
        assign(outputs[2], req[2], g.sum(axis=0))


def _product(xp: Any, out: Array, req: OpReq, a: Array, b: Array) -> None:
    if req in (1, 2) and out.dtype == a.dtype:
        xp.matmul(a, b, out=out)
    elif req:
        assign(out, req, xp.matmul(a, b))
