"""add_n: out = the sum of all inputs, which have one shape; each input's gradient is gout."""

from __future__ import annotations

from ..compute import Arrays, OpContext, OpReq, Reqs, assign
from ..infer import all_same_shape
from ..node import Entry, Node
from ..params import Field, Params, PositiveInt
from ..registry import Variadic, register
from .family import numeric_types


class AddNParams(Params):
    num_args: PositiveInt = Field(description="How many inputs.")


op = register("add_n", AddNParams, inputs=Variadic(), aliases=("ElementWiseSum",))

op.set_attr("FInferShape", all_same_shape)
op.set_attr("FInferType", numeric_types)
op.inplace((0, 0))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [ograds[0]] * len(node.inputs)


@op.compute()
def _(p: AddNParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    out = outputs[0]
    rest = inputs
    if req[0] == OpReq.NULL:
        return
    if req[0] != OpReq.ADD:
        if len(inputs) == 1:
            assign(out, req[0], inputs[0])
            return
        ctx.xp.add(inputs[0], inputs[1], out=out)
        rest = inputs[2:]
    for each in rest:
        ctx.xp.add(out, each, out=out)
