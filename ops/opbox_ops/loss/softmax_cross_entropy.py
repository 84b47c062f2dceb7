"""softmax_cross_entropy: out = -sum over the batch of log softmax(data)[label].

data (batch, classes), label (batch,) of class numbers, out (1,). gdata = gout (softmax(data) - one_hot(label)); label
has no gradient. A label that is no class adds to the loss what a probability of zero would (-log 1e-8).
"""

from __future__ import annotations

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..index.counting import count_up
from ..index.positions import put_rows, take_rows, whole
from ..infer import ShapeList, all_same_float
from ..nn.softmax import softmax_into, softmax_temps
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register, register_backward

MIN_PROBABILITY = 1e-8
"""Minimum probability: smaller ones count as this, as in MXNet."""

op = register("softmax_cross_entropy", inputs=("data", "label"))
backward = register_backward("_backward_softmax_cross_entropy", outputs=("data",))


@op.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    ins.rank(0, 2)
    ins.rank(1, 1)
    label = ins.merge(1, (ins[0] or (-1,))[:1])
    ins.merge(0, (*(label or (-1,)), -1))
    outs.merge(0, (1,))


op.infer_type(all_same_float)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_softmax_cross_entropy", node, [ograds[0], *node.inputs], outputs=1)


def _temps(p: NoParams, call: CallSpec) -> list[Temp]:
    """The probabilities and what makes them; of each row: label, class, number in data, hit (twice), probability."""
    data, label = call.inputs[-2:]
    wide = accumulation_type(data.dtype)
    whole_numbers, ones, numbers = (Temp(label.shape, dtype) for dtype in ("int64", "bool", wide))
    rows = [whole_numbers] * 3 + [ones, numbers, numbers, Temp((1,), wide)]
    return [*rows, Temp(data.shape, wide), *softmax_temps(data, wide, 1)]


def _probabilities(ctx: OpContext, data: Array, label: Array) -> tuple[Array, Array]:
    """softmax(data), and the numbers of the labels' elements in it; `ctx.temp[3]` says which labels are classes."""
    xp, (numbers, classes, cells, hit, _, _, _, out, *making) = ctx.xp, ctx.temp
    softmax_into(xp, out, data, 1, making)
    xp.clip(whole(xp, label, numbers), 0, data.shape[1] - 1, out=classes)
    xp.equal(classes, numbers, out=hit)
    xp.multiply(count_up(xp, cells), data.shape[1], out=cells)
    xp.add(cells, classes, out=cells)
    return out, cells


@op.compute(temps=_temps)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (data, label) = ctx.xp, inputs
    if not data.size:
        outputs[0].fill(0)
        return
    hit, _, picked, total = ctx.temp[3:7]
    out, cells = _probabilities(ctx, data, label)
    take_rows(xp, out.reshape(-1), cells, picked)
    xp.logical_not(hit, out=hit)
    xp.copyto(picked, 0, where=hit)
    xp.maximum(picked, MIN_PROBABILITY, out=picked)
    xp.log(picked, out=picked)
    xp.sum(picked, keepdims=True, out=total)
    xp.negative(total, out=total)
    xp.copyto(outputs[0], total, casting="unsafe")


@backward.compute(temps=_temps)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (gout, data, label) = ctx.xp, inputs
    if not data.size:
        return
    hit, hits, picked, factor = ctx.temp[3:7]
    value, cells = _probabilities(ctx, data, label)
    take_rows(xp, value.reshape(-1), cells, picked)
    xp.copyto(hits, hit)
    xp.subtract(picked, hits, out=picked)
    put_rows(xp, value.reshape(-1, 1), cells, picked.reshape(-1, 1))
    xp.copyto(factor, gout)
    xp.multiply(value, factor, out=value)
    xp.copyto(outputs[0], value, casting="unsafe")
