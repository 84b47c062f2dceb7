"""Running a formula on arrays, into an array, as a request says.

On the CPU a formula of several steps runs block by block: its intermediate values stay in a few blocks of scratch that
fit the cache, so nothing the size of the arrays is ever allocated. The scratch is asked for with FResourceRequest. A
formula of one step is one call of the library.

Half precision is computed in float32 and rounded once, as MXNet does. Integers are computed as they are when the
formula allows, else in float64 and truncated towards zero, as C++ converts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    work = working_type(formula, (*(array.dtype for array in arrays), out.dtype))
    integers = work.kind in "iu"
    constants = [_constant(parameters[c] if isinstance(c, str) else c, work) for c in formula.constants]
    if not formula.steps:
        assign(out, req, (*arrays, *constants)[formula.result])
    elif len(formula.steps) == 1 and req != OpReq.ADD and _plain(work, arrays, out):
        (step,) = formula.steps
        values = (*arrays, *constants)
        call = resolve(step.function, integers, ctx.xp, ctx.special)
        call(*(values[slot] for slot in step.operands), out=out, casting="unsafe")
    elif not out.flags.c_contiguous:
        whole = ctx.xp.empty(out.shape, out.dtype)
        _in_blocks(formula, ctx, arrays, OpReq.WRITE, whole, constants, work, temp)
        assign(out, req, whole)
    else:
        _in_blocks(formula, ctx, arrays, req, out, constants, work, temp)


def _constant(value: float, work: np.dtype[Any]) -> Any:
    """A number for arrays of type `work`: a Python float, or an integer wrapped as C converts it."""
    if work.kind not in "iu":
        return float(value)
    return np.asarray(int(value)).astype(work)[()]


def _plain(work: np.dtype[Any], arrays: Sequence[Array], out: Array) -> bool:
    """Whether the library computes these arrays right without a conversion."""
    one = out.dtype
    return (one == work or one == np.float16) and all(array.dtype == one for array in arrays)


def _in_blocks(
    formula: Expression,
    ctx: OpContext,
    arrays: Sequence[Array],
    req: OpReq,
    out: Array,
    constants: Sequence[Any],
    work: np.dtype[Any],
    temp: Array | None,
) -> None:
    xp = ctx.xp
    block = min(BLOCK, out.size) if xp is np else out.size
    rows = _rows(formula)
    if temp is None or temp.shape != (rows, block) or temp.dtype != work:
        temp = xp.empty((rows, block), work)
    flat = [_flat(xp, array, out.shape) for array in arrays]
    target = out.reshape(-1)
    first = len(arrays) + len(constants)
    calls: list[tuple[Ufunc, tuple[int, ...], int]] = [
        (resolve(step.function, work.kind in "iu", xp, ctx.special), step.operands, step.result)
        for step in formula.steps
    ]
    direct = req != OpReq.ADD and out.dtype == work
    values: list[Any] = [*flat, *constants, *([None] * formula.registers)]
    for start in range(0, out.size, block):
        stop = min(start + block, out.size)
        length = stop - start
        for i, array in enumerate(flat):
            part = array[start:stop]
            if part.dtype != work:
                loaded = temp[formula.registers + i, :length]
                xp.copyto(loaded, part, casting="unsafe")
                part = loaded
            values[i] = part
        for i in range(formula.registers):
            values[first + i] = temp[i, :length]
        for call, operands, result in calls[:-1]:
            call(*[values[slot] for slot in operands], out=values[result], casting="unsafe")
        call, operands, _ = calls[-1]
        final = target[start:stop] if direct else temp[rows - 1, :length]
        call(*[values[slot] for slot in operands], out=final, casting="unsafe")
        if not direct:
            _store(xp, target[start:stop], req, final)


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
