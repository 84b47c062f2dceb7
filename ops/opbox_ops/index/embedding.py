"""Embedding: each number of data becomes that row of weight.

data (…) of positions, clipped to 0 … input_dim - 1; weight (input_dim, output_dim); out (…, output_dim).

    gweight[r] = the sum of gout where data is r        data has no gradient
"""

from __future__ import annotations

from ..compute import Arrays, CallSpec, OpContext, OpReq, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, size_of
from ..node import Entry, Node
from ..params import AnyDType, Bool, Field, Params, PositiveInt
from ..registry import register, register_backward
from .added_rows import add_rows, add_rows_temps
from .positions import positions, take_rows


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


@op.compute(temps=lambda p, call: [Temp(call.inputs[0].shape, "int64")])
def _(p: EmbeddingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    where = positions(ctx.xp, inputs[0], p.input_dim, "clip", ctx.temp[0])
    take_rows(ctx.xp, inputs[1], where, outputs[0])


def backward_temps(p: EmbeddingParams, call: CallSpec, *, sorts: bool = False) -> list[Temp]:
    """The positions, and what adds the rows up."""
    gout, data = call.inputs
    count = size_of(data.shape)
    return [Temp((count,), "int64"), *add_rows_temps(call.device, count, gout, call.outputs[1], sorts=sorts)]


# It adds to the weight's gradient itself: a vocabulary is large beside the rows that are added to it.
@backward.compute(temps=backward_temps, accumulates=True)
def add_gradients(p: EmbeddingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, data = inputs
    where, *adding = ctx.temp
    if outputs[0] is not None and ctx.req[0] != OpReq.ADD:
        outputs[0].fill(0)
    if outputs[1] is not None:
        positions(ctx.xp, data.reshape(-1), p.input_dim, "clip", where)
        rows = gout.reshape(len(where), p.output_dim)
        add_rows(ctx.xp, where, rows, outputs[1], adding, fresh=ctx.req[1] != OpReq.ADD)
