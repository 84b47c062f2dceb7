"""LayerNorm by oneDNN along the last axis, in float32: forward and gradients, in a plan.

oneDNN gives the variance, MXNet's output is sqrt(variance + eps): the one is made of the other, a number a row.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..nn.layer_norm import LayerNormParams, backward, op
from .cache import RECIPES
from .library import ArgumentNumber, Flag, Propagation
from .primitive import MemoryFormat, Operand, Recipe, takes

_FLAGS = Flag.SCALE | Flag.SHIFT


@lru_cache(maxsize=RECIPES)
def _forward(data: MemoryFormat, eps: float) -> Recipe | None:
    rows, columns = MemoryFormat.plain(data.shape[:1], "float32"), MemoryFormat.plain(data.shape[1:], "float32")
    operands = [
        Operand(ArgumentNumber.SOURCE, data),
        Operand(ArgumentNumber.DESTINATION, data, written=True),
        Operand(ArgumentNumber.MEAN, rows, written=True),
        Operand(ArgumentNumber.VARIANCE, rows, written=True),
        Operand(ArgumentNumber.SCALE, columns),
        Operand(ArgumentNumber.SHIFT, columns),
    ]

    def arguments(source: int, target: int, statistics: int, *_: int) -> tuple[Any, ...]:
        return (Propagation.TRAINING, source, target, statistics, eps, _FLAGS)

    return Recipe.of("layer_normalization_forward", operands, arguments)


@lru_cache(maxsize=RECIPES)
def _backward(data: MemoryFormat, eps: float) -> Recipe | None:
    rows, columns = MemoryFormat.plain(data.shape[:1], "float32"), MemoryFormat.plain(data.shape[1:], "float32")
    operands = [
        Operand(ArgumentNumber.DIFF_DESTINATION, data),
        Operand(ArgumentNumber.SOURCE, data),
        Operand(ArgumentNumber.DIFF_SOURCE, data, written=True),
        Operand(ArgumentNumber.MEAN, rows),
        Operand(ArgumentNumber.VARIANCE, rows),
        Operand(ArgumentNumber.SCALE, columns),
        Operand(ArgumentNumber.SHIFT, columns),
        Operand(ArgumentNumber.DIFF_SCALE, columns, written=True),
        Operand(ArgumentNumber.DIFF_SHIFT, columns, written=True),
    ]

    def arguments(target: int, source: int, into: int, statistics: int, *_: int) -> tuple[Any, ...]:
        return (Propagation.BACKWARD, into, target, source, statistics, eps, _FLAGS)

    hint = _forward(data, eps)
    return None if hint is None else Recipe.of("layer_normalization_backward", operands, arguments, hint)


def _memory(p: LayerNormParams, call: CallSpec, data: ArraySpec) -> MemoryFormat | None:
    arrays = (*call.inputs, *call.outputs)
    if call.once or not call.plain or any(array.dtype.name != "float32" for array in arrays) or not takes(*arrays):
        return None
    shape = data.shape
    if p.axis not in (-1, len(shape) - 1):
        return None
    return MemoryFormat.plain((math.prod(shape[:-1]), shape[-1]), "float32")


def _forward_recipe(p: LayerNormParams, call: CallSpec) -> Recipe | None:
    memory = _memory(p, call, call.inputs[0])
    return None if memory is None else _forward(memory, p.eps)


def _backward_recipes(p: LayerNormParams, call: CallSpec) -> tuple[Recipe, Recipe] | None:
    """Forward's, for mean and variance, and the gradients'."""
    memory = _memory(p, call, call.inputs[1])
    recipes = None if memory is None else (_forward(memory, p.eps), _backward(memory, p.eps))
    return None if recipes is None or recipes[0] is None or recipes[1] is None else (recipes[0], recipes[1])


def _forward_temps(p: LayerNormParams, call: CallSpec) -> list[Temp]:
    """Rooms for out, mean and the variance, where nobody wants them, and the recipe's."""
    recipe = _forward_recipe(p, call)
    assert recipe is not None
    rooms = [Temp((0,) if call.wants(k) else call.outputs[k].shape) for k in range(3)]
    return [*rooms, *recipe.temps]


@op.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _forward_recipe(p, call) is not None,
    temps=_forward_temps,
    prepares=True,
)
def _(p: LayerNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Any:
    recipe = _forward_recipe(p, ctx.call)
    assert recipe is not None
    xp, std = ctx.xp, outputs[2]
    out, mean, variance = (room if array is None else array for room, array in zip(ctx.temp, outputs, strict=False))
    run = recipe.bind(ctx.temp[3:], (inputs[0], out, mean, variance, *inputs[1:]))
    if std is None:
        return run

    def call() -> None:
        run()
        xp.add(std, p.eps, out=std)
        xp.sqrt(std, out=std)

    return call


def _backward_temps(p: LayerNormParams, call: CallSpec) -> list[Temp]:
    """Mean and variance, rooms for the gradients that nobody wants, a shift of zeros, and the recipes'."""
    recipes = _backward_recipes(p, call)
    assert recipes is not None
    data, gamma = call.inputs[1], call.inputs[2]
    statistics = Temp((math.prod(data.shape[:-1]),))
    unread = [Temp((0,) if call.wants(k) else call.outputs[k].shape) for k in range(3)]
    return [statistics, statistics, *unread, Temp(gamma.shape), *recipes[0].temps, *recipes[1].temps]


@backward.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: _backward_recipes(p, call) is not None,
    temps=_backward_temps,
    prepares=True,
)
def _(p: LayerNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Any:
    recipes = _backward_recipes(p, ctx.call)
    assert recipes is not None
    forward, gradients = recipes
    gout, data, gamma = inputs
    mean, variance, *rooms = ctx.temp
    gdata, ggamma, gbeta = (room if array is None else array for room, array in zip(rooms, outputs, strict=False))
    shift, temps = rooms[3], rooms[4:]
    count = len(forward.temps)
    # What forward puts out is written over by the gradient.
    runs = forward.bind(temps[:count], (data, gdata, mean, variance, gamma, shift))
    return gradients.bind(temps[count:], (gout, data, gdata, mean, variance, gamma, shift, ggamma, gbeta), runs)
