"""FullyConnected called several times with one weight, as a plan pass has it: one product for all calls.

    stacked forward     data_1 (r_1, features), …, weight, bias -> out (r_1 + …, num_hidden), one below the other
    summed gradients    gout_1 (r_1, num_hidden), …, data_1, … -> gweight, gbias: summed over all calls

A product of few rows reads all of the weight for them, and a gradient of few rows writes all of it. Rows are copied
below one another in pieces that stay in the cache; weight gradients are summed piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..infer import size_of
from ..operator import Op
from ..params import Params

__all__ = [
    "ROWS",
    "STACKED",
    "SUMMED",
    "SharedProductParams",
    "pieces",
    "stack",
    "stacked_temps",
    "sum_products",
    "summed_temps",
]

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


def stack(target: Array, arrays: Arrays) -> list[tuple[Array, Array]]:
    """Pairs of a row block of `target`, in the shape of an array, and that array."""
    pairs, begin = [], 0
    for array in arrays:
        end = begin + array.shape[0]
        pairs.append((target[begin:end].reshape(array.shape), array))
        begin = end
    return pairs


def stacked_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    out, weight = call.outputs[0], call.inputs[p.calls]
    return [Temp((out.shape[0], weight.shape[1]), out.dtype)]


@STACKED.compute(temps=stacked_temps, prepares=True)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    xp, rows, out = ctx.xp, ctx.temp[0], outputs[0]
    weight, bias = inputs[p.calls], inputs[p.calls + 1] if p.bias else None
    pairs = stack(rows, inputs[: p.calls])

    def run() -> None:
        for block, data in pairs:
            xp.copyto(block, data)
        matmul(xp, rows, weight.T, out)
        if bias is not None:
            xp.add(out, bias, out=out)

    return run


def pieces(rows: list[int]) -> list[range]:
    """Calls of these numbers of rows in pieces of at most ROWS rows together, or of one call."""
    parts, begin, total = [], 0, 0
    for i, count in enumerate(rows):
        if i > begin and total + count > ROWS:
            parts.append(range(begin, i))
            begin, total = i, 0
        total += count
    return [*parts, range(begin, len(rows))]


def summed_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    """The temporary arrays of `sum_products`."""
    gouts, datas = call.inputs[: p.calls], call.inputs[p.calls :]
    rows = [gout.shape[0] for gout in gouts]
    parts = pieces(rows)
    most = max(sum(rows[i] for i in part) for part in parts)
    dtype, hidden, features = gouts[0].dtype, gouts[0].shape[1], _rows(datas[0].shape)[1]
    return [
        Temp((most, hidden), dtype),
        Temp((most, features) if call.wants(0) else (0, 0), dtype),
        Temp((hidden,) if len(parts) > 1 and call.wants(1) else (0,), dtype),
    ]


Product: TypeAlias = Callable[[Array, Array, Array, bool], Sequence[Callable[[], Any]]]
"""From gout, data, gweight, and whether it is added to gweight, to calls that compute gout.T @ data."""


def sum_products(
    p: SharedProductParams, xp: Any, temps: Arrays, inputs: Arrays, outputs: Outputs, product: Product
) -> Callable[[], None]:
    """A call that computes the gradients piece by piece, each a `product`."""
    (gweight, gbias), (gout_rows, data_rows, bias_part) = outputs, temps
    gouts, datas = inputs[: p.calls], inputs[p.calls :]
    rows = [gout.shape[0] for gout in gouts]
    calls: list[Callable[[], Any]] = []
    for number, part in enumerate(pieces(rows)):
        count = sum(rows[i] for i in part)
        g, x = gout_rows[:count], data_rows[:count]
        pairs = stack(g, [gouts[i] for i in part])
        if gweight is not None:
            pairs += stack(x, [datas[i] for i in part])
        calls += [partial(xp.copyto, block, array) for block, array in pairs]
        if gweight is not None:
            calls += product(g, x, gweight, number > 0)
        if gbias is not None:
            calls.append(partial(xp.sum, g, axis=0, out=bias_part if number else gbias))
            if number:
                calls.append(partial(xp.add, gbias, bias_part, out=gbias))

    return as_one(calls)


def _reference_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    gouts, data = call.inputs[: p.calls], call.inputs[p.calls]
    more = call.wants(0) and len(pieces([gout.shape[0] for gout in gouts])) > 1
    part = (gouts[0].shape[1], _rows(data.shape)[1]) if more else (0, 0)
    return [*summed_temps(p, call), Temp(part, gouts[0].dtype)]


@SUMMED.compute(temps=_reference_temps, prepares=True)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    xp, (*temps, part) = ctx.xp, ctx.temp

    def product(g: Array, x: Array, gweight: Array, adds: bool) -> list[Callable[[], Any]]:
        if not adds:
            return [partial(matmul, xp, g.T, x, gweight)]
        return [partial(matmul, xp, g.T, x, part), partial(xp.add, gweight, part, out=gweight)]

    return sum_products(p, xp, temps, inputs, outputs, product)
