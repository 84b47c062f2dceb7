"""softmax, SoftmaxActivation and SoftmaxOutput by oneDNN along the last axis, in float32; gradients too.

Of a row with NaN or infinity oneDNN makes NaN at that place and zeros elsewhere: the row is made NaN throughout, as the
reference has it, or a network that has diverged would still name a class. In a plan alone: binding a recipe takes
longer than NumPy does over small arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..loss import softmax_output
from ..nn import softmax
from ..registry import get
from .cache import RECIPES
from .library import Algorithm, ArgumentNumber, Propagation
from .primitive import MemoryFormat, Operand, Recipe, Runs, takes

_RowsRule = Callable[[Any, CallSpec], tuple[int, int] | None]
"""Rows and their length; None where they are not rows, or there is more to compute than softmax along them."""


@lru_cache(maxsize=RECIPES)
def _forward(rows: MemoryFormat) -> Recipe | None:
    def arguments(source: int, target: int) -> tuple[Any, ...]:
        return (Propagation.INFERENCE, Algorithm.SOFTMAX, source, target, 1)

    operands = [Operand(ArgumentNumber.SOURCE, rows), Operand(ArgumentNumber.DESTINATION, rows, written=True)]
    return Recipe.of("softmax_forward", operands, arguments)


@lru_cache(maxsize=RECIPES)
def _backward(rows: MemoryFormat) -> Recipe | None:
    def arguments(gout: int, out: int, gdata: int) -> tuple[Any, ...]:
        return (Algorithm.SOFTMAX, gdata, gout, out, 1)

    hint = _forward(rows)
    operands = [
        Operand(ArgumentNumber.DIFF_DESTINATION, rows),
        Operand(ArgumentNumber.DESTINATION, rows),
        Operand(ArgumentNumber.DIFF_SOURCE, rows, written=True),
    ]
    return None if hint is None else Recipe.of("softmax_backward", operands, arguments, hint)


def _with_whole_rows(run: Runs, out: Array) -> Callable[[], None]:
    """`run`, and then NaN in the rows of `out` that have one."""
    largest = np.empty((), np.float32)

    def call() -> None:
        run()
        np.max(out, out=largest)
        if largest != largest:
            out[np.isnan(out).any(axis=1)] = np.nan

    return call


def _attach(name: str, rows_of: _RowsRule, make: Callable[[MemoryFormat], Recipe | None]) -> None:
    """A compute of the operator `name` by the recipe that `make` has for its rows."""

    def recipe_of(p: Any, call: CallSpec) -> Recipe | None:
        arrays = (*call.inputs[: 2 if make is _backward else 1], call.outputs[0])
        if call.once or not call.plain or any(array.dtype.name != "float32" for array in arrays) or not takes(*arrays):
            return None
        rows = rows_of(p, call)
        return None if rows is None else make(MemoryFormat.plain(rows, "float32"))

    def temps(p: Any, call: CallSpec) -> tuple[Temp, ...]:
        recipe = recipe_of(p, call)
        assert recipe is not None
        return recipe.temps

    @get(name).compute(
        "cpu", level="library", accepts=lambda p, call: recipe_of(p, call) is not None, temps=temps, prepares=True
    )
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Any:
        recipe = recipe_of(p, ctx.call)
        assert recipe is not None
        run = recipe.bind(ctx.temp, (*inputs[: len(recipe.operands) - 1], outputs[0]))
        return run if make is _backward else _with_whole_rows(run, outputs[0].reshape(recipe.operands[0].memory.shape))


def _last(p: softmax.SoftmaxParams, call: CallSpec) -> tuple[int, int] | None:
    shape = call.inputs[0].shape
    along = bool(shape) and p.axis in (-1, len(shape) - 1)
    if not along or (p.temperature or 1.0) != 1.0 or p.use_length:
        return None
    return math.prod(shape[:-1]), shape[-1]


def _activation(p: softmax.SoftmaxActivationParams, call: CallSpec) -> tuple[int, int] | None:
    shape = call.inputs[0].shape
    return (math.prod(shape[:-1]), shape[-1]) if p.mode == "instance" else None


def _output(p: softmax_output.SoftmaxOutputParams, call: CallSpec) -> tuple[int, int] | None:
    rows, classes, positions = softmax_output.row_shape(p, call.inputs[0].shape)
    return (rows, classes) if positions == 1 else None


_attach("softmax", _last, _forward)
_attach("_backward_softmax", _last, _backward)
_attach("SoftmaxActivation", _activation, _forward)
_attach("_backward_SoftmaxActivation", _activation, _backward)
_attach("SoftmaxOutput", _output, _forward)
