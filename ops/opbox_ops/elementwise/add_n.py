"""add_n: out = the sum of all inputs, which have one shape; each input's gradient is gout."""

from __future__ import annotations

from functools import cache

from ..expression.language import Expression, Term
from ..expression.operators import pointwise
from ..expression.pointwise import Pointwise
from ..infer import all_same_shape, numeric_types
from ..node import Entry, Node
from ..params import Count, Field, Params
from ..registry import Variadic, register


class AddNParams(Params):
    num_args: Count = Field(description="How many inputs.")


op = register("add_n", AddNParams, inputs=Variadic(), aliases=("ElementWiseSum",))

op.set_attr("FInferShape", all_same_shape)
op.set_attr("FInferType", numeric_types)
op.inplace((0, 0))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [ograds[0]] * len(node.inputs)


@cache
def _sum(count: int) -> Pointwise:
    names = tuple([f"x{i}" for i in range(count)])
    total: Term = names[0]
    for name in names[1:]:
        total = ("add", (total, name))
    return Pointwise(names, (Expression.of(total, names),))


pointwise(op, lambda p, ins, outs: _sum(len(ins)))
