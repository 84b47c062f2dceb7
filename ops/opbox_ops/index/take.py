"""take: slices of `a` along an axis, at the positions in `indices`.

a (…, n, …), indices (k, …) -> (…, k, …, …); positions out of range are clipped, wrapped, or an error (mode raise).

    ga[…, r, …] = the sum of gout where indices is r        indices has no gradient
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..compute import Array, Arrays, OpContext, Reqs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis, size_of
from ..node import Entry, Node
from ..params import Field, Int, Params
from ..registry import register, register_backward
from .positions import add_rows, positions, take_rows


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


def _places(p: TakeParams, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> Sequence[Temp]:
    return [Temp(in_shapes[1], "int64")]


op.resources(_places)
backward.resources(_places)


@op.compute()
def _(p: TakeParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    a, indices = inputs
    axis = p.axis % a.ndim
    where = positions(ctx.xp, indices, a.shape[axis], p.mode, ctx.temp[0])
    take_rows(ctx.xp, a, where, req[0], outputs[0], axis)


@backward.compute()
def _(p: TakeParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    gout, indices = inputs
    ga = outputs[0]
    axis = p.axis % ga.ndim
    size = ga.shape[axis]
    where = positions(ctx.xp, indices, size, p.mode, ctx.temp[0]).reshape(-1)
    before, after = size_of(ga.shape[:axis]), size_of(ga.shape[axis + 1 :])
    if before != 1:
        where = _flat(ctx.xp, where, before, size)
    add_rows(ctx.xp, where, gout.reshape(len(where), after), req[0], ga.reshape(before * size, after))
    if len(outputs) > 1 and req[1] in (1, 2):
        outputs[1].fill(0)


def _flat(xp: Any, where: Array, before: int, size: int) -> Array:
    """Positions in a stack of `before` tables of `size` rows, as if it were one table."""
    return (xp.arange(before, dtype="int64")[:, None] * size + where).reshape(-1)
