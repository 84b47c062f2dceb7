"""one_hot: out[…, j] = on_value where j is indices' number, off_value elsewhere.

indices (…) of any element type -> (…, depth); a number outside 0 … depth - 1 gives a row of off_value. No gradient.
"""

from __future__ import annotations

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..params import AnyDType, Field, Float, Params, PositiveInt, as_element
from ..registry import register
from .counting import count_up
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


def _temps(p: OneHotParams, call: CallSpec) -> list[Temp]:
    indices, out = call.inputs[0], call.outputs[0]
    return [Temp(indices.shape, "int64"), Temp((p.depth,), "int64"), Temp(out.shape, "bool")]


@op.compute(temps=_temps)
def _(p: OneHotParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, out, (where, numbers, hot) = ctx.xp, outputs[0], ctx.temp
    xp.equal(whole(xp, inputs[0], where)[..., None], count_up(xp, numbers), out=hot)
    out.fill(as_element(p.off_value, out.dtype))
    xp.copyto(out, as_element(p.on_value, out.dtype), where=hot)
