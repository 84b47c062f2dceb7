"""Embedding: each number of data becomes that row of weight.

data (…) of positions, clipped to 0 … input_dim - 1; weight (input_dim, output_dim); out (…, output_dim).

    gweight[r] = the sum of gout where data is r        data has no gradient
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..compute import Arrays, OpContext, Reqs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..params import AnyDType, Bool, Field, Params, PositiveInt
from ..registry import register, register_backward
from .positions import add_rows, positions, take_rows


class EmbeddingParams(Params):
    input_dim: PositiveInt = Field(description="Rows of weight: how many different numbers data may hold.")
    output_dim: PositiveInt = Field(description="Columns of weight: the length of the vector of each.")
    dtype: AnyDType = Field("float32", description="weight's element type where nothing else tells it.")
    sparse_grad: Bool = Field(False, description="Accepted; the gradient is dense all the same.")


op = register("Embedding", EmbeddingParams, inputs=("data", "weight"))
backward = register_backward("_backward_Embedding", EmbeddingParams, outputs=("data", "weight"))


@op.infer_shape
def _(p: EmbeddingParams, ins: ShapeList, outs: ShapeList) -> None:
    ins.merge(1, (p.input_dim, p.output_dim))
    if ins[0] is not None:
        outs.merge(0, (*ins[0], p.output_dim))
    if outs[0] is not None:
        ins.merge(0, outs[0][:-1])


@op.infer_type
def _(p: EmbeddingParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(1, outs.merge(0, ins[1] or outs[0] or p.dtype))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    gdata, gweight = backward_node("_backward_Embedding", node, [ograds[0], node.inputs[0]])
    return [None, gweight] if gdata else []


def _place(p: EmbeddingParams, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> Sequence[Temp]:
    return [Temp(in_shapes[0], "int64")]


def _place_backward(
    p: EmbeddingParams, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any
) -> Sequence[Temp]:
    return [Temp(in_shapes[1], "int64")]


op.resources(_place)
backward.resources(_place_backward)


@op.compute()
def _(p: EmbeddingParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    where = positions(ctx.xp, inputs[0], p.input_dim, "clip", ctx.temp[0])
    take_rows(ctx.xp, inputs[1], where, req[0], outputs[0])


@backward.compute()
def _(p: EmbeddingParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    gout, data = inputs
    if req[0] in (1, 2):
        outputs[0].fill(0)
    where = positions(ctx.xp, data, p.input_dim, "clip", ctx.temp[0])
    add_rows(ctx.xp, where.reshape(-1), gout.reshape(-1, p.output_dim), req[1], outputs[1])
