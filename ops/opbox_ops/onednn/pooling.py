"""Pooling by oneDNN: max and avg, one to three dimensions, channels second or last; forward and gradients.

oneDNN's gradient of max wants what forward noted of each window. MXNet's backward has data instead, so the gradient
pools once more, into temporaries, and takes the note from that.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..layout import as_laid, laid, lie
from ..nn.pooling import PoolingParams, backward, op, taps_of
from ..nn.taps import Taps
from ..nn.window import channels_first, is_last
from .cache import RECIPES
from .library import Algorithm, ArgumentNumber, Propagation, dims
from .primitive import MemoryFormat, Operand, Recipe, Runs, memory_of, takes

MOST_PLACES = 1 << 28
"""Places in all windows of a channel: the library looks at each in one call that nothing stops, NumPy at whole rows."""


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
    last = [(o - 1) * s - q for o, s, q in zip(taps.out, taps.stride, taps.pad, strict=True)]
    if any(q >= k for q, k in zip(taps.pad, taps.kernel, strict=True)):
        return None  # some window is over padding alone
    if any(start >= n for start, n in zip(last, taps.data, strict=True)):
        return None
    if math.prod(taps.kernel) * math.prod(taps.out) > MOST_PLACES:
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
    """List the gradient's temporaries; for max also those of forward, its output, and its note of each window."""
    recipe, again = _backward_recipe(p, call), _again(p, call)
    temps = [] if recipe is None else [*recipe.temps]
    if again is not None:
        gout = call.inputs[0]
        temps += [*again.temps, Temp(as_laid(gout), gout.dtype), again.workspace]
    return temps


@op.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _forward_recipe(p, call) is not None,
    temps=lambda p, call: _forward_temps(p, call),
    prepares=True,
)
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Runs:
    recipe = _forward_recipe(p, ctx.call)
    assert recipe is not None
    inputs, outputs = laid(ctx.call, inputs, outputs)
    *temps, workspace = ctx.temp
    return recipe.bind(temps, (inputs[0], outputs[0]), workspace=workspace)


def _forward_temps(p: PoolingParams, call: CallSpec) -> list[Temp]:
    recipe = _forward_recipe(p, call)
    assert recipe is not None
    return [*recipe.temps, recipe.workspace]


@backward.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _backward_recipe(p, call) is not None,
    temps=_backward_temps,
    prepares=True,
)
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Runs:
    recipe, again = _backward_recipe(p, ctx.call), _again(p, ctx.call)
    assert recipe is not None
    inputs, outputs = laid(ctx.call, inputs, outputs)
    first, runs, workspace = len(recipe.temps), None, None
    if again is not None:
        *temps, pooled, workspace = ctx.temp[first:]
        runs = again.bind(temps, (inputs[1], pooled), workspace=workspace)
    return recipe.bind(ctx.temp[:first], (inputs[0], outputs[0]), runs, workspace)
