"""where: out = x where condition is not 0, elsewhere y.

condition is of x's shape, or (n,) with n = x.shape[0]: then it chooses whole rows.

    gx = gout where condition is not 0, elsewhere 0        gy = the other way round
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, show_shape
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register, register_backward

op = register("where", inputs=("condition", "x", "y"))
backward = register_backward("_backward_where", NoParams, outputs=("condition", "x", "y"))

op.inplace((1, 0), (2, 0))


@op.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = outs.merge(0, ins.merge(2, ins[1]))
    for i in (1, 2):
        shape = ins.merge(i, shape)
    condition = ins[0]
    if condition is None or shape is None:
        return
    if len(condition) == len(shape):
        shape = ins.merge(0, shape)
        for i in (1, 2):
            ins.merge(i, shape)
        outs.merge(0, shape)
    elif len(condition) == 1 and len(shape) > 0:
        ins.merge(0, shape[:1])
    else:
        raise ShapeError(
            f"expected {show_shape(shape)} or {show_shape(shape[:1])}, got {show_shape(condition)}",
            side=ins.side,
            index=0,
        )


@op.infer_type
def _(p: NoParams, ins: TypeList, outs: TypeList) -> None:
    dtype = outs.merge(0, ins.merge(2, ins[1]))
    ins.merge(1, dtype)
    ins.merge(2, dtype)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    grads = backward_node("_backward_where", node, [ograds[0], node.inputs[0]])
    return [None, *grads[1:]]


def _chosen(condition: Array, ndim: int) -> Array:
    """A bool array that broadcasts over an array of `ndim` dimensions."""
    return (condition != 0).reshape(condition.shape + (1,) * (ndim - condition.ndim))


@op.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    condition, x, y = inputs
    out = outputs[0]
    if req[0] != OpReq.NULL:
        assign(out, req[0], ctx.xp.where(_chosen(condition, out.ndim), x, y))


@backward.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    gout, condition = inputs
    chosen = _chosen(condition, gout.ndim)
    if req[0] != OpReq.ADD:
        assign(outputs[0], req[0], 0)
    for out, each, mask in ((outputs[1], req[1], chosen), (outputs[2], req[2], ~chosen)):
        if each == OpReq.ADD:
            out += ctx.xp.where(mask, gout, gout.dtype.type(0))
        elif each != OpReq.NULL:
            assign(out, each, 0)
            ctx.xp.copyto(out, gout, where=mask)
