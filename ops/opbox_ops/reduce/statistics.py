"""Reductions of axes to one number: sum, mean, prod, nansum, nanprod, max, min.

One table: how to reduce, and the gradient of one element in terms of `g` (the output gradient), `x` (the element) and
`y` (the result). Where several elements tie for the maximum, each gets the whole gradient, as in MXNet. Half precision
is added up in float32; integers keep their type, and their mean is truncated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..elementwise.family import numeric_types
from ..elementwise.functions import resolve
from ..gradient import backward_node, grad_use_none
from ..infer import all_same_type
from ..node import Entry, Node
from ..registry import Op, register, register_backward
from .axes import ReduceParams, axes_of, kept, shapes

Reduce: TypeAlias = "Callable[[OpContext, Array, tuple[int, ...], OpReq, Array], None]"
"""`(ctx, x, axes, req, out)`: `out` has x's rank."""
Spread: TypeAlias = "Callable[[OpContext, Array, Array, Array, Array], None]"
"""`(ctx, g, x, y, out)`: write the gradient into `out`, of x's shape; `g` and `y` broadcast to it."""


@dataclass(frozen=True, slots=True)
class Row:
    """One reduction; `spread` is None where the gradient reads the output gradient alone."""

    name: str
    aliases: tuple[str, ...]
    reduce: Reduce
    spread: Spread | None
    doc: str


def wide(dtype: Any) -> np.dtype[Any]:
    """The element type to add up in."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype.kind not in "iub" and dtype.itemsize < 4 else dtype


def _library(name: str) -> Reduce:
    """A reduction that the array library has, such as `xp.sum`."""

    def reduce(ctx: OpContext, x: Array, axes: tuple[int, ...], req: OpReq, out: Array) -> None:
        function, accumulator = getattr(ctx.xp, name), wide(out.dtype)
        if req != OpReq.ADD and accumulator == out.dtype:
            function(x, axis=axes, dtype=accumulator, keepdims=True, out=out)
        else:
            assign(out, req, function(x, axis=axes, dtype=accumulator, keepdims=True))

    return reduce


def _mean(ctx: OpContext, x: Array, axes: tuple[int, ...], req: OpReq, out: Array) -> None:
    total = x.sum(axis=axes, dtype=np.int64 if out.dtype.kind in "iu" else wide(out.dtype), keepdims=True)
    assign(out, req, _share(ctx, total, math.prod(x.shape[i] for i in axes)))


def _share(ctx: OpContext, value: Array, count: int) -> Array:
    """`value / count`, in `value`'s memory; truncated for integers."""
    if value.dtype.kind in "iu":
        resolve("quotient", True, ctx.xp, ctx.special)(value, np.int64(count), out=value)
    else:
        ctx.xp.divide(value, float(count), out=value)
    return value


def _extreme(name: str) -> Reduce:
    def reduce(ctx: OpContext, x: Array, axes: tuple[int, ...], req: OpReq, out: Array) -> None:
        if x.size == 0:
            assign(out, req, _worst(name, out.dtype))
        elif req != OpReq.ADD:
            getattr(ctx.xp, name)(x, axis=axes, keepdims=True, out=out)
        else:
            assign(out, req, getattr(ctx.xp, name)(x, axis=axes, keepdims=True))

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
    resolve("divide", out.dtype.kind in "iu", ctx.xp, ctx.special)(y, x, out=out, casting="unsafe")
    ctx.xp.multiply(out, g, out=out)


def _spread_nansum(ctx: OpContext, g: Array, x: Array, y: Array, out: Array) -> None:
    ctx.xp.equal(x, x, out=out, casting="unsafe")
    ctx.xp.multiply(out, g, out=out)


def _spread_nanprod(ctx: OpContext, g: Array, x: Array, y: Array, out: Array) -> None:
    missing = x != x
    _spread_prod(ctx, g, x, y, out)
    ctx.xp.copyto(out, 0, where=missing)


TABLE = (
    Row("sum", ("sum_axis",), _library("sum"), None, "The sum."),
    Row("mean", (), _mean, None, "The mean."),
    Row("prod", (), _library("prod"), _spread_prod, "The product."),
    Row("nansum", (), _library("nansum"), _spread_nansum, "The sum of what is not NaN."),
    Row("nanprod", (), _library("nanprod"), _spread_nanprod, "The product of what is not NaN."),
    Row("max", ("max_axis",), _extreme("max"), _spread_extreme, "The maximum; NaN if there is one."),
    Row("min", ("min_axis",), _extreme("min"), _spread_extreme, "The minimum; NaN if there is one."),
)


def _register(row: Row) -> Op:
    op = register(row.name, ReduceParams, aliases=row.aliases, doc=row.doc)
    op.set_attr("FInferShape", shapes)
    op.set_attr("FInferType", all_same_type if row.name == "sum" else numeric_types)
    backward = register_backward(f"_backward_{row.name}", ReduceParams, outputs=("data",))

    @op.compute()
    def _(p: ReduceParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        (x,) = inputs
        if req[0] == OpReq.NULL:
            return
        axes = axes_of(p, x.ndim)
        row.reduce(ctx, x, axes, req[0], outputs[0].reshape(kept(x.shape, axes)))

    if row.spread is None:
        op.set_attr("FGradient", grad_use_none(backward.name))
        backward.compute()(_repeat_mean if row.name == "mean" else _repeat)
    else:
        op.set_attr("FGradient", _use_all(backward.name))
        backward.inplace((1, 0))
        backward.compute()(_spread_with(row.spread))
    return op


def _use_all(name: str) -> Callable[[Node, list[Entry]], list[Entry | None]]:
    """FGradient: a backward node that reads (gout, data, out)."""
    return lambda node, ograds: backward_node(name, node, [ograds[0], node.inputs[0], Entry(node)])


def _repeat(p: ReduceParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    (g,), (out,) = inputs, outputs
    assign(out, req[0], g.reshape(kept(out.shape, axes_of(p, out.ndim))))


def _repeat_mean(p: ReduceParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    (g,), (out,) = inputs, outputs
    axes = axes_of(p, out.ndim)
    count = math.prod(out.shape[i] for i in axes)
    if req[0] == OpReq.NULL or count == 0:
        return
    share = _share(ctx, g.astype(np.int64 if g.dtype.kind in "iu" else wide(g.dtype)), count)
    assign(out, req[0], share.reshape(kept(out.shape, axes)))


def _spread_with(spread: Spread) -> Callable[..., None]:
    def compute(p: ReduceParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        g, x, y = inputs
        if req[0] == OpReq.NULL:
            return
        target = outputs[0] if req[0] != OpReq.ADD else ctx.xp.empty(x.shape, x.dtype)
        small = kept(x.shape, axes_of(p, x.ndim))
        spread(ctx, g.reshape(small), x, y.reshape(small), target)
        if req[0] == OpReq.ADD:
            assign(outputs[0], req[0], target)

    return compute


for _row in TABLE:
    _register(_row)
