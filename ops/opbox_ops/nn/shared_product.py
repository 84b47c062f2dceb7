"""FullyConnected called several times with one weight, as a plan pass has it: one product for all calls.

    stacked forward     data_1 (r_1, features), …, weight, bias -> out (r_1 + …, num_hidden), one below the other
    summed gradients    gout_1 (r_1, num_hidden), …, data_1, … -> gweight, gbias: summed over all calls

A product of few rows reads all of the weight for them, and a gradient of few rows writes all of it. Rows are copied
below one another in pieces that stay in the cache; weight gradients are summed piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..infer import size_of
from ..operator import Op
from ..params import Params

__all__ = ["ROWS", "STACKED", "SUMMED", "SharedProductParams"]

ROWS = 256
"""Rows of a product beyond which more make it no faster, and its arrays only larger.

With OpenBLAS on one core, a weight of 1024 x 256 and float32: 32 rows 64 GFLOP/s, 64 to 1568 rows 70 to 80 GFLOP/s.
"""


class SharedProductParams(Params):
    calls: Any
    """How many calls."""
    bias: Any
    """Whether the calls have a bias."""


def _data_names(p: SharedProductParams) -> list[str]:
    return [f"data{i}" for i in range(p.calls)]


STACKED = Op(
    "_stacked_FullyConnected",
    SharedProductParams,
    lambda p: [*_data_names(p), "weight", *(("bias",) if p.bias else ())],
    lambda p: ["output"],
    (),
    "FullyConnected of several inputs with one weight: the outputs, one below the other.",
)
SUMMED = Op(
    "_summed_backward_FullyConnected",
    SharedProductParams,
    lambda p: [*(f"ograd{i}" for i in range(p.calls)), *_data_names(p)],
    lambda p: ["weight", "bias"],
    (),
    "The gradients of one weight and bias, summed over several calls of FullyConnected.",
)


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape as a matrix: all axes but the first are features."""
    return shape[0], size_of(shape[1:])


def _stack(target: Array, arrays: Arrays) -> list[tuple[Array, Array]]:
    """Pairs of a row block of `target`, in the shape of an array, and that array."""
    pairs, begin = [], 0
    for array in arrays:
        end = begin + array.shape[0]
        pairs.append((target[begin:end].reshape(array.shape), array))
        begin = end
    return pairs


def _stacked_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    out, weight = call.outputs[0], call.inputs[p.calls]
    return [Temp((out.shape[0], weight.shape[1]), out.dtype)]


@STACKED.compute(temps=_stacked_temps, prepares=True)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    xp, rows, out = ctx.xp, ctx.temp[0], outputs[0]
    weight, bias = inputs[p.calls], inputs[p.calls + 1] if p.bias else None
    pairs = _stack(rows, inputs[: p.calls])

    def run() -> None:
        for block, data in pairs:
            xp.copyto(block, data)
        matmul(xp, rows, weight.T, out)
        if bias is not None:
            xp.add(out, bias, out=out)

    return run


def _pieces(p: SharedProductParams, rows: list[int]) -> list[range]:
    """The calls in pieces of at most ROWS rows together, or of one call."""
    pieces, begin, total = [], 0, 0
    for i, count in enumerate(rows):
        if i > begin and total + count > ROWS:
            pieces.append(range(begin, i))
            begin, total = i, 0
        total += count
    return [*pieces, range(begin, p.calls)]


def _summed_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    gouts, datas = call.inputs[: p.calls], call.inputs[p.calls :]
    rows = [gout.shape[0] for gout in gouts]
    pieces = _pieces(p, rows)
    most = max(sum(rows[i] for i in piece) for piece in pieces)
    dtype, hidden, features = gouts[0].dtype, gouts[0].shape[1], _rows(datas[0].shape)[1]
    more = len(pieces) > 1
    return [
        Temp((most, hidden), dtype),
        Temp((most, features) if call.wants(0) else (0, 0), dtype),
        Temp((hidden, features) if more and call.wants(0) else (0, 0), dtype),
        Temp((hidden,) if more and call.wants(1) else (0,), dtype),
    ]


@SUMMED.compute(temps=_summed_temps, prepares=True)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    xp, (gweight, gbias), (gout_rows, data_rows, weight_part, bias_part) = ctx.xp, outputs, ctx.temp
    gouts, datas = inputs[: p.calls], inputs[p.calls :]
    rows = [gout.shape[0] for gout in gouts]
    calls: list[Callable[[], Any]] = []
    for number, piece in enumerate(_pieces(p, rows)):
        count = sum(rows[i] for i in piece)
        g, x = gout_rows[:count], data_rows[:count]
        pairs = _stack(g, [gouts[i] for i in piece])
        if gweight is not None:
            pairs += _stack(x, [datas[i] for i in piece])
            target = weight_part if number else gweight
            calls.append(partial(matmul, xp, g.T, x, target))
            if number:
                calls.append(partial(xp.add, gweight, weight_part, out=gweight))
        if gbias is not None:
            target = bias_part if number else gbias
            calls.append(partial(xp.sum, g, axis=0, out=target))
            if number:
                calls.append(partial(xp.add, gbias, bias_part, out=gbias))
        first = len(calls) - (bool(gweight is not None) + bool(gbias is not None)) * (2 if number else 1)
        calls[first:first] = [partial(xp.copyto, block, array) for block, array in pairs]

    def run() -> None:
        for call in calls:
            call()

    return run
