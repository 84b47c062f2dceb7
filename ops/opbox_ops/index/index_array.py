"""_contrib_index_array, _contrib_index_copy, _contrib_boolean_mask: elements' positions, rows put and taken by them.

index_array   out (*data, m) int64: the position of every element of data along its axes, or along `axes` (m of them)
index_copy    old_tensor (n, …) with new_tensor (k, …) at the rows index_vector (k,); of equal positions the last one
              wins        gold = gout, 0 at these rows; gnew = gout at these rows
boolean_mask  data's rows where index (n,) is not 0: (count, …). How many depends on index's values, so that it can
              be called on arrays but not be in a graph
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ParamError

from ..compute import Arrays, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis
from ..node import Entry, Node
from ..params import Field, Int, NoParams, OptShape, Params
from ..registry import register, register_backward
from .counting import count_up
from .positions import checked, take_rows, whole


class IndexArrayParams(Params):
    axes: OptShape = Field(None, description="The axes to give positions along; None: all.")


class BooleanMaskParams(Params):
    axis: Int = Field(0, description="The axis that index selects along; it has to be 0.")


index_array = register("_contrib_index_array", IndexArrayParams, doc="The position of every element of data.")
index_copy = register(
    "_contrib_index_copy",
    inputs=("old_tensor", "index_vector", "new_tensor"),
    doc="old_tensor with new_tensor's rows at the positions index_vector.",
).inplace((0, 0))
copy_backward = register_backward(
    "_backward_contrib_index_copy", outputs=("old_tensor", "index_vector", "new_tensor")
).inplace((0, 0))
boolean_mask = register(
    "_contrib_boolean_mask", BooleanMaskParams, inputs=("data", "index"), doc="data's rows where index is not 0."
)


@index_array.infer_shape
def _(p: IndexArrayParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        if outs[0]:
            ins.merge(0, outs[0][:-1])
        return
    if p.axes is not None:
        for axis in p.axes:
            canonical_axis(axis, len(data), "axes")
    outs.merge(0, (*data, len(data) if p.axes is None else len(p.axes)))
    assert outs[0] is not None
    ins.merge(0, outs[0][:-1])


@index_array.infer_type
def _(p: IndexArrayParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, "int64")


@index_array.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [None]


@index_array.compute(temps=lambda p, call: [Temp((max(call.inputs[0].shape, default=0),), "int64")])
def _(p: IndexArrayParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    axes = range(data.ndim) if p.axes is None else [axis % data.ndim for axis in p.axes]
    for place, axis in enumerate(axes):
        positions = count_up(ctx.xp, ctx.temp[0][: data.shape[axis]])
        out[..., place] = positions.reshape(-1, *(1,) * (data.ndim - 1 - axis))


@index_copy.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    old = ins.merge(0, outs.merge(0, ins[0]))
    index, new = ins.rank(1, 1), ins[2]
    count = -1 if index is None else index[0]
    for _ in range(2):
        if old is not None:
            new = ins.merge(2, (count, *old[1:]))
        if new is not None:
            count = new[0]
            ins.merge(1, (count,))
            old = ins.merge(0, (-1 if old is None else old[0], *new[1:]))
            old = outs.merge(0, old)


@index_copy.infer_type
def _(p: NoParams, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.merge(2, ins.merge(0, outs.merge(0, ins[0] or ins[2])))
    ins.merge(0, outs.merge(0, dtype))


@index_copy.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_contrib_index_copy", node, [ograds[0], node.inputs[1]])


def _rows(ctx: OpContext, index: Any, count: int) -> Any:
    rows = whole(ctx.xp, index, ctx.temp[0])
    checked(ctx.xp, rows, 0, count, "index_vector")
    return rows


@index_copy.compute(temps=lambda p, call: [Temp(call.inputs[1].shape, "int64")])
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (old, index, new), (out,) = inputs, outputs
    rows = _rows(ctx, index, len(old))
    if out is not old:
        out[...] = old
    out[rows] = new


@copy_backward.compute(temps=lambda p, call: [Temp(call.inputs[1].shape, "int64")])
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout, index), (gold, gindex, gnew) = inputs, outputs
    rows = _rows(ctx, index, len(gout))
    if gindex is not None:
        gindex.fill(0)
    if gnew is not None:
        take_rows(ctx.xp, gout, rows, gnew)
    if gold is not None:
        if gold is not gout:
            gold[...] = gout
        gold[rows] = 0


@boolean_mask.infer_shape
def _(p: BooleanMaskParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.axis != 0:
        raise ParamError(f"_contrib_boolean_mask: parameter 'axis': expected 0, got {p.axis}")
    data, index = ins[0], ins.rank(1, 1)
    if index is not None and data is not None:
        data = ins.merge(0, (index[0], *data[1:]))
    if data is not None:
        ins.merge(1, data[:1])
        outs.merge(0, (-1, *data[1:]))


@boolean_mask.infer_type
def _(p: BooleanMaskParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))


def _mask_shape(p: BooleanMaskParams, inputs: Arrays) -> list[tuple[int, ...]]:
    """FOutputShapes: as many rows as index has numbers other than 0."""
    data, index = inputs
    if index.shape != data.shape[:1]:
        raise ValueError
    return [(int((index != 0).sum()), *data.shape[1:])]


boolean_mask.set_attr("FOutputShapes", _mask_shape)


@boolean_mask.compute(allocates="the rows, which the library gathers itself")
def _(p: BooleanMaskParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0][...] = inputs[0][inputs[1] != 0]
