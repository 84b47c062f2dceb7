"""gather_nd, scatter_nd, _scatter_set_nd: elements (or slices) at positions along several axes at once.

indices (m, …): indices[:, i] is a position along data's first m axes.

    gather_nd: out[i] = data[indices[0, i], …, indices[m-1, i]]        its gradient adds up where positions recur
    scatter_nd: zeros of `shape` with data at the positions            _scatter_set_nd: lhs with rhs at the positions
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, show_shape, size_of
from ..node import Entry, Node
from ..params import Field, NoParams, Params, Shape
from ..registry import register, register_backward
from ..shape.view import copy_bytes
from .added_rows import add_rows, add_rows_temps
from .positions import checked, put_rows, take_rows, whole


class ScatterParams(Params):
    shape: Shape = Field(description="Shape of the output.")


gather_nd = register("gather_nd", inputs=("data", "indices"), doc="data's elements at positions along several axes.")
scatter_nd = register(
    "scatter_nd", ScatterParams, inputs=("data", "indices"), doc="Zeros with data at positions along several axes."
)
scatter_set_nd = register(
    "_scatter_set_nd",
    ScatterParams,
    inputs=("lhs", "rhs", "indices"),
    doc="lhs with rhs at positions along several axes.",
).inplace((0, 0))
gather_backward = register_backward("_backward_gather_nd", outputs=("data", "indices"))
scatter_backward = register_backward("_backward_scatter_nd", ScatterParams, outputs=("data", "indices"))


def _selected(full: tuple[int, ...], indices: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of what `indices` select from an array of shape `full`."""
    if not indices or not 0 <= indices[0] <= len(full):
        raise ShapeError(f"indices: expected 1 to {len(full)} positions on its first axis, got {show_shape(indices)}")
    return (*indices[1:], *full[indices[0] :])


@gather_nd.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    data, indices = ins
    if data is not None and indices is not None and (indices == () or indices[0] >= 0):
        outs.merge(0, _selected(data, indices))


@scatter_nd.infer_shape
def _(p: ScatterParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, p.shape)
    if ins[1] is not None and (ins[1] == () or ins[1][0] >= 0):
        ins.merge(0, _selected(p.shape, ins[1]))


@scatter_set_nd.infer_shape
def _(p: ScatterParams, ins: ShapeList, outs: ShapeList) -> None:
    ins.merge(0, p.shape)
    outs.merge(0, p.shape)
    if ins[2] is not None and (ins[2] == () or ins[2][0] >= 0):
        ins.merge(1, _selected(p.shape, ins[2]))


@gather_nd.infer_type
@scatter_nd.infer_type
def _(p: Any, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))


@scatter_set_nd.infer_type
def _(p: Any, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.merge(1, ins.merge(0, outs.merge(0, ins[0] or ins[1])))
    outs.merge(0, dtype)


@gather_nd.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [backward_node("_backward_gather_nd", node, [ograds[0], node.inputs[1]])[0], None]


@scatter_nd.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [backward_node("_backward_scatter_nd", node, [ograds[0], node.inputs[1]])[0], None]


def _matrix(full: tuple[int, ...], indices: tuple[int, ...]) -> tuple[int, int]:
    """`full` as a matrix (rows, width): the rows are what a tuple of positions selects."""
    return size_of(full[: indices[0]]), size_of(full[indices[0] :])


def _flat_temps(indices: ArraySpec) -> list[Temp]:
    """The rows' numbers, and the positions on one axis."""
    return [Temp(indices.shape[1:], "int64")] * 2


def _flat(xp: Any, full: tuple[int, ...], indices: Array, temps: Arrays) -> Array:
    """The numbers (n,) of the rows that `indices` select."""
    flat, where = temps[:2]
    flat.fill(0)
    for axis, size in enumerate(full[: indices.shape[0]]):
        whole(xp, indices[axis], where)
        checked(xp, where, -size, size, f"indices[{axis}]")
        xp.remainder(where, max(size, 1), out=where)
        xp.multiply(flat, size, out=flat)
        xp.add(flat, where, out=flat)
    return flat.reshape(-1)


def _gather(ctx: OpContext, data: Array, indices: Array, out: Array) -> None:
    where, matrix = _flat(ctx.xp, data.shape, indices, ctx.temp), _matrix(data.shape, indices.shape)
    take_rows(ctx.xp, data.reshape(matrix), where, out.reshape(len(where), matrix[1]))


def _no_gradient(outputs: Outputs) -> None:
    for out in outputs[1:]:
        if out is not None:
            out.fill(0)


@gather_nd.compute(temps=lambda p, call: _flat_temps(call.inputs[1]))
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _gather(ctx, inputs[0], inputs[1], outputs[0])


@scatter_backward.compute(temps=lambda p, call: _flat_temps(call.inputs[1]))
def _(p: ScatterParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        _gather(ctx, inputs[0], inputs[1], outputs[0])
    _no_gradient(outputs)


def backward_temps(p: NoParams, call: CallSpec, *, sorts: bool = False) -> list[Temp]:
    """Flat positions, and what adds the rows up."""
    gout, indices = call.inputs
    adding = add_rows_temps(call.device, size_of(indices.shape[1:]), gout, call.outputs[0], sorts=sorts)
    return [*_flat_temps(indices), *adding]


@gather_backward.compute(temps=backward_temps)
def add_gradients(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, indices = inputs
    if outputs[0] is not None:
        full = outputs[0].shape
        where, matrix = _flat(ctx.xp, full, indices, ctx.temp), _matrix(full, indices.shape)
        add_rows(ctx.xp, where, gout.reshape(len(where), matrix[1]), outputs[0].reshape(matrix), ctx.temp[2:])
    _no_gradient(outputs)


def _put(ctx: OpContext, data: Array, indices: Array, out: Array) -> None:
    where, matrix = _flat(ctx.xp, out.shape, indices, ctx.temp), _matrix(out.shape, indices.shape)
    put_rows(ctx.xp, out.reshape(matrix), where, data.reshape(len(where), matrix[1]))


@scatter_nd.compute(temps=lambda p, call: _flat_temps(call.inputs[1]))
def _(p: ScatterParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0].fill(0)
    _put(ctx, inputs[0], inputs[1], outputs[0])


@scatter_set_nd.compute(temps=lambda p, call: _flat_temps(call.inputs[2]))
def _(p: ScatterParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    lhs, rhs, indices = inputs
    copy_bytes(ctx, lhs, outputs[0])
    _put(ctx, rhs, indices, outputs[0])
