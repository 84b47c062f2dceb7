"""Pooling by oneDNN: max and avg, one to three dimensions, channels second or last; forward and gradients.

Where there are kernels for max in C (`nn/max_pooling`), they compute it.

oneDNN's gradient of max wants what forward noted of each window. MXNet's backward has data instead, so the gradient
pools once more, into temporaries, and takes the note from that. oneDNN's max passes NaN over: where data has one, the
reference computes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...compute import Array, Arrays, ArraySpec, CallSpec, Compute, OpContext, Outputs, Temp
from ...layout import as_laid, laid, lie
from ...nn.max_pooling import backward_windows, forward_windows
from ...nn.pooling import PoolingParams, backward, op, taps_of
from ...nn.taps import Taps
from ...nn.window import channels_first, is_last
from ...operator import Op
from .cache import RECIPES
from .library import Algorithm, ArgumentNumber, Propagation, dims
from .primitive import MemoryFormat, Operand, Recipe, Runs, memory_of, takes


@lru_cache(maxsize=RECIPES)
def _forward(data: MemoryFormat, out: MemoryFormat, algorithm: Algorithm, taps: Taps) -> Recipe | None:
    operands = [Operand(ArgumentNumber.SOURCE, data), Operand(ArgumentNumber.DESTINATION, out, written=True)]

    def arguments(source: int, target: int) -> tuple[Any, ...]:
        return (Propagation.TRAINING, algorithm, source, target, *_window(taps))

    return Recipe.of("pooling_forward", operands, arguments)


@lru_cache(maxsize=RECIPES)
def _backward(gout: MemoryFormat, gdata: MemoryFormat, algorithm: Algorithm, taps: Taps) -> Recipe | None:
    operands = [
        Operand(ArgumentNumber.DIFF_DESTINATION, gout),
        Operand(ArgumentNumber.DIFF_SOURCE, gdata, written=True),
    ]

    def arguments(target: int, source: int) -> tuple[Any, ...]:
        return (algorithm, source, target, *_window(taps))

    hint = _forward(gdata, gout, algorithm, taps)
    return None if hint is None else Recipe.of("pooling_backward", operands, arguments, hint)


def _window(taps: Taps) -> list[Any]:
    """Stride, kernel, dilation, padding before and after, as oneDNN takes them."""
    return [dims(numbers) for numbers in (taps.stride, taps.kernel, (0,) * len(taps.kernel), taps.pad, _after(taps))]


def _needed(taps: Taps) -> list[int]:
    """Return how many positions the last window reaches beyond the data, along each dimension."""
    sizes = zip(taps.out, taps.stride, taps.kernel, taps.data, taps.pad, strict=True)
    return [(o - 1) * s + k - n - q for o, s, k, n, q in sizes]


def _after(taps: Taps) -> tuple[int, ...]:
    """The padding after the data that gives as many windows as there are."""
    return tuple(max(needed, q) for needed, q in zip(_needed(taps), taps.pad, strict=True))


def _algorithm(p: PoolingParams, taps: Taps) -> Algorithm | None:
    """oneDNN's name for this pooling; None where it has none."""
    if not (taps.meet_data and taps.fit_one_call):
        return None
    if p.pool_type == "max":
        return Algorithm.POOLING_MAX
    if p.pool_type != "avg":
        return None
    if p.count_include_pad is False:
        return Algorithm.POOLING_AVERAGE
    # What lies beyond the padding is not counted; oneDNN would.
    beyond = any(needed > q for needed, q in zip(_needed(taps), taps.pad, strict=True))
    return None if beyond else Algorithm.POOLING_AVERAGE_WITH_PADDING


def _recipe(p: PoolingParams, call: CallSpec, data: ArraySpec, out: ArraySpec, *, gradient: bool) -> Recipe | None:
    if not lie(call, range(len(call.inputs)), (0,)) or not takes(data, out):
        return None
    if p.pool_type == "max" and data.dtype != np.float32:
        return None  # a search for NaN in 16 bits takes longer than all of `half_precision`
    ndim = len(data.shape) - 2
    taps = taps_of(p, channels_first(data.shape, p.layout) or (), channels_first(out.shape, p.layout) or ())
    algorithm = _algorithm(p, taps)
    if algorithm is None:
        return None
    order = (0, ndim + 1, *range(1, ndim + 1)) if is_last(p.layout) else None
    memories = memory_of(data, order), memory_of(out, order)
    return _backward(memories[1], memories[0], algorithm, taps) if gradient else _forward(*memories, algorithm, taps)


def _forward_recipe(p: PoolingParams, call: CallSpec) -> Recipe | None:
    return _recipe(p, call, call.inputs[0], call.outputs[0], gradient=False)


def _backward_recipe(p: PoolingParams, call: CallSpec) -> Recipe | None:
    return _recipe(p, call, call.outputs[0], call.inputs[0], gradient=True)


def _again(p: PoolingParams, call: CallSpec) -> Recipe | None:
    """For the gradient of max: the recipe that pools once more."""
    return _recipe(p, call, call.outputs[0], call.inputs[0], gradient=False) if p.pool_type == "max" else None


def _backward_temps(p: PoolingParams, call: CallSpec) -> list[Temp]:
    """List the gradient's temporaries; for max NumPy's before them, and forward's, its output and its note behind."""
    recipe, again = _backward_recipe(p, call), _again(p, call)
    temps = [*_reference_temps(backward, p, call), *(() if recipe is None else recipe.temps)]
    if again is not None:
        gout = call.inputs[0]
        temps += [*again.temps, Temp(as_laid(gout), gout.dtype), again.workspace]
    return temps


def _reference(operator: Op) -> Compute:
    return operator.computes("cpu")[-1]


def _reference_temps(operator: Op, p: PoolingParams, call: CallSpec) -> Sequence[Temp]:
    """The temporaries of NumPy's compute, for max."""
    return operator.temps(_reference(operator), p, call) if p.pool_type == "max" else ()


def _unless_nan(
    operator: Op, p: PoolingParams, ctx: OpContext, arrays: tuple[Arrays, Outputs], data: Array, runs: Runs
) -> Callable[[], Any]:
    """Return a call of `runs`, or of NumPy's compute where `data` has a NaN; NumPy's temporaries are the first ones."""
    if p.pool_type != "max":
        return runs
    reference = _reference(operator)
    context = replace(ctx, temp=ctx.temp[: len(_reference_temps(operator, p, ctx.call))])

    def call() -> None:
        if np.isnan(data.max()):
            reference.function(p, context, *arrays)
        else:
            runs()

    return call


@op.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: forward_windows(p, call) is None and _forward_recipe(p, call) is not None,
    temps=lambda p, call: _forward_temps(p, call),
    prepares=True,
)
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    recipe = _forward_recipe(p, ctx.call)
    assert recipe is not None
    (data, *_), (out, *_) = laid(ctx.call, inputs, outputs)
    *temps, workspace = ctx.temp[len(_reference_temps(op, p, ctx.call)) :]
    return _unless_nan(op, p, ctx, (inputs, outputs), data, recipe.bind(temps, (data, out), workspace=workspace))


def _forward_temps(p: PoolingParams, call: CallSpec) -> list[Temp]:
    recipe = _forward_recipe(p, call)
    assert recipe is not None
    return [*_reference_temps(op, p, call), *recipe.temps, recipe.workspace]


@backward.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: backward_windows(p, call) is None and _backward_recipe(p, call) is not None,
    temps=_backward_temps,
    prepares=True,
)
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    recipe, again = _backward_recipe(p, ctx.call), _again(p, ctx.call)
    assert recipe is not None
    (gout, *others), (gdata, *_) = laid(ctx.call, inputs, outputs)
    own = ctx.temp[len(_reference_temps(backward, p, ctx.call)) :]
    first = len(recipe.temps)
    if again is None:
        return recipe.bind(own[:first], (gout, gdata))
    *temps, pooled, workspace = own[first:]
    runs = again.bind(temps, (others[0], pooled), workspace=workspace)
    runs = recipe.bind(own[:first], (gout, gdata), runs, workspace)
    return _unless_nan(backward, p, ctx, (inputs, outputs), others[0], runs)
