"""Running a formula on arrays, into an array, as a request says.

On the CPU a formula of several steps runs block by block: its intermediate values stay in a few blocks of scratch that
fit the cache, so nothing the size of the arrays is ever allocated. The scratch is asked for with FResourceRequest. A
formula of one step is one call of the library.

Half precision is computed in float32 and rounded once, as MXNet does. Integers are computed as they are when the
formula allows, else in float64 and truncated towards zero, as C++ converts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ..compute import Array, OpContext, OpReq, Temp, assign
from .expression import Expression
from .functions import Ufunc, resolve

__all__ = ["BLOCK", "evaluate", "scratch", "working_type"]

BLOCK = 8192
"""Elements a block: four blocks of float32 are 128 KiB, within a core's second-level cache."""

_NONE: Mapping[str, float] = {}


def working_type(formula: Expression, types: Sequence[Any]) -> np.dtype[Any]:
    """The element type that the formula is computed in, for arrays (inputs and output) of `types`."""
    dtypes = [np.dtype(each) for each in types]
    if all(dtype.kind in "iub" for dtype in dtypes):
        return dtypes[-1] if formula.exact and dtypes[-1].kind != "b" else np.dtype(np.float64)
    return np.dtype(np.float64 if any(dtype == np.float64 for dtype in dtypes) else np.float32)


def scratch(formula: Expression, types: Sequence[Any], size: int) -> Temp:
    """The temporary space that `evaluate` wants for arrays of `types` with `size` elements."""
    return Temp((_rows(formula), min(size, BLOCK)), working_type(formula, types))


def _rows(formula: Expression) -> int:
    return formula.registers + len(formula.arrays) + 1


def evaluate(
    formula: Expression,
    ctx: OpContext,
    arrays: Sequence[Array],
    req: OpReq,
    out: Array,
    parameters: Mapping[str, float] = _NONE,
    temp: Array | None = None,
) -> None:
    """Write `formula(arrays)` into `out` as `req` says; the arrays are broadcast to `out`'s shape.

    Args:
        arrays: in the formula's order; `out` may be one of them.
        parameters: the formula's parameters.
        temp: what `scratch` asked for; without it the scratch is allocated.
    """
    if req == OpReq.NULL or out.size == 0:
        return
    program = _program(formula, (*[array.dtype for array in arrays], out.dtype), ctx.xp, ctx.special)
    constants = [_constant(parameters[c], program.work) if isinstance(c, str) else c for c in program.constants]
    if not formula.steps:
        assign(out, req, (*arrays, *constants)[formula.result])
    elif program.plain and req != OpReq.ADD:
        values = (*arrays, *constants)
        call, operands, _ = program.calls[0]
        call(*[values[slot] for slot in operands], out=out, casting="unsafe")
    elif not out.flags.c_contiguous:
        whole = ctx.xp.empty(out.shape, out.dtype)
        _in_blocks(program, ctx.xp, arrays, OpReq.WRITE, whole, constants, temp)
        assign(out, req, whole)
    else:
        _in_blocks(program, ctx.xp, arrays, req, out, constants, temp)


@dataclass(frozen=True, slots=True)
class _Program:
    """A formula made ready for arrays of certain types.

    Attributes:
        work: the type to compute in.
        plain: whether it is one call of the library, with nothing to convert.
        calls: (function, operand slots, result slot).
        constants: numbers, and the names of those that each call gives.
        loads: which arrays must be converted before they are read.
        registers: how many registers the calls use; rows: those, one for each array, one for the result.
    """

    work: np.dtype[Any]
    plain: bool
    calls: tuple[tuple[Ufunc, tuple[int, ...], int], ...]
    constants: tuple[Any, ...]
    loads: tuple[bool, ...]
    registers: int
    rows: int


@cache
def _program(formula: Expression, types: tuple[np.dtype[Any], ...], xp: Any, special: Any) -> _Program:
    work = working_type(formula, types)
    integers = work.kind in "iu"
    half = all(dtype == np.float16 for dtype in types)
    return _Program(
        work=work,
        plain=len(formula.steps) == 1 and (half or all(dtype == work for dtype in types)),
        calls=tuple((resolve(s.function, integers, xp, special), s.operands, s.result) for s in formula.steps),
        constants=tuple(c if isinstance(c, str) else _constant(c, work) for c in formula.constants),
        loads=tuple(dtype != work for dtype in types[:-1]),
        registers=formula.registers,
        rows=_rows(formula),
    )


def _constant(value: float, work: np.dtype[Any]) -> Any:
    """A number for arrays of type `work`: a Python float, or an integer wrapped as C converts it."""
    if work.kind not in "iu":
        return float(value)
    return np.asarray(int(value)).astype(work)[()]


def _in_blocks(
    program: _Program,
    xp: Any,
    arrays: Sequence[Array],
    req: OpReq,
    out: Array,
    constants: Sequence[Any],
    temp: Array | None,
) -> None:
    size, work = out.size, program.work
    block = min(BLOCK, size) if xp is np else size
    if temp is None or temp.shape != (program.rows, block) or temp.dtype != work:
        temp = xp.empty((program.rows, block), work)
    flat = [_flat(xp, array, out.shape) for array in arrays]
    target = out.reshape(-1)
    direct = req != OpReq.ADD and out.dtype == work
    registers, converted = program.registers, program.registers + len(arrays)
    scratch = list(temp)
    for start in range(0, size, block):
        stop = start + block
        if stop > size:
            stop = size
            scratch = [row[: stop - start] for row in scratch]
        parts = flat if block == size else [array[start:stop] for array in flat]
        if any(program.loads):
            parts = [
                _load(xp, scratch[registers + i], part) if program.loads[i] else part for i, part in enumerate(parts)
            ]
        values = [*parts, *constants, *scratch[:registers]]
        for call, operands, result in program.calls[:-1]:
            call(*[values[slot] for slot in operands], out=values[result], casting="unsafe")
        call, operands, _ = program.calls[-1]
        destination = target if block == size else target[start:stop]
        final = destination if direct else scratch[converted]
        call(*[values[slot] for slot in operands], out=final, casting="unsafe")
        if not direct:
            _store(xp, destination, req, final)


def _load(xp: Any, row: Array, part: Array) -> Array:
    xp.copyto(row, part, casting="unsafe")
    return row


def _flat(xp: Any, array: Array, shape: tuple[int, ...]) -> Array:
    if array.shape != shape:
        array = xp.broadcast_to(array, shape)
    return array.reshape(-1)


def _store(xp: Any, out: Array, req: OpReq, value: Array) -> None:
    if req != OpReq.ADD:
        xp.copyto(out, value, casting="unsafe")
    elif out.dtype.kind in "iu" and value.dtype != out.dtype:
        out += value.astype(out.dtype)
    else:
        xp.add(out, value, out=out, casting="unsafe")
