"""The steps of many weights on the CPU as one call of a C kernel: the same formulas, and the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from ..backend.numpy import NumpyBackend
from ..bound_calls import as_one
from ..compute import Arrays
from ..cpu.runtime import c_compiler
from ..expression.evaluate import FormulaKernel
from ..expression.operators import kernel_of
from ..expression.pointwise import program_of
from ..expression.swept import HOT, Sweep, tasks_of
from ..operator import Op

__all__ = ["steps_together"]


def steps_together(op: Op, steps: Sequence[tuple[Arrays, Any]]) -> Callable[[], None] | None:
    """A call that takes the steps of some weights in place; None where they go one after the other.

    It takes arrays in a row, of one shape for each weight and of one type, that share no memory, once kernels for their
    formulas are compiled.

    Args:
        op: an operator; only those that `family` declares have formulas for a step.
        steps: each weight's inputs, the weight first, and parameters.
    """
    if c_compiler.mode() == "off" or op.get_attr("TNumbers") is None:
        return None
    dtype, count = steps[0][0][0].dtype, len(op.input_names(steps[0][1]))
    if dtype.name not in ("float32", "float64"):
        return None
    groups: dict[Sweep, tuple[list[Any], list[int], list[Any]]] = {}
    spans: list[tuple[int, int]] = []
    for arrays, params in steps:
        weight = arrays[0]
        if len(arrays) != count or not weight.size:
            return None
        for array in arrays:
            if array.dtype != dtype or array.shape != weight.shape or not array.flags.carray:
                return None
        kernel, states, constants = _step(op, params, dtype)
        sweep = _sweep(kernel, weight.size, (dtype,) * (count + len(states) + 1), count)
        if sweep is None:
            return None
        places = [array.__array_interface__["data"][0] for array in arrays]
        spans += [(place, place + weight.nbytes) for place in places]
        rows, sizes, numbers = groups.setdefault(sweep, ([], [], []))
        rows += [*places, *[places[i] for i in states], places[0]]
        sizes.append(weight.size)
        numbers.append(constants)
    spans.sort()
    if any(end > start for (_, end), (start, _) in pairwise(spans)):
        return None
    calls = [sweep.bound(tasks_of(dtype, *group), len(group[1])) for sweep, group in groups.items() if sweep.bound]

    return as_one(calls)


@lru_cache(maxsize=1024)
def _step(op: Op, params: Any, dtype: np.dtype[Any]) -> tuple[FormulaKernel, tuple[int, ...], list[Any]]:
    """The kernel of a step, the inputs that are states it rewrites, and its numbers."""
    ins = [dtype] * len(op.input_names(params))
    formulas = op.get_attr("FExpression")(params, ins, [dtype])
    program, work = program_of(formulas, ins, [dtype], (0,), (frozenset((0,)),))
    kernel = kernel_of(program, work, np, NumpyBackend.special)
    return kernel, tuple(formulas.states), kernel.constants(formulas.numbers)


def _sweep(kernel: FormulaKernel, size: int, types: tuple[Any, ...], count: int) -> Sweep | None:
    """The compiled kernel; None as long as there is none, and it is asked for when its formulas have cost enough."""
    table = kernel.sweeps
    assert table is not None
    sweep = table.sweep(types, (False,) * count)
    if sweep.bound is None and not sweep.failed:
        table.heat += size * len(kernel.program.steps)
        if table.heat >= HOT or c_compiler.mode() == "now":
            sweep.ask()
    return None if sweep.bound is None else sweep
