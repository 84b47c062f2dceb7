"""Sums, means, products, extremes, norms, variances and truths over axes on a GPU, by the kernels of `fold`.

The reference, calls of CuPy, runs the rest: empty axes, whole numbers that are added up as real ones, axes that
alternate with others more than twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import Call, as_one
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..reduce import norm, statistics
from ..reduce.axes import axes_of, numpy_axes
from ..reduce.deviation import DeviationParams
from ..reduce.moments import MomentsParams, moment_axes
from ..reduce.moments import op as moments
from ..reduce.numpy_reductions import TruthParams
from ..registry import Op, get
from .fold import Fold, How
from .kernel import computed_type, contiguous


def _of_axes(p: Any, x: ArraySpec) -> Fold | None:
    return Fold.of(x.shape, axes_of(p, len(x.shape)), x.dtype)


def _same_sums(x: np.dtype[Any], out: np.dtype[Any]) -> bool:
    """Return whether the kernels add up x in what the reference adds up in: whole numbers in 64 bits, cut off."""
    if x.kind in "iub":
        return out.kind in "iu" or (x.kind == "b" and out.kind == "b")
    return out.kind != "b" and (out.kind in "iu" or accumulation_type(out) == accumulation_type(x))


def _sums_of_whole_numbers(x: np.dtype[Any], out: np.dtype[Any]) -> bool:
    """Return whether the kernels add up x: also whole numbers to a real one, as the exact sum of 64 bits."""
    return _same_sums(x, out) or (x.kind in "iub" and out.kind == "f")


def _temps(fold: Fold | None, out: ArraySpec) -> list[Temp]:
    """What slices come to, and results of another type than the array's as they are computed."""
    assert fold is not None
    same = out.dtype == fold.dtype
    return [fold.parts, Temp((0 if same else fold.results,), computed_type(fold.dtype))]


def _bind(ctx: OpContext, fold: Fold | None, how: How, inputs: Arrays, out: Array, divisor: float = 1) -> Call:
    """A call that folds the one input into `out`, of whatever type."""
    assert fold is not None
    (data,), calls = contiguous(ctx, inputs)
    parts, wide = ctx.temp[:2]
    target = out if out.dtype == fold.dtype else wide
    if target.dtype.kind == "i" and out.dtype.kind == "f" and divisor != 1:
        calls.append(fold.bind(ctx.xp, how, data, target, parts))
        calls.append(partial(ctx.xp.true_divide, target.reshape(out.shape), divisor, out=out, casting="unsafe"))
        return as_one(calls)
    calls.append(fold.bind(ctx.xp, how, data, target, parts, divisor=divisor))
    if target is not out:
        calls.append(partial(ctx.xp.copyto, out, target.reshape(out.shape), casting="unsafe"))
    return as_one(calls)


def _one(p: Any, n: int) -> float:
    return 1


Rule = Callable[[Any, ArraySpec], Fold | None]
"""The fold of an operator's first input."""


def _attach(
    op: Op,
    how: How,
    fold_of: Rule = _of_axes,
    takes: Callable[[np.dtype[Any], np.dtype[Any]], bool] = _same_sums,
    divisor: Callable[[Any, int], float] = _one,
) -> None:
    """A compute of an operator that folds its input.

    Args:
        op: the operator.
        how: what is folded.
        fold_of: the axes' fold.
        takes: whether the types of input and output are taken.
        divisor: of the parameters and the elements of a result: what it is divided by.
    """

    def accepts(p: Any, call: CallSpec) -> bool:
        (x, *_), (out, *_) = call.inputs, call.outputs
        return call.plain and takes(x.dtype, out.dtype) and fold_of(p, x) is not None

    @op.compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=accepts,
        temps=lambda p, call: _temps(fold_of(p, call.inputs[0]), call.outputs[0]),
    )
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        fold = fold_of(p, ctx.call.inputs[0])
        assert fold is not None
        return _bind(ctx, fold, how, inputs, outputs[0], divisor(p, fold.n))


def _count(p: Any, n: int) -> float:
    return n


def _real(x: np.dtype[Any], out: np.dtype[Any]) -> bool:
    """Real numbers, whose results are computed in their own type and then converted."""
    return x.kind not in "iub"


def _same_type(x: np.dtype[Any], out: np.dtype[Any]) -> bool:
    return x == out


def _any_types(x: np.dtype[Any], out: np.dtype[Any]) -> bool:
    return True


def _of_named_axes(p: TruthParams | DeviationParams, x: ArraySpec) -> Fold | None:
    return Fold.of(x.shape, numpy_axes(p.axis, len(x.shape)), x.dtype)


def _degrees(p: DeviationParams, n: int) -> float:
    return n - p.ddof if n > p.ddof else math.nan


_HOW = {
    "sum": How.SUM,
    "mean": How.SUM,
    "prod": How.PRODUCT,
    "nansum": How.SUM_WITHOUT_NAN,
    "nanprod": How.PRODUCT_WITHOUT_NAN,
    "max": How.MAX,
    "min": How.MIN,
}
_TAKES = {
    **dict.fromkeys(("max", "min"), _same_type),
    **dict.fromkeys(("sum", "mean", "nansum"), _sums_of_whole_numbers),
}
for _row in statistics.TABLE:
    for _name in (_row.name, *statistics.NUMPY_NAMES.get(_row.name, ())[:1]):
        _attach(
            get(_name),
            _HOW[_row.name],
            takes=_TAKES.get(_row.name, _same_sums),
            divisor=_count if _row.name == "mean" else _one,
        )
for _how in (How.ANY, How.ALL):
    _attach(get(f"_np_{_how.name.lower()}"), _how, _of_named_axes, takes=_any_types)


def _spread_accepts(axes: Callable[[Any, int], Sequence[int]]) -> Callable[[Any, CallSpec], bool]:
    def accepts(p: Any, call: CallSpec) -> bool:
        x = call.inputs[0]
        return call.plain and _real(x.dtype, x.dtype) and Fold.of(x.shape, axes(p, len(x.shape)), x.dtype) is not None

    return accepts


def _means(fold: Fold | None) -> Temp:
    assert fold is not None
    return Temp((fold.results,), computed_type(fold.dtype))


def _moments_fold(p: MomentsParams, x: ArraySpec) -> Fold | None:
    return Fold.of(x.shape, moment_axes(p, len(x.shape)), x.dtype)


@moments.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=_spread_accepts(moment_axes),
    temps=lambda p, call: [
        *_temps(_moments_fold(p, call.inputs[0]), call.outputs[0]),
        _means(_moments_fold(p, call.inputs[0])),
    ],
)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    fold = _moments_fold(p, ctx.call.inputs[0])
    return _around_mean(ctx, fold, inputs, outputs[1], 0 if fold is None else fold.n, mean_out=outputs[0])


def _around_mean(
    ctx: OpContext,
    fold: Fold | None,
    inputs: Arrays,
    out: Array,
    divisor: float,
    *,
    mean_out: Array = None,
    rooted: bool = False,
) -> Call:
    """A call that writes means to `mean_out`, and sums of squared distances from these by `divisor` to `out`."""
    assert fold is not None
    (data,), calls = contiguous(ctx, inputs)
    parts, wide, mean = ctx.temp
    calls.append(fold.bind(ctx.xp, How.SUM, data, mean, parts, divisor=fold.n))
    if mean_out is not None:
        calls.append(partial(ctx.xp.copyto, mean_out, mean.reshape(mean_out.shape), casting="unsafe"))
    if out is not None:
        target = out if out.dtype == fold.dtype else wide
        calls.append(fold.bind(ctx.xp, How.APART, data, target, parts, centre=mean, divisor=divisor, rooted=rooted))
        if target is not out:
            calls.append(partial(ctx.xp.copyto, out, target.reshape(out.shape), casting="unsafe"))
    return as_one(calls)


def _lengths(ctx: OpContext, fold: Fold | None, inputs: Arrays, out: Array) -> Call:
    """A call that writes Euclidean lengths, from the largest absolute values and what the others are beside them."""
    assert fold is not None
    (data,), calls = contiguous(ctx, inputs)
    parts, wide, largest = ctx.temp
    target = out if out.dtype == fold.dtype else wide
    calls.append(fold.bind(ctx.xp, How.LARGEST, data, largest, parts))
    calls.append(fold.bind(ctx.xp, How.SCALED_SQUARES, data, target, parts, centre=largest, rooted=True))
    if target is not out:
        calls.append(partial(ctx.xp.copyto, out, target.reshape(out.shape), casting="unsafe"))
    return as_one(calls)


def _attach_norm(op: Op) -> None:
    @op.compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=_spread_accepts(lambda p, ndim: axes_of(p, ndim)),
        temps=lambda p, call: [
            *_temps(_of_axes(p, call.inputs[0]), call.outputs[0]),
            _means(_of_axes(p, call.inputs[0])),
        ],
    )
    def _(p: norm.AnyNorm, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        fold = _of_axes(p, ctx.call.inputs[0])
        if p.ord == 1:
            return _bind(ctx, fold, How.ABSOLUTES, inputs, outputs[0])
        return _lengths(ctx, fold, inputs, outputs[0])


_attach_norm(norm.op)
_attach_norm(norm.numpy_op)


def _attach_deviation(name: str, *, rooted: bool) -> None:
    @get(name).compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=_spread_accepts(lambda p, ndim: numpy_axes(p.axis, ndim)),
        temps=lambda p, call: [
            *_temps(_of_named_axes(p, call.inputs[0]), call.outputs[0]),
            _means(_of_named_axes(p, call.inputs[0])),
        ],
    )
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        fold = _of_named_axes(p, ctx.call.inputs[0])
        divisor = _degrees(p, 0 if fold is None else fold.n)
        return _around_mean(ctx, fold, inputs, outputs[0], divisor, rooted=rooted)


_attach_deviation("_npi_var", rooted=False)
_attach_deviation("_npi_std", rooted=True)
