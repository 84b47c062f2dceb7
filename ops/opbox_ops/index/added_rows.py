"""Rows added up at positions that may recur: total[where[r]] += rows[r]; rows of one position in their order.

rows (n, width), where (n,) of int64, all in the table, total (size, width).

On the CPU a C kernel does it as soon as there is one (`c_kernel`). Otherwise NumPy adds number by number, or row by
row where a row is wide. The order of additions is the same in all, and so are the bits. On a GPU CuPy adds by atomics,
in an order that differs from run to run. `cuda.row_gradients` has computes that sort the positions: the rows of one
position are added in their order there too, more than a window of them in pieces whose sums are then added.
benchmarks/rows_and_steps.py has the times.
"""

from __future__ import annotations

from ctypes import c_long, c_void_p
from functools import cache
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..cache import INDEX_PIECE
from ..compute import Array, Arrays, ArraySpec, Temp
from ..cpu.runtime.c_kernel import CKernel
from ..cpu.runtime.kernel_text import kernel_text
from ..cuda.rows import add_in_order, adding_temps
from ..infer import size_of
from ..pausing import pause
from .counting import count_up

__all__ = ["add_rows", "add_rows_temps"]

HOT = 1 << 22
"""Numbers that NumPy adds before the kernel is asked for: some 10 ms."""
AT_ONCE = 1 << 25
"""Numbers that the kernel, or NumPy, adds in a call: some tens of milliseconds."""
SMALL = 1 << 9
"""Numbers up to which NumPy's call is as fast as the kernel's."""
_WIDE = 1 << 9
"""Numbers of a row from which on NumPy adds it on its own."""

_NUMBERS = {"float32": "float", "float64": "double", "int32": "unsigned", "int64": "unsigned long"}
"""C's types for NumPy's; integers without a sign, whose sums wrap as NumPy's do."""
_PAIRS = {"float32": "complex64", "float64": "complex128"}
"""The type of two neighbours, which `add.at` adds in the time that it takes for one."""


@cache
def _kernel(dtype: str) -> CKernel | None:
    number = _NUMBERS.get(dtype)
    types = [c_long, c_long, c_void_p, c_void_p, c_void_p]
    return None if number is None else CKernel(kernel_text("added_rows.c", NUMBER=number), "add_rows", types, HOT)


def _added_in(dtype: Any, device: str) -> np.dtype[Any]:
    """The type that rows are added up in: on a GPU, which adds at positions in few integer types, float64 for these."""
    return np.dtype("float64") if device != "cpu" and dtype.kind in "iu" else accumulation_type(dtype)


def add_rows_temps(device: str, count: int, rows: ArraySpec, total: ArraySpec, *, sorts: bool = False) -> list[Temp]:
    """Temporaries of `add_rows` for `count` rows: positions, a row's places; rows and total in the type that is added
    in; with `sorts` those of `cuda.rows`, which are none where it does not take the rows."""
    wide = _added_in(total.dtype, device)
    width = size_of(rows.shape) // count if count else 0
    numbers = device == "cpu" and 0 < width < _WIDE
    return [
        Temp((width * min(count, INDEX_PIECE // width) if numbers else 0,), "int64"),
        Temp((width if numbers else 0,), "int64"),
        Temp((size_of(rows.shape) if rows.dtype != wide else 0,), wide),
        Temp((size_of(total.shape) if total.dtype != wide else 0,), wide),
        *(adding_temps(count, width, size_of(total.shape) // width, wide) if sorts and width else []),
    ]


def add_rows(xp: Any, where: Array, rows: Array, total: Array, temps: Arrays, *, fresh: bool = True) -> None:
    """Add each of `rows` (n, width) to the row of `total` (size, width) that `where` (n,) names; rows may recur.

    Args:
        temps: what `add_rows_temps` asked for.
        fresh: whether `total` is zeros to begin with, whatever is there.
    """
    index, places, values, wide, *adding = temps
    target = total
    if total.dtype != values.dtype:
        target = wide.reshape(total.shape)
        if not fresh:
            xp.copyto(target, total)
    if fresh:
        target.fill(0)
    if rows.dtype != target.dtype:
        xp.copyto(values.reshape(rows.shape), rows, casting="unsafe")
        rows = values.reshape(rows.shape)
    if xp is not np:
        if not (adding and add_in_order(xp, where, rows, target, adding)):
            xp.add.at(target, where, rows)
    elif not _by_kernel(where, rows, target):
        (_row_by_row if rows.shape[1] >= _WIDE else _number_by_number)(where, rows, target, index, places)
    if target is not total:
        xp.copyto(total, target, casting="unsafe")


def _by_kernel(where: Array, rows: Array, total: Array) -> bool:
    """Run the kernel, where there is one for these arrays; whether it ran."""
    if rows.size <= SMALL or not (rows.flags.c_contiguous and total.flags.c_contiguous):
        return False
    kernel = _kernel(rows.dtype.name)
    function = None if kernel is None else kernel.ready(rows.size)
    if function is None:
        return False
    count, width = rows.shape
    step = max(1, AT_ONCE // width)
    for first in range(0, count, step):
        if first:
            pause()
        part = slice(first, first + step)
        addresses = (array.ctypes.data for array in (where[part], rows[part], total))
        function(len(where[part]), width, *addresses)
    return True


def _number_by_number(where: Array, rows: Array, total: Array, index: Array, places: Array) -> None:
    """Add every number of `rows` to its place in `total`: `add.at` is fast where all it is given has one dimension."""
    (count, width), flat = rows.shape, total.reshape(-1)
    pair = _PAIRS.get(rows.dtype.name)
    if pair is not None and width % 2 == 0 and rows.flags.c_contiguous:
        rows, flat, width = rows.view(pair), flat.view(pair), width // 2
    step = max(index.size // max(width, 1), 1)
    places = count_up(np, places[:width])
    for start in range(0, count, step):
        if start:
            pause()
        part = rows[start : start + step]
        at = index[: part.size].reshape(part.shape)
        np.multiply(where[start : start + step, None], width, out=at)
        np.add(at, places, out=at)
        np.add.at(flat, at.reshape(-1), part.reshape(-1))


def _row_by_row(where: Array, rows: Array, total: Array, index: Array, places: Array) -> None:
    step = max(1, AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        if start:
            pause()
        for position, row in zip(where[start : start + step].tolist(), rows[start : start + step], strict=True):
            into = total[position]
            np.add(into, row, out=into)
