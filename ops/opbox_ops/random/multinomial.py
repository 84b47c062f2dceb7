"""_sample_multinomial: positions drawn with given probabilities.

data (…, k) of probabilities that add up to 1 on the last axis, shape s -> (…, *s) of positions from 0 to k - 1; with
get_prob also the logarithm of each drawn position's probability.

    gdata[…, j] = the sum of glogprob / data[…, j] over the draws of j     (the score function, as REINFORCE needs it)
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.added_rows import add_rows, add_rows_temps
from ..index.counting import count_up
from ..index.positions import between, take_rows, whole
from ..index.searched import search_rows, search_rows_temps
from ..infer import ShapeList, TypeList, show_shape, size_of
from ..node import Entry, Node
from ..params import Bool, Field, KnownShape, Params
from ..registry import Slot, register, register_backward, unless, when


class MultinomialParams(Params):
    shape: KnownShape = Field((), description="How many draws from each distribution.")
    get_prob: Bool = Field(False, description="Also return the logarithm of the drawn positions' probabilities.")
    dtype: Literal["float16", "float32", "float64", "int32", "uint8"] = Field(
        "int32", description="Element type of the positions."
    )


op = register(
    "_sample_multinomial",
    MultinomialParams,
    outputs=(
        Slot("output", unless("get_prob")),
        Slot("output0", when("get_prob")),
        Slot("output1", when("get_prob")),
    ),
    aliases=("sample_multinomial",),
)
op.set_attr("TRandom", True)
backward = register_backward("_backward_sample_multinomial", MultinomialParams)


@op.infer_shape
def _(p: MultinomialParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if not data or data[-1] == 0:
        raise ShapeError(
            f"expected at least one probability on the last axis, got {show_shape(data)}", side="input", index=0
        )
    for i in range(len(outs)):
        outs.merge(i, (*data[:-1], *p.shape) or (1,))


@op.infer_type
def _(p: MultinomialParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, p.dtype)
    if p.get_prob:
        ins.merge(0, outs.merge(1, ins[0]))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    p = node.params
    assert isinstance(p, MultinomialParams)
    if not p.get_prob:
        return [None]
    return backward_node("_backward_sample_multinomial", node, [ograds[1], node.inputs[0], Entry(node, 0)])


def _table(data: Array) -> tuple[Array, int]:
    """data as rows of probabilities, and how many rows."""
    rows = size_of(data.shape[:-1])
    return data.reshape(rows, data.shape[-1]), rows


def _draw_temps(p: MultinomialParams, call: CallSpec) -> list[Temp]:
    """Temporaries of the draws: sums, draws, their places and probabilities, and what the search for them takes."""
    data = call.inputs[0]
    rows, draws = size_of(data.shape[:-1]), size_of(p.shape)
    return [
        Temp((rows, data.shape[-1]), "float64"),
        Temp((rows, 1), "float64"),
        Temp((rows, draws), "float64"),
        Temp((rows, draws), "int64"),
        Temp((rows, draws if p.get_prob else 0), data.dtype),
        *search_rows_temps((rows, draws), "float64"),
    ]


@op.compute(temps=_draw_temps)
def _(p: MultinomialParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (sums, column, drawn, where, chosen, *searching) = ctx.xp, ctx.temp
    table, _ = _table(inputs[0])
    if not drawn.size:
        return
    xp.copyto(sums, table)
    xp.cumsum(sums, axis=1, out=sums)
    xp.copyto(column, sums[:, -1:])
    xp.divide(sums, column, out=sums)
    ctx.random.uniform(drawn)
    # Row r's sums and draws are moved to (r, r + 1], where they are rounded: so they always were, for any seed.
    count_up(xp, column.reshape(-1))
    xp.add(sums, column, out=sums)
    xp.add(drawn, column, out=drawn)
    search_rows(xp, sums, drawn, where, searching)
    between(xp, where, 0, table.shape[1] - 1)
    if outputs[0] is not None:
        xp.copyto(outputs[0], where.reshape(outputs[0].shape), casting="unsafe")
    if p.get_prob and outputs[1] is not None:
        xp.add(where, searching[-1], out=where)
        take_rows(xp, table.reshape(-1), where, chosen)
        xp.log(chosen, out=chosen)
        xp.copyto(outputs[1], chosen.reshape(outputs[1].shape), casting="unsafe")


def _score_temps(p: MultinomialParams, call: CallSpec) -> list[Temp]:
    """Temporaries of the gradient: those of `add_rows`, the cells drawn, their probabilities, the rows' first cells."""
    gprob, data, _ = call.inputs
    count = size_of(gprob.shape)
    score = ArraySpec(gprob.shape, np.result_type(gprob.dtype, data.dtype))
    own = [Temp((count,), "int64"), Temp((count,), score.dtype), Temp((size_of(data.shape[:-1]),), "int64")]
    return [*add_rows_temps(call.device, count, score, data, sorts=call.device == "gpu"), *own]


@backward.compute(temps=_score_temps)
def _(p: MultinomialParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (gprob, data, drawn), (*adding, cells, scores, first) = ctx.xp, inputs, ctx.temp
    table, rows = _table(data)
    xp.multiply(count_up(xp, first), table.shape[1], out=first)
    by_row = whole(xp, drawn.reshape(-1), cells).reshape(rows, -1) if rows else cells.reshape(0, 0)
    xp.add(by_row, first[:, None], out=by_row)
    take_rows(xp, table.reshape(-1), cells, scores)
    xp.divide(gprob.reshape(-1), scores, out=scores)
    add_rows(xp, cells, scores.reshape(-1, 1), outputs[0].reshape(table.size, 1), adding)
