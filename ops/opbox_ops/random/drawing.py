"""Drawing into an output: piece by piece on the CPU, in a temporary where the generator has not the output's type."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..compute import Array, Arrays, CallSpec, OpContext, Temp, TempsRule
from ..infer import size_of
from ..pausing import pause
from .table import Distribution

__all__ = ["AT_ONCE", "DRAWN", "draw", "scratch_for"]

AT_ONCE = 1 << 18
"""Numbers that are drawn at a time: some 10 ms of the slowest distribution."""
DRAWN = "the library's generator has no output argument for this distribution"
"""Why drawing allocates, for `allocates` of a compute."""


def scratch_for(row: Distribution) -> TempsRule:
    """The rule for room to draw a piece in, where the generator cannot draw in the output's type."""

    def temps(p: Any, call: CallSpec) -> list[Temp]:
        out = call.outputs[0]
        if not row.drawn or out.dtype.name in row.drawn:
            return []
        count = size_of(out.shape)
        return [Temp((min(count, AT_ONCE) if call.device == "cpu" else count,), row.drawn[0])]

    return temps


def draw(
    ctx: OpContext, fill: Callable[..., None], out: Array, shape: tuple[int, ...], scratch: Arrays, *params: Any
) -> None:
    """Fill `out`, drawing in `shape`, as generators broadcast over fewer axes than an array may have; in `scratch`.

    Parameters are numbers, or columns with a row for each of `shape`.
    """
    target = out.reshape(shape)
    for at in _pieces(shape) if ctx.xp is np else ((),):
        part = target[at]
        drawn = scratch[0][: part.size].reshape(part.shape) if scratch else part
        fill(ctx.random, drawn, *[_of_rows(number, at) for number in params])
        if scratch:
            ctx.xp.copyto(part, drawn, casting="unsafe")


def _pieces(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Yield the pieces of an array to draw, in the order in which a generator fills it: rows, or parts of one."""
    if math.prod(shape) <= AT_ONCE:
        yield ()
        return
    rows, count = shape if len(shape) == 2 else (1, shape[0])
    step, part = max(1, AT_ONCE // max(count, 1)), min(count, AT_ONCE)
    for row in range(0, rows, step):
        for start in range(0, count, part):
            pause()
            columns = slice(start, start + part)
            yield (slice(row, row + step), columns) if len(shape) == 2 else (columns,)


def _of_rows(number: Any, at: tuple[slice, ...]) -> Any:
    """A parameter where `at` is drawn."""
    return number[at[0]] if len(at) == 2 and isinstance(number, np.ndarray) else number
