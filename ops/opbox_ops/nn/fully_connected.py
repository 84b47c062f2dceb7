"""FullyConnected: out = data @ weight.T + bias, with data's trailing axes flattened.

data (batch, *features), weight (num_hidden, prod(features)), bias (num_hidden,), out (batch, num_hidden).
With flatten=False only the last axis is transformed: data (*batch, features), out (*batch, num_hidden).

    gdata = gout @ weight        gweight = gout.T @ data        gbias = gout summed over the batch
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_protocol.errors import ShapeError

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
    data, out = ins[0], outs[0]
    if data is not None and not data:
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    # The axes that are summed over, and those that stay.
    summed = None if data is None else data[1:] if p.flatten else data[-1:]
    kept = None if data is None else data[:1] if p.flatten else data[:-1]
    features = -1 if summed is None or min(summed, default=0) < 0 else size_of(summed)
    weight = ins.merge(1, (p.num_hidden, features))
    if not p.no_bias:
        ins.merge(2, (p.num_hidden,))
    if kept is None:
        if p.flatten:
            outs.merge(0, (-1, p.num_hidden))
        elif out is not None and weight is not None:
            outs.merge(0, (*out[:-1], p.num_hidden))
            ins.merge(0, (*out[:-1], weight[1]))
        return
    out = outs.merge(0, (*kept, p.num_hidden))
    assert out is not None
    assert weight is not None
    assert summed is not None
    rest = list(summed)
    if rest.count(-1) == 1 and weight[1] >= 0:
        # One unknown dimension follows from the product, unless another is zero.
        others = size_of(d for d in rest if d >= 0)
        if others and weight[1] % others == 0:
            rest[rest.index(-1)] = weight[1] // others
    ins.merge(0, (*out[:-1], *rest))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_FullyConnected", node, [ograds[0], *node.inputs[:2]])


def _matrix(p: FullyConnectedParams, data: Array) -> Array:
    """data as (rows, features)."""
    if p.flatten:
        return data.reshape(data.shape[0], size_of(data.shape[1:]))
    return data.reshape(size_of(data.shape[:-1]), data.shape[-1])


@op.compute()
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    data, weight = _matrix(p, inputs[0]), inputs[1]
    shape = (data.shape[0], p.num_hidden)
    if not req[0]:
        return
    if req[0] != OpReq.ADD and outputs[0].dtype.itemsize >= 4 and outputs[0].flags.c_contiguous:
        out = outputs[0].reshape(shape)
        ctx.xp.matmul(data, weight.T, out=out)
        if not p.no_bias:
            out += inputs[2]
        return
    wide = _wide(data.dtype)
    value = data.astype(wide, copy=False) @ weight.T.astype(wide, copy=False)
    if not p.no_bias:
        value += inputs[2]
    assign(outputs[0], req[0], value.reshape(outputs[0].shape))


@backward.compute()
def _(p: FullyConnectedParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    gout, data, weight = inputs
    x = _matrix(p, data)
    g = gout.reshape(x.shape[0], p.num_hidden)
    wide = _wide(g.dtype)
    g, x = g.astype(wide, copy=False), x.astype(wide, copy=False)
    _product(ctx.xp, outputs[0], x.shape, req[0], g, weight.astype(wide, copy=False))
    _product(ctx.xp, outputs[1], weight.shape, req[1], g.T, x)
    if not p.no_bias and req[2]:
        assign(outputs[2], req[2], g.sum(axis=0))


def _wide(dtype: Any) -> Any:
    """The type that products are summed in: half precision in single."""
    return np.dtype("f") if dtype.itemsize < 4 else dtype


def _product(xp: Any, out: Array, shape: tuple[int, ...], req: OpReq, a: Array, b: Array) -> None:
    """Write a @ b, whose shape is `shape`, into `out`."""
    if req in (OpReq.WRITE, OpReq.INPLACE) and out.dtype == a.dtype and out.flags.c_contiguous:
        xp.matmul(a, b, out=out.reshape(shape))
    elif req:
        assign(out, req, xp.matmul(a, b).reshape(out.shape))
