"""pick and batch_take: one element of each row.

pick: data (…, n, …), index (…, …) -> out[i, j] = data[i, index[i, j], j], positions clipped or wrapped
batch_take: a (m, n), indices (m,) of int32 -> out[i] = a[i, indices[i]]
gdata = gout at the elements that were picked, zero elsewhere
"""

from __future__ import annotations

from typing import Literal

from ..compute import Array, Arrays, ArraySpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis, size_of
from ..node import Entry, Node
from ..params import Bool, Field, Int, NoParams, Params
from ..registry import register, register_backward
from .counting import count_up
from .positions import positions, put_rows, take_rows


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
    with_axis = (*data[:axis], 1, *data[axis + 1 :])
    dropped = (*data[:axis], *data[axis + 1 :]) or (1,)
    outs.merge(0, with_axis if p.keepdims else dropped)
    # An index whose rank nothing tells is taken for one without the axis, as MXNet takes it.
    if index == () and len(data) == 1:
        return  # a position alone
    index = ins.merge(1, with_axis if index is not None and len(index) == len(data) else dropped)
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


def _temps(data: ArraySpec, axis: int) -> list[Temp]:
    """The picked elements' numbers (before, after) in data (before, n, after), and the numbers of the axes beside n."""
    before, after = _beside(data.shape, axis)
    return [Temp((before, after), "int64"), Temp((before,), "int64"), Temp((after,), "int64")]


def _beside(shape: tuple[int, ...], axis: int) -> tuple[int, int]:
    return size_of(shape[:axis]), size_of(shape[axis + 1 :])


def _cells(ctx: OpContext, shape: tuple[int, ...], index: Array, axis: int, mode: str) -> Array:
    """The numbers of the picked elements in data of this shape."""
    xp, (cells, rows, columns) = ctx.xp, ctx.temp
    positions(xp, index.reshape(cells.shape), shape[axis], mode, cells)
    xp.multiply(count_up(xp, rows), shape[axis], out=rows)
    xp.add(cells, rows[:, None], out=cells)
    xp.multiply(cells, len(columns), out=cells)
    xp.add(cells, count_up(xp, columns), out=cells)
    return cells.reshape(-1)


def _pick(ctx: OpContext, data: Array, index: Array, axis: int, mode: str, out: Array) -> None:
    if data.shape[axis]:
        take_rows(ctx.xp, data.reshape(-1), _cells(ctx, data.shape, index, axis, mode), out.reshape(-1))


def _unpick(ctx: OpContext, gout: Array, index: Array, axis: int, mode: str, outputs: Outputs) -> None:
    for out in outputs:
        if out is not None:
            out.fill(0)
    gdata = outputs[0]
    if gdata is not None and gdata.size:
        # No element is picked twice.
        cells = _cells(ctx, gdata.shape, index, axis, mode)
        put_rows(ctx.xp, gdata.reshape(-1, 1), cells, gout.reshape(-1, 1))


def _pick_axis(p: PickParams, data: ArraySpec) -> int:
    return p.axis % len(data.shape)


@pick.compute(temps=lambda p, call: _temps(call.inputs[0], _pick_axis(p, call.inputs[0])))
def _(p: PickParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _pick(ctx, inputs[0], inputs[1], p.axis % inputs[0].ndim, p.mode, outputs[0])


@pick_backward.compute(temps=lambda p, call: _temps(call.outputs[0], _pick_axis(p, call.outputs[0])))
def _(p: PickParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _unpick(ctx, inputs[0], inputs[1], _pick_axis(p, ctx.call.outputs[0]), p.mode, outputs)


@batch_take.compute(temps=lambda p, call: _temps(call.inputs[0], 1))
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _pick(ctx, inputs[0], inputs[1], 1, "clip", outputs[0])


@batch_take_backward.compute(temps=lambda p, call: _temps(call.outputs[0], 1))
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _unpick(ctx, inputs[0], inputs[1], 1, "clip", outputs)
