"""Reductions of axes to one number: sum, mean, prod, nansum, nanprod, max, min.

One table: how to reduce, and the gradient of one element in terms of `g` (the output gradient), `x` (the element) and
`y` (the result). Where several elements tie for the maximum, each gets the whole gradient, as in MXNet. Half precision
is added up in float32; integers keep their type, and their mean is truncated.

out has data's shape without the reduced axes; with keepdims they stay, with size 1. Without axis all are reduced: (1,).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node, grad_use_none
from ..infer import ShapeRule, TypeList, TypeRule, all_same_type, numeric_types
from ..node import Entry, Node
from ..params import Params
from ..registry import Op, register, register_backward
from .axes import NumpyExtremeParams, NumpyReduceParams, ReduceParams, axes_of, kept_dims, numpy_shapes, shapes
from .exact import divide, quotient_space

Reduce: TypeAlias = "Callable[[OpContext, Array, tuple[int, ...], Array], None]"
"""`(ctx, x, axes, out)`: `out` has x's rank."""
Spread: TypeAlias = "Callable[[OpContext, Array, Array, Array, Array], None]"
"""`(ctx, g, x, y, out)`: write the gradient into `out`, of x's shape; `g` and `y` broadcast to it."""


@dataclass(frozen=True, slots=True)
class StatisticRow:
    """One reduction; `spread` is None where the gradient reads the output gradient alone."""

    name: str
    aliases: tuple[str, ...]
    reduce: Reduce
    spread: Spread | None
    doc: str


def _library(name: str) -> Reduce:
    """A reduction that the array library has, such as `xp.sum`; into a wider type first where `ctx.temp` has one."""

    def reduce(ctx: OpContext, x: Array, axes: tuple[int, ...], out: Array) -> None:
        _into(ctx, name, x, axes, ctx.temp[0] if ctx.temp else out, out)

    return reduce


def _into(ctx: OpContext, name: str, x: Array, axes: tuple[int, ...], total: Array, out: Array) -> None:
    """A reduction of the array library, computed in `total`, which may be `out`."""
    getattr(ctx.xp, name)(x, axis=axes, dtype=total.dtype, keepdims=True, out=total)
    if total is not out:
        ctx.xp.copyto(out, total, casting="unsafe")


def _without_nan(name: str, instead: int) -> Reduce:
    """The same of x with `instead` in place of each NaN."""

    def reduce(ctx: OpContext, x: Array, axes: tuple[int, ...], out: Array) -> None:
        sums = list(ctx.temp)
        if x.dtype.kind not in "iub":
            *sums, clean, missing = sums
            ctx.xp.not_equal(x, x, out=missing)
            ctx.xp.copyto(clean, x)
            ctx.xp.copyto(clean, instead, where=missing)
            x = clean
        _into(ctx, name, x, axes, sums[0] if sums else out, out)

    return reduce


def _mean(ctx: OpContext, x: Array, axes: tuple[int, ...], out: Array) -> None:
    total, *space = ctx.temp
    ctx.xp.sum(x, axis=axes, dtype=total.dtype, keepdims=True, out=total)
    _share(ctx, total, math.prod(x.shape[i] for i in axes), space)
    ctx.xp.copyto(out, total, casting="unsafe")


def _share(ctx: OpContext, value: Array, count: int, space: Arrays) -> None:
    """`value / count`, in `value`'s memory; truncated for integers, which need the `space` of `_share_of`."""
    divide(ctx.xp, value, np.int64(count) if value.dtype.kind in "iu" else float(count), value, space)


def _share_of(shape: tuple[int, ...], dtype: Any) -> list[Temp]:
    """A sum in its type, and the room to divide it in."""
    total = ArraySpec(shape, np.dtype(dtype))
    return [Temp(shape, dtype), *quotient_space(total, ArraySpec((), np.dtype(np.int64)), total)]


def _extreme(name: str) -> Reduce:
    def reduce(ctx: OpContext, x: Array, axes: tuple[int, ...], out: Array) -> None:
        if x.size == 0:
            out[...] = _worst(name, out.dtype)
        else:
            getattr(ctx.xp, name)(x, axis=axes, keepdims=True, out=out)

    return reduce


def _worst(name: str, dtype: Any) -> Any:
    """The extreme of no elements: what any element beats."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return limits.min if name == "max" else limits.max
    return -math.inf if name == "max" else math.inf


def _spread_extreme(ctx: OpContext, g: Array, x: Array, y: Array, out: Array) -> None:
    ctx.xp.equal(x, y, out=out, casting="unsafe")
    ctx.xp.multiply(out, g, out=out)


def _spread_prod(ctx: OpContext, g: Array, x: Array, y: Array, out: Array) -> None:
    divide(ctx.xp, y, x, out, ctx.temp)
    ctx.xp.multiply(out, g, out=out)


def _spread_nansum(ctx: OpContext, g: Array, x: Array, y: Array, out: Array) -> None:
    ctx.xp.equal(x, x, out=out, casting="unsafe")
    ctx.xp.multiply(out, g, out=out)


def _spread_nanprod(ctx: OpContext, g: Array, x: Array, y: Array, out: Array) -> None:
    missing, *space = ctx.temp
    ctx.xp.not_equal(x, x, out=missing)
    divide(ctx.xp, y, x, out, space)
    ctx.xp.multiply(out, g, out=out)
    ctx.xp.copyto(out, 0, where=missing)


TABLE = (
    StatisticRow("sum", ("sum_axis",), _library("sum"), None, "The sum."),
    StatisticRow("mean", (), _mean, None, "The mean."),
    StatisticRow("prod", (), _library("prod"), _spread_prod, "The product."),
    StatisticRow("nansum", (), _without_nan("sum", 0), _spread_nansum, "The sum of what is not NaN."),
    StatisticRow("nanprod", (), _without_nan("prod", 1), _spread_nanprod, "The product of what is not NaN."),
    StatisticRow("max", ("max_axis",), _extreme("max"), _spread_extreme, "The maximum; NaN if there is one."),
    StatisticRow("min", ("min_axis",), _extreme("min"), _spread_extreme, "The minimum; NaN if there is one."),
)


def _temps(name: str, p: ReduceParams, call: CallSpec) -> list[Temp]:
    """The result in the type that it is added up in; for the forms without NaN, x without them and where they were."""
    x, out = call.inputs[0], call.outputs[0].dtype
    total = accumulation_type(out)
    if out.kind in "iub" and x.dtype.kind not in "iub":
        total = accumulation_type(x.dtype)  # and rounded to a whole number at the end
    elif name == "mean" and out.kind in "iu":
        total = np.dtype(np.int64)
    shape = kept_dims(x.shape, axes_of(p, len(x.shape)))
    if name == "mean":
        return _share_of(shape, total)
    asked = [Temp(shape, total)] if name not in ("max", "min") and total != out else []
    if name.startswith("nan") and x.dtype.kind not in "iub":
        asked += [Temp(x.shape, x.dtype), Temp(x.shape, "bool")]
    return asked


def _quotient(p: ReduceParams, call: CallSpec) -> list[Temp]:
    """Temporary of `divide`, in data's shape, to which the result is repeated."""
    _, x, _ = call.inputs
    return quotient_space(x, x, call.outputs[0])


def _missing_and_quotient(p: ReduceParams, call: CallSpec) -> list[Temp]:
    return [Temp(call.outputs[0].shape, "bool"), *_quotient(p, call)]


_SPREAD_TEMPS = {"prod": _quotient, "nanprod": _missing_and_quotient}


def _register(
    row: StatisticRow,
    name: str,
    aliases: tuple[str, ...],
    *,
    inputs: tuple[str, ...] = ("data",),
    params: type[Params] = ReduceParams,
    shape_rule: ShapeRule = shapes,
    type_rule: TypeRule | None = None,
) -> Op:
    """Register a row under a name, for one of the two interfaces that MXNet has."""
    op = register(name, params, inputs=inputs, aliases=aliases, doc=row.doc)
    op.set_attr("FInferShape", shape_rule)
    op.set_attr("FInferType", type_rule or (all_same_type if row.name == "sum" else numeric_types))
    backward = register_backward(f"_backward_{name.lstrip('_')}", params, outputs=inputs)

    @op.compute(temps=partial(_temps, row.name))
    def _(p: ReduceParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        (x,) = inputs
        axes = axes_of(p, x.ndim)
        row.reduce(ctx, x, axes, outputs[0].reshape(kept_dims(x.shape, axes)))

    if row.spread is None:
        op.set_attr("FGradient", grad_use_none(backward.name))
        if row.name == "mean":
            backward.compute(temps=_share_temps)(_repeat_mean)
        else:
            backward.compute()(_repeat)
    else:
        op.set_attr("FGradient", _use_all(backward.name))
        backward.inplace((1, 0))
        backward.compute(temps=_SPREAD_TEMPS.get(row.name))(_spread_with(row.spread))
    return op


def _use_all(name: str) -> Callable[[Node, list[Entry]], list[Entry | None]]:
    """FGradient: a backward node that reads (gout, data, out)."""
    return lambda node, ograds: backward_node(name, node, [ograds[0], node.inputs[0], Entry(node)])


def _repeat(p: ReduceParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g,), (out,) = inputs, outputs
    ctx.xp.copyto(out, g.reshape(kept_dims(out.shape, axes_of(p, out.ndim))))


def _share_temps(p: ReduceParams, call: CallSpec) -> list[Temp]:
    g = call.inputs[0]
    return _share_of(g.shape, np.int64 if g.dtype.kind in "iu" else accumulation_type(g.dtype))


def _repeat_mean(p: ReduceParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g,), (out,), (share, *space) = inputs, outputs, ctx.temp
    axes = axes_of(p, out.ndim)
    count = math.prod(out.shape[i] for i in axes)
    if count:
        ctx.xp.copyto(share, g)
        _share(ctx, share, count, space)
        ctx.xp.copyto(out, share.reshape(kept_dims(out.shape, axes)), casting="unsafe")


def _spread_with(spread: Spread) -> Callable[..., None]:
    def compute(p: ReduceParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        g, x, y = inputs
        small = kept_dims(x.shape, axes_of(p, x.ndim))
        spread(ctx, g.reshape(small), x, y.reshape(small), outputs[0])

    return compute


NUMPY_NAMES = {
    "sum": ("_np_sum",),
    "mean": ("_npi_mean",),
    "prod": ("_np_prod", "_np_product"),
    "max": ("_np_max", "_np_amax"),
    "min": ("_np_min", "_np_amin"),
}
"""The names that files of mx.np have, the canonical one first."""


def _numpy_types(name: str) -> TypeRule:
    """The type that `dtype` names; by default data's, and float32 for a mean of integers."""

    def rule(p: NumpyReduceParams, ins: TypeList, outs: TypeList) -> None:
        dtype = getattr(p, "dtype", None)
        if dtype not in (None, "None"):
            outs.merge(0, dtype)
        elif name == "mean" and ins[0] is not None and ins[0].kind in "iub":
            outs.merge(0, "float32")
        elif name == "mean":
            outs.merge(0, ins[0])
        else:
            ins.merge(0, outs.merge(0, ins[0]))

    return rule


for _row in TABLE:
    _register(_row, _row.name, _row.aliases)
    if _row.name in NUMPY_NAMES:
        _name, *_others = NUMPY_NAMES[_row.name]
        _params = NumpyExtremeParams if _row.name in ("max", "min") else NumpyReduceParams
        _register(
            _row,
            _name,
            tuple(_others),
            inputs=("a",),
            params=_params,
            shape_rule=numpy_shapes,
            type_rule=_numpy_types(_row.name),
        )
