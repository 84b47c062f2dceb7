"""gather_nd, scatter_nd, _scatter_set_nd: elements (or slices) at positions along several axes at once.

indices (m, …): indices[:, i] is a position along data's first m axes.

    gather_nd: out[i] = data[indices[0, i], …, indices[m-1, i]]        its gradient adds up where positions recur
    scatter_nd: zeros of `shape` with data at the positions            _scatter_set_nd: lhs with rhs at the positions
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, show_shape, size_of
from ..node import Entry, Node
from ..params import Field, NoParams, Params, Shape
from ..registry import register, register_backward
from ..shape.view import copy_bytes
from .positions import add_rows, checked, take_rows, whole


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
    if data is not None and indices is not None and indices[:1] >= (0,):
        outs.merge(0, _selected(data, indices))


@scatter_nd.infer_shape
def _(p: ScatterParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, p.shape)
    if ins[1] is not None and ins[1][:1] >= (0,):
        ins.merge(0, _selected(p.shape, ins[1]))


@scatter_set_nd.infer_shape
def _(p: ScatterParams, ins: ShapeList, outs: ShapeList) -> None:
    ins.merge(0, p.shape)
    outs.merge(0, p.shape)
    if ins[2] is not None and ins[2][:1] >= (0,):
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


def _rows(xp: Any, full: tuple[int, ...], indices: Array) -> tuple[Array, tuple[int, int]]:
    """Positions in `full` as rows of a matrix over its first m axes (rows, width), and that matrix's shape."""
    lead = full[: indices.shape[0]]
    flat = xp.zeros(indices.shape[1:], "int64")
    for axis, size in enumerate(lead):
        where = whole(xp, indices[axis], xp.empty(indices.shape[1:], "int64"))
        checked(xp, where, -size, size, f"indices[{axis}]")
        flat *= size
        flat += xp.remainder(where, max(size, 1))
    return flat.reshape(-1), (size_of(lead), size_of(full[len(lead) :]))


def _gather(xp: Any, data: Array, indices: Array, req: OpReq, out: Array) -> None:
    if req:
        where, matrix = _rows(xp, data.shape, indices)
        take_rows(xp, data.reshape(matrix), where, req, out.reshape(len(where), matrix[1]))


@gather_nd.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    _gather(ctx.xp, inputs[0], inputs[1], req[0], outputs[0])


@scatter_backward.compute()
def _(p: ScatterParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    _gather(ctx.xp, inputs[0], inputs[1], req[0], outputs[0])
    _no_gradient(req, outputs)


@gather_backward.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if req[0]:
        gout, indices = inputs
        where, matrix = _rows(ctx.xp, outputs[0].shape, indices)
        add_rows(ctx.xp, where, gout.reshape(len(where), matrix[1]), req[0], outputs[0].reshape(matrix))
    _no_gradient(req, outputs)


def _no_gradient(req: Reqs, outputs: Arrays) -> None:
    for kind, out in zip(req[1:], outputs[1:], strict=True):
        if kind in (OpReq.WRITE, OpReq.INPLACE):
            out.fill(0)


def _put(xp: Any, data: Array, indices: Array, out: Array) -> None:
    where, matrix = _rows(xp, out.shape, indices)
    out.reshape(matrix)[where] = data.reshape(len(where), matrix[1])


@scatter_nd.compute()
def _(p: ScatterParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    out = ctx.xp.empty_like(outputs[0]) if req[0] == OpReq.ADD else outputs[0]
    if req[0]:
        out.fill(0)
        _put(ctx.xp, inputs[0], inputs[1], out)
    if req[0] == OpReq.ADD:
        assign(outputs[0], req[0], out)


@scatter_set_nd.compute()
def _(p: ScatterParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    lhs, rhs, indices = inputs
    if req[0] == OpReq.ADD:
        changed = lhs.copy()
        _put(ctx.xp, rhs, indices, changed)
        assign(outputs[0], req[0], changed)
    elif req[0]:
        copy_bytes(ctx.xp, lhs, req[0], outputs[0])
        _put(ctx.xp, rhs, indices, outputs[0])
