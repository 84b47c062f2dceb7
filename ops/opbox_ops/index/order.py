"""sort, argsort, topk: elements in order along an axis, and where they were.

sort: (…, n, …) -> the same shape, sorted        argsort: the positions that sort it
topk: the k largest (or smallest): their positions, values, both, or a mask of data's shape
gdata = gout at the positions that the values came from. Equal elements keep their order.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from opbox_protocol.errors import ShapeError

from ..bound_calls import Call
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import Shape, ShapeList, TypeList, canonical_axis, known, size_of
from ..node import Entry, Node
from ..params import Bool, Field, Int, OptInt, Params
from ..registry import Slot, register, register_backward, when
from .counting import count_up
from .ordered_rows import Wanted, ordered_rows, ordered_rows_temps
from .positions import put_rows, whole

IndexDType = Literal["float16", "float32", "float64", "int32", "int64", "uint8"]


class SortParams(Params):
    axis: OptInt = Field(-1, description="The axis to sort along; None: data as one row.")
    is_ascend: Bool = Field(True, description="Smallest first.")


class ArgsortParams(SortParams):
    dtype: IndexDType = Field("float32", description="Element type of the positions.")


class TopkParams(Params):
    axis: OptInt = Field(-1, description="The axis to search along; None: data as one row.")
    k: Int = Field(1, description="How many; all of them when it is less than 1.")
    ret_typ: Literal["value", "indices", "mask", "both"] = Field("indices", description="What is returned.")
    is_ascend: Bool = Field(False, description="The smallest instead of the largest.")
    dtype: IndexDType = Field("float32", description="Element type of the positions.")


sort = register(
    "sort", SortParams, outputs=("output0", Slot("output1", visible=False)), doc="Elements sorted along an axis."
)
argsort = register("argsort", ArgsortParams, doc="Positions that sort an axis.")
topk = register(
    "topk",
    TopkParams,
    outputs=(
        Slot("output", when("ret_typ", "indices", "mask")),
        Slot("output0", when("ret_typ", "value", "both")),
        Slot("output1", when("ret_typ", "value", "both"), visible=when("ret_typ", "both")),
    ),
    doc="The largest or smallest elements along an axis.",
)
for operator in (sort, topk):
    operator.set_attr("TSkipsUnread", True)
order_backward = register_backward("_backward_sort", SortParams)
topk_backward = register_backward("_backward_topk", TopkParams)


def top_length(p: TopkParams, size: int) -> int:
    if size < 0:
        return -1 if p.k < 1 else p.k
    if p.k > size:
        raise ShapeError(f"k: expected at most {size}, the length of the axis, got {p.k}")
    return p.k if p.k >= 1 else size


@sort.infer_shape
@argsort.infer_shape
def _(p: SortParams, ins: ShapeList, outs: ShapeList) -> None:
    shape: Shape
    if p.axis is None:
        data = ins[0]
        shape = (size_of(data) if known(data) and data is not None else -1,)
    else:
        shape = ins.merge(0, outs.merge(0, ins[0]))
        if shape is not None:
            canonical_axis(p.axis, len(shape))
    for i in range(len(outs)):
        outs.merge(i, shape)


@topk.infer_shape
def _(p: TopkParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if p.axis is None:
        shape: Shape = (top_length(p, size_of(data) if known(data) else -1),)
    else:
        axis = canonical_axis(p.axis, len(data))
        shape = (*data[:axis], top_length(p, data[axis]), *data[axis + 1 :])
    for i in range(len(outs)):
        outs.merge(i, data if p.ret_typ == "mask" else shape)


@sort.infer_type
def _(p: SortParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))
    outs.merge(1, "int32")


@argsort.infer_type
def _(p: ArgsortParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, p.dtype)


@topk.infer_type
def _(p: TopkParams, ins: TypeList, outs: TypeList) -> None:
    if p.ret_typ == "indices":
        outs.merge(0, p.dtype)
    else:
        ins.merge(0, outs.merge(0, ins[0]))
    if len(outs) > 1:
        outs.merge(1, p.dtype)


@sort.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_sort", node, [ograds[0], Entry(node, 1)])


@argsort.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [None]


@topk.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    p = node.params
    assert isinstance(p, TopkParams)
    if p.ret_typ in ("indices", "mask"):
        return [None]
    return backward_node("_backward_topk", node, [ograds[0], Entry(node, 1)])


def _wanted(p: Any, shape: tuple[int, ...], *, top: bool) -> Wanted:
    axis = None if p.axis is None else p.axis % len(shape)
    size = size_of(shape) if axis is None else shape[axis]
    return Wanted(axis, top_length(p, size) if top else None, p.is_ascend)


def _rows_temps(p: Any, call: CallSpec, *, top: bool = False) -> list[Temp]:
    data = call.inputs[0]
    outputs = [out for i, out in enumerate(call.outputs) if call.wants(i)]
    return ordered_rows_temps(_wanted(p, data.shape, top=top), data, outputs)


@sort.compute("cpu", temps=_rows_temps, prepares=True)
def _(p: SortParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    data, (values, places) = inputs[0], outputs
    return ordered_rows(_wanted(p, data.shape, top=False), data, ctx.temp, values=values, places=places)


@argsort.compute("cpu", temps=_rows_temps, prepares=True)
def _(p: ArgsortParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    data = inputs[0]
    return ordered_rows(_wanted(p, data.shape, top=False), data, ctx.temp, places=outputs[0])


@topk.compute("cpu", temps=partial(_rows_temps, top=True), prepares=True)
def _(p: TopkParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    data = inputs[0]
    names = {"mask": ("mask",), "indices": ("places",)}.get(p.ret_typ, ("values", "places"))
    named = dict(zip(names, outputs, strict=True))
    return ordered_rows(_wanted(p, data.shape, top=True), data, ctx.temp, **named)


def _order(xp: Any, data: Array, axis: int, ascend: bool) -> Array:
    """Positions in sorted order; equal elements stay in theirs, whatever the direction."""
    if data.dtype.itemsize == 2 and data.dtype.kind == "V":
        data = data.astype("float32")  # Thrust, which sorts on the GPU, has no bfloat16
    if ascend:
        return xp.argsort(data, axis=axis, kind="stable")
    order = xp.argsort(xp.flip(data, axis), axis=axis, kind="stable")
    return xp.flip(data.shape[axis] - 1 - order, axis)


def _row(p: Any, data: Array) -> tuple[Array, int]:
    return (data.reshape(-1), 0) if p.axis is None else (data, p.axis % data.ndim)


_SORTING = "the library's argsort has no output argument"


@sort.compute("gpu", allocates=_SORTING)
def _(p: SortParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    data, axis = _row(p, inputs[0])
    order = _order(ctx.xp, data, axis, p.is_ascend)
    _write(outputs, ctx.xp.take_along_axis(data, order, axis), order)


@argsort.compute("gpu", allocates=_SORTING)
def _(p: ArgsortParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    data, axis = _row(p, inputs[0])
    _write(outputs, _order(ctx.xp, data, axis, p.is_ascend))


@topk.compute("gpu", allocates=_SORTING)
def _(p: TopkParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp = ctx.xp
    data, axis = _row(p, inputs[0])
    size = top_length(p, data.shape[axis])
    chosen = _order(xp, data, axis, p.is_ascend)[(*(slice(None),) * axis, slice(0, size))]
    if p.ret_typ == "mask":
        mask = xp.zeros(data.shape, outputs[0].dtype)
        _set_along(xp, mask, chosen, axis, 1)
        _write(outputs, mask.reshape(outputs[0].shape))
    elif p.ret_typ == "indices":
        _write(outputs, chosen)
    else:
        _write(outputs, xp.take_along_axis(data, chosen, axis), chosen)


def _write(outputs: Outputs, *values: Array) -> None:
    for out, value in zip(outputs, values, strict=True):
        if out is not None:
            out[...] = value


def _set_along(xp: Any, target: Array, where: Array, axis: int, values: Any) -> None:
    """target[…, where, …] = values, with `where` an array of positions along `axis`, none of them twice."""
    cells = list(xp.ogrid[tuple(slice(0, size) for size in where.shape)]) if where.ndim > 1 else [None]
    cells[axis] = where
    target[tuple(cells)] = values


def _spread(p: Any, call: CallSpec) -> list[Temp]:
    """Temporaries of the gradient: each element's position in data, and indices before and behind the sorted axis."""
    before, after = _beside(p, call.outputs[0].shape)
    return [Temp(call.inputs[1].shape, "int64"), Temp((before,), "int64"), Temp((after,), "int64")]


def _beside(p: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the number of elements before and behind the sorted axis."""
    if p.axis is None:
        return 1, 1
    axis = p.axis % len(shape)
    return size_of(shape[:axis]), size_of(shape[axis + 1 :])


@order_backward.compute(temps=_spread)
@topk_backward.compute(temps=_spread)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (gout, order), out, (where, rows, columns) = ctx.xp, inputs, outputs[0], ctx.temp
    out.fill(0)
    if not order.size:
        return
    whole(xp, order, where)
    size = out.size // (len(rows) * len(columns))
    cells = where.reshape(len(rows), -1, len(columns))
    if len(rows) > 1:
        count_up(xp, rows)
        rows *= size
        cells += rows[:, None, None]
    if len(columns) > 1:
        cells *= len(columns)
        cells += count_up(xp, columns)
    put_rows(xp, out.reshape(-1, 1), where.reshape(-1), gout.reshape(-1, 1))
