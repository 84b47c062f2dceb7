"""_set_value: an array with every element src, of the shape and type of the array that it is written to."""

from __future__ import annotations

from ..compute import Arrays, OpContext, Outputs
from ..infer import ShapeList, TypeList
from ..params import Field, Float, Params
from ..registry import register


class SetValueParams(Params):
    src: Float = Field(description="The value of every element.")


op = register("_set_value", SetValueParams, inputs=())


@op.infer_shape
def _(p: SetValueParams, ins: ShapeList, outs: ShapeList) -> None:
    """Nothing settles the shape but the output."""


@op.infer_type
def _(p: SetValueParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, outs[0] or "float32")


@op.compute()
def _(p: SetValueParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0].fill(outputs[0].dtype.type(p.src))
