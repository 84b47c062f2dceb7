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

import numpy as np

from ..accumulation import is_narrow
from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.biased_product import biased_product
from ..cuda.product import matmul, product, takes
from ..cuda.strided_copies import copies
from ..infer import size_of
from ..operator import Op
from ..params import Params

__all__ = [
    "ROWS",
    "rows_limit",
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

ROWS_ON_GPU = 2048
"""The same on a GPU, where each product is a launch."""


def rows_limit(device: str) -> int:
    """Rows of a product on a device beyond which it is not worth more."""
    return ROWS if device == "cpu" else ROWS_ON_GPU


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
    calls: list[Callable[[], Any]] = [_stacked(xp, rows, inputs[: p.calls])]
    biased = None if bias is None else biased_product(ctx.call.device, rows, weight, bias, out)
    if biased is not None:
        calls.append(biased)
    else:
        calls.append(partial(matmul, xp, rows, weight.T, out))
        calls += [] if bias is None else [partial(xp.add, out, bias, out=out)]
    return as_one(calls)


def _stacked(xp: Any, rows: Array, arrays: Arrays) -> Callable[[], Any]:
    """A call that copies arrays below one another: on a GPU in one launch."""
    pairs = stack(rows, arrays)
    return as_one([partial(xp.copyto, *pair) for pair in pairs]) if xp is np else copies(xp, pairs)


def pieces(rows: list[int], limit: int = ROWS) -> list[range]:
    """Calls of these numbers of rows in pieces of at most `limit` rows together, or of one call."""
    parts, begin, total = [], 0, 0
    for i, count in enumerate(rows):
        if i > begin and total + count > limit:
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
    parts = pieces(rows, rows_limit(call.device))
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


def stacked_by(
    xp: Any, copying: Callable[[Array, Array], Callable[[], Any]] | None = None, wide: Array | None = None
) -> Stacking:
    """What `stacked_rows` does, by the array library `xp`.

    Args:
        copying: makes a copy from source and target.
        wide: where rows of 16 bits are summed before the sum is rounded.
    """

    def stacked(rows: Array, arrays: Arrays, sums: Array | None, part: Array | None) -> Callable[[], None]:
        calls: list[Callable[[], Any]] = (
            [_stacked(xp, rows, arrays)]
            if copying is None
            else [copying(array, block) for block, array in stack(rows, arrays)]
        )
        target = sums if part is None else part
        if target is not None and wide is not None:
            calls += [partial(xp.sum, rows, axis=0, dtype=wide.dtype, out=wide), partial(_round, xp, target, wide)]
        elif target is not None:
            calls.append(partial(xp.sum, rows, axis=0, out=target))
        if part is not None:
            calls.append(partial(xp.add, sums, part, out=sums))
        return as_one(calls)

    return stacked


def _round(xp: Any, target: Array, wide: Array) -> None:
    xp.copyto(target, wide, casting="unsafe")


def sum_products(
    p: SharedProductParams,
    temps: Arrays,
    inputs: Arrays,
    outputs: Outputs,
    product: Product,
    stacked: Stacking,
    limit: int = ROWS,
) -> Callable[[], None]:
    """A call that computes the gradients piece by piece, each a `product` of up to `limit` rows that are `stacked`."""
    gout_rows, data_rows, bias_part = temps
    gouts = inputs[: p.calls]
    weights = [(outputs[2 * w], inputs[p.calls * (w + 1) : p.calls * (w + 2)]) for w in range(p.weights)]
    gbiases = [gbias for gbias in outputs[1::2] if gbias is not None]
    rows = [gout.shape[0] for gout in gouts]
    calls: list[Callable[[], Any]] = []
    gbias = gbiases[0] if gbiases else None
    for number, part in enumerate(pieces(rows, limit)):
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
    several = len(pieces([gout.shape[0] for gout in gouts], rows_limit(call.device))) > 1
    most = max([features for _, features in wanted_weights(p, call)], default=0) if several else 0
    on_gpu = call.device != "cpu" and is_narrow(gouts[0].dtype)
    wide = [Temp((gouts[0].shape[1],), np.float32)] if on_gpu else []
    return [*summed_temps(p, call), Temp((gouts[0].shape[1] * most,), gouts[0].dtype), *wide]


@SUMMED.compute(temps=_reference_temps, prepares=True)
def _(p: SharedProductParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], None]:
    xp, temps, (part, *wide) = ctx.xp, ctx.temp[:3], ctx.temp[3:]

    def multiplied(g: Array, x: Array, gweight: Array, adds: bool) -> list[Callable[[], Any]]:
        if not adds:
            return [partial(matmul, xp, g.T, x, gweight)]
        if xp is not np and takes(g.T, x, gweight):
            return [product(xp, g.T[None, None], x[None, None], gweight[None, None], add=True)]
        term = part[: gweight.size].reshape(gweight.shape)
        return [partial(matmul, xp, g.T, x, term), partial(xp.add, gweight, term, out=gweight)]

    limit = rows_limit(ctx.call.device)
    return sum_products(p, temps, inputs, outputs, multiplied, stacked_by(xp, wide=wide[0] if wide else None), limit)
