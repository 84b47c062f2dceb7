"""one_hot: out[…, j] = on_value where j is indices' number, off_value elsewhere.

indices (…) of any element type -> (…, depth); a number outside 0 … depth - 1 gives a row of off_value. No gradient.
"""

from __future__ import annotations

from typing import Any

from ..compute import Arrays, OpContext, OpReq, Reqs, Temp, assign
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..params import AnyDType, Field, Float, Params, PositiveInt
from ..registry import register
from .positions import whole


class OneHotParams(Params):
    depth: PositiveInt = Field(description="Length of the new axis.")
    on_value: Float = Field(1.0, description="The value at indices' numbers.")
    off_value: Float = Field(0.0, description="The value elsewhere.")
    dtype: AnyDType = Field("float32", description="Element type of the output.")


op = register("one_hot", OneHotParams, inputs=("indices",))


@op.infer_shape
def _(p: OneHotParams, ins: ShapeList, outs: ShapeList) -> None:
    if ins[0] is not None:
        outs.merge(0, (*ins[0], p.depth))
    if outs[0] is not None:
        ins.merge(0, outs[0][:-1])


@op.infer_type
def _(p: OneHotParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, p.dtype)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [None]


@op.resources
def _(p: OneHotParams, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> list[Temp]:
    return [Temp(in_shapes[0], "int64")]


@op.compute()
def _(p: OneHotParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    xp, out = ctx.xp, outputs[0]
    on, off = out.dtype.type(p.on_value), out.dtype.type(p.off_value)
    hot = whole(xp, inputs[0], ctx.temp[0])[..., None] == xp.arange(p.depth)
    if req[0] == OpReq.ADD:
        assign(out, req[0], xp.where(hot, on, off))
    else:
        out.fill(off)
        xp.copyto(out, on, where=hot)
