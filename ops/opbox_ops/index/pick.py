"""pick and batch_take: one element of each row.

pick: data (…, n, …), index (…, …) -> out[i, j] = data[i, index[i, j], j], positions clipped or wrapped
batch_take: a (m, n), indices (m,) of int32 -> out[i] = a[i, indices[i]]
gdata = gout at the elements that were picked, zero elsewhere
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, Temp, assign
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis, size_of
from ..node import Entry, Node
from ..params import Bool, Field, Int, NoParams, Params
from ..registry import register, register_backward
from .positions import positions


class PickParams(Params):
    axis: Int = Field(-1, description="The axis that index counts along.")
    keepdims: Bool = Field(False, description="Keep that axis, with size 1.")
    mode: Literal["clip", "wrap"] = Field("clip", description="What happens to positions out of range.")


pick = register(
    "pick",
    PickParams,
    inputs=("data", "index"),
    aliases=("choose_element_0index",),
    doc="One element of data along an axis for each number of index.",
)
pick_backward = register_backward("_backward_pick", PickParams, outputs=("data", "index"))
batch_take = register("batch_take", inputs=("a", "indices"), doc="One element of each row of a.")
batch_take_backward = register_backward("_backward_batch_take", outputs=("a", "indices"))


@pick.infer_shape
def _(p: PickParams, ins: ShapeList, outs: ShapeList) -> None:
    data, index = ins
    if data is None:
        return
    axis = canonical_axis(p.axis, len(data))
    kept = (*data[:axis], 1, *data[axis + 1 :])
    dropped = (*data[:axis], *data[axis + 1 :]) or (1,)
    outs.merge(0, kept if p.keepdims else dropped)
    # An index whose rank nothing tells is taken for one without the axis, as MXNet takes it.
    index = ins.merge(1, kept if index is not None and len(index) == len(data) else dropped)
    assert index is not None
    if len(index) < len(data):
        index = (*index[:axis], 1, *index[axis:])
    ins.merge(0, (*index[:axis], -1, *index[axis + 1 :]))


@batch_take.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    a = ins.rank(0, 2)
    rows = ins.merge(1, outs.merge(0, (-1 if a is None else a[0],)))
    assert rows is not None
    outs.merge(0, rows)
    ins.merge(0, (rows[0], -1))


@pick.infer_type
def _(p: PickParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))


@batch_take.infer_type
def _(p: NoParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))
    ins.merge(1, "int32")


@pick.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [backward_node("_backward_pick", node, [ograds[0], node.inputs[1]])[0], None]


@batch_take.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [backward_node("_backward_batch_take", node, [ograds[0], node.inputs[1]])[0], None]


def _places(p: Any, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> Sequence[Temp]:
    return [Temp(in_shapes[1], "int64")]


for _each in (pick, pick_backward, batch_take, batch_take_backward):
    _each.resources(_places)


def _cells(ctx: OpContext, shape: tuple[int, ...], index: Array, axis: int, mode: str) -> tuple[Any, tuple[int, ...]]:
    """What selects the picked elements from data in three axes (before, n, after), and those axes."""
    where = positions(ctx.xp, index, shape[axis], mode, ctx.temp[0])
    before, after = size_of(shape[:axis]), size_of(shape[axis + 1 :])
    arange = ctx.xp.arange
    cells = (arange(before)[:, None], where.reshape(before, after), arange(after)[None, :])
    return cells, (before, shape[axis], after)


def _pick(ctx: OpContext, data: Array, index: Array, axis: int, mode: str, req: OpReq, out: Array) -> None:
    if req and data.shape[axis]:
        cells, axes = _cells(ctx, data.shape, index, axis, mode)
        assign(out, req, data.reshape(axes)[cells].reshape(out.shape))


def _unpick(ctx: OpContext, gout: Array, index: Array, axis: int, mode: str, req: OpReq, gdata: Array) -> None:
    if not req:
        return
    if req != OpReq.ADD:
        gdata.fill(0)
    cells, axes = _cells(ctx, gdata.shape, index, axis, mode)
    gdata.reshape(axes)[cells] += gout.reshape(axes[0], axes[2])  # no element is picked twice


@pick.compute()
def _(p: PickParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    _pick(ctx, inputs[0], inputs[1], p.axis % inputs[0].ndim, p.mode, req[0], outputs[0])


@pick_backward.compute()
def _(p: PickParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    _unpick(ctx, inputs[0], inputs[1], p.axis % outputs[0].ndim, p.mode, req[0], outputs[0])
    _no_gradient(req, outputs)


@batch_take.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    _pick(ctx, inputs[0], inputs[1], 1, "clip", req[0], outputs[0])


@batch_take_backward.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    _unpick(ctx, inputs[0], inputs[1], 1, "clip", req[0], outputs[0])
    _no_gradient(req, outputs)


def _no_gradient(req: Reqs, outputs: Arrays) -> None:
    for kind, out in zip(req[1:], outputs[1:], strict=True):
        if kind in (OpReq.WRITE, OpReq.INPLACE):
            out.fill(0)
