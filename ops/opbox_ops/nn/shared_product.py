"""FullyConnected called several times with one weight, as a plan pass has it: one product for all calls.

    stacked forward     data_1 (r_1, features), …, weight, bias -> out (r_1 + …, num_hidden), one below the other
    summed gradients    gout_1 (r_1, num_hidden), …, data_1, … -> gweight, gbias: summed over all calls; with further
                        weights whose calls have the same gouts, data and outputs for each

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
    "Stacking",
    "pieces",
    "stack",
    "stacked_by",
    "stacked_temps",
    "sum_products",
    "summed_temps",
    "wanted_weights",
]

ROWS = 256
"""Rows of a product beyond which more make it no faster, and its arrays only larger.

With OpenBLAS on one core, a weight of 1024 x 256 and float32: 32 rows 64 GFLOP/s, 64 to 1568 rows 70 to 80 GFLOP/s.
"""


class SharedProductParams(Params):
    calls: Any
    """The number of calls."""
    bias: Any
    """True if the calls have a bias."""
    weights: Any = 1
    """The number of weights whose gradients are computed."""


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
    lambda p: [*(f"ograd{i}" for i in range(p.calls)), *(f"data{i}" for i in range(p.calls * p.weights))],
    lambda p: [f"{name}{w}" for w in range(p.weights) for name in ("weight", "bias")],
    (),
    "The gradients of a weight and bias, or of several, summed over calls of FullyConnected.",
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


def wanted_weights(p: SharedProductParams, call: CallSpec) -> list[tuple[int, int]]:
    """The number and the features of the weights whose gradients are wanted."""
    firsts = [(w, call.inputs[p.calls * (w + 1)]) for w in range(p.weights) if call.wants(2 * w)]
    return [(w, _rows(data.shape)[1]) for w, data in firsts]


def summed_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    """The temporary arrays of `sum_products`."""
    gouts = call.inputs[: p.calls]
    rows = [gout.shape[0] for gout in gouts]
    parts = pieces(rows)
    most = max(sum(rows[i] for i in part) for part in parts)
    dtype, hidden = gouts[0].dtype, gouts[0].shape[1]
    features = max([features for _, features in wanted_weights(p, call)], default=0)
    wants_bias = any(call.wants(2 * w + 1) for w in range(p.weights))
    return [
        Temp((most, hidden), dtype),
        Temp((most * features,), dtype),
        Temp((hidden,) if len(parts) > 1 and wants_bias else (0,), dtype),
    ]


Product: TypeAlias = Callable[[Array, Array, Array, bool], Sequence[Callable[[], Any]]]
"""From gout, data, gweight, and whether it is added to gweight, to calls that compute gout.T @ data."""
Stacking: TypeAlias = Callable[[Array, Arrays, Array | None, Array | None], Callable[[], Any]]
"""From rows, arrays, sums and a temporary to a call that stacks the arrays, and sums the rows: `stacked_rows`."""


def stacked_by(xp: Any, copying: Callable[[Array, Array], Callable[[], Any]] | None = None) -> Stacking:
    """What `stacked_rows` does, by the array library `xp`; `copying` makes a copy from source and target."""

    def stacked(rows: Array, arrays: Arrays, sums: Array | None, part: Array | None) -> Callable[[], None]:
        pairs = stack(rows, arrays)
        calls: list[Callable[[], Any]] = [
            partial(xp.copyto, block, array) if copying is None else copying(array, block) for block, array in pairs
        ]
        if sums is not None:
            calls.append(partial(xp.sum, rows, axis=0, out=sums if part is None else part))
        if part is not None:
            calls.append(partial(xp.add, sums, part, out=sums))
        return as_one(calls)

    return stacked


def sum_products(
    p: SharedProductParams, temps: Arrays, inputs: Arrays, outputs: Outputs, product: Product, stacked: Stacking
) -> Callable[[], None]:
    """A call that computes the gradients piece by piece, each a `product` of rows that are `stacked`."""
    gout_rows, data_rows, bias_part = temps
    gouts = inputs[: p.calls]
    weights = [(outputs[2 * w], inputs[p.calls * (w + 1) : p.calls * (w + 2)]) for w in range(p.weights)]
    gbiases = [gbias for gbias in outputs[1::2] if gbias is not None]
    rows = [gout.shape[0] for gout in gouts]
    calls: list[Callable[[], Any]] = []
    gbias = gbiases[0] if gbiases else None
    for number, part in enumerate(pieces(rows)):
        g = gout_rows[: sum(rows[i] for i in part)]
        calls.append(stacked(g, [gouts[i] for i in part], gbias, bias_part if number and gbiases else None))
        for gweight, datas in weights:
            if gweight is None:
                continue
            x = data_rows[: len(g) * gweight.shape[1]].reshape(len(g), gweight.shape[1])
            calls.append(stacked(x, [datas[i] for i in part], None, None))
            calls += product(g, x, gweight, number > 0)
    calls += [stacked(other[None], [gbiases[0][None]], None, None) for other in gbiases[1:]]
    return as_one(calls)


def _reference_temps(p: SharedProductParams, call: CallSpec) -> list[Temp]:
    gouts = call.inputs[: p.calls]
    several = len(pieces([gout.shape[0] for gout in gouts])) > 1
    most = max([features for _, features in wanted_weights(p, call)], default=0) if several else 0
    return [*summed_temps(p, call), Temp((gouts[0].shape[1] * most,), gouts[0].dtype)]


@SUMMED.compute(temps=_reference_temps, prepares=True)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    xp, (*temps, part) = ctx.xp, ctx.temp

    def product(g: Array, x: Array, gweight: Array, adds: bool) -> list[Callable[[], Any]]:
        if not adds:
            return [partial(matmul, xp, g.T, x, gweight)]
        term = part[: gweight.size].reshape(gweight.shape)
        return [partial(matmul, xp, g.T, x, term), partial(xp.add, gweight, term, out=gweight)]

    return sum_products(p, temps, inputs, outputs, product, stacked_by(xp))
