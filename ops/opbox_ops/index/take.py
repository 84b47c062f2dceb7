"""take: slices of `a` along an axis, at the positions in `indices`.

a (…, n, …), indices (k, …) -> (…, k, …, …); positions out of range are clipped, wrapped, or an error (mode raise).

    ga[…, r, …] = the sum of gout where indices is r        indices has no gradient
"""

from __future__ import annotations

from typing import Literal

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, CallSpec, OpContext, OpReq, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis, known, show_shape, size_of
from ..node import Entry, Node
from ..params import Field, Int, Params
from ..registry import register, register_backward
from .added_rows import add_rows, add_rows_temps
from .counting import count_up
from .positions import positions, take_rows


class TakeParams(Params):
    axis: Int = Field(0, description="The axis of a that indices count along.")
    mode: Literal["clip", "raise", "wrap"] = Field("clip", description="What happens to positions out of range.")


op = register("take", TakeParams, inputs=("a", "indices"))
backward = register_backward("_backward_take", TakeParams, outputs=("a", "indices"))


@op.infer_shape
def _(p: TakeParams, ins: ShapeList, outs: ShapeList) -> None:
    a, indices = ins
    if a is None or indices is None:
        return
    axis = canonical_axis(p.axis, len(a))
    if a[axis] == 0 and known(indices) and 0 not in indices:
        raise ShapeError(f"a: expected something to take on axis {axis}, got {show_shape(a)}")
    out = outs.merge(0, (*a[:axis], *indices, *a[axis + 1 :]))
    assert out is not None
    end = axis + len(indices)
    ins.merge(0, (*out[:axis], -1, *out[end:]))
    ins.merge(1, out[axis:end])


@op.infer_type
def _(p: TakeParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [backward_node("_backward_take", node, [ograds[0], node.inputs[1]])[0], None]


@op.compute(temps=lambda p, call: [Temp(call.inputs[1].shape, "int64")])
def _(p: TakeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    a, indices = inputs
    axis = p.axis % a.ndim
    take_rows(ctx.xp, a, positions(ctx.xp, indices, a.shape[axis], p.mode, ctx.temp[0]), outputs[0], axis)


def backward_temps(p: TakeParams, call: CallSpec, *, sorts: bool = False) -> list[Temp]:
    """The positions, as often as `a` has a table of that axis, and what adds the rows up."""
    (gout, indices), ga = call.inputs, call.outputs[0]
    tables, count = size_of(ga.shape[: p.axis % len(ga.shape)]), size_of(indices.shape)
    stack = Temp((tables, count if tables != 1 else 0), "int64")
    adding = add_rows_temps(call.device, tables * count, gout, ga, sorts=sorts)
    return [Temp((count,), "int64"), stack, Temp((tables,), "int64"), *adding]


# It adds to `ga` itself: a table is large beside the rows that are added to it.
@backward.compute(temps=backward_temps, accumulates=True)
def add_gradients(p: TakeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (gout, indices), ga = ctx.xp, inputs, outputs[0]
    if len(outputs) > 1 and outputs[1] is not None and ctx.req[1] != OpReq.ADD:
        outputs[1].fill(0)
    if ga is None:
        return
    where, stack, tables, *adding = ctx.temp
    axis = p.axis % ga.ndim
    size = ga.shape[axis]
    positions(xp, indices.reshape(-1), size, p.mode, where)
    before, after = size_of(ga.shape[:axis]), size_of(ga.shape[axis + 1 :])
    if before != 1:
        # Positions in a stack of tables, as if it were one table.
        xp.multiply(count_up(xp, tables), size, out=tables)
        where = xp.add(tables[:, None], where, out=stack).reshape(-1)
    rows = gout.reshape(len(where), after)
    add_rows(xp, where, rows, ga.reshape(before * size, after), adding, fresh=ctx.req[0] != OpReq.ADD)
