"""Positions given as data: reading them, taking rows at them, adding rows up at them.

MXNet keeps positions in arrays of any element type, float32 by default; a fraction is cut off. Out of range, they are
clipped to the nearest end, wrapped round, or an error.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..cache import CACHE_BYTES, INDEX_PIECE
from ..compute import Array, Arrays, ArraySpec, Temp
from ..cuda.rows import add_in_order
from ..infer import size_of
from .counting import count_up

__all__ = ["add_rows", "add_rows_temps", "between", "checked", "positions", "put_rows", "take_rows", "whole"]


def positions(xp: Any, indices: Array, size: int, mode: str, out: Array) -> Array:
    """Write `indices` into `out` (int64) as positions from 0 to size - 1, by `mode` clip, wrap or raise.

    Raises:
        ShapeError: in mode raise on the CPU, for a position that is not there. (A GPU clips instead: to know there
        would stop the device's queue.)
    """
    whole(xp, indices, out)
    if mode == "raise":
        checked(xp, out, 0, size, "indices")
    if mode == "wrap":
        xp.remainder(out, max(size, 1), out=out)
    else:
        between(xp, out, 0, max(size - 1, 0))
    return out


def between(xp: Any, where: Array, low: int, high: int) -> Array:
    """Clip `where` in place; NumPy's own clip takes ten times as long before it begins."""
    xp.maximum(where, low, out=where)
    xp.minimum(where, high, out=where)
    return where


def whole(xp: Any, indices: Array, out: Array) -> Array:
    """Write `indices`, their fractions cut off, into `out` (int64); NaN becomes the least number, without a warning."""
    if xp is np and indices.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            np.copyto(out, indices, casting="unsafe")
    else:
        xp.copyto(out, indices, casting="unsafe")
    return out


def checked(xp: Any, where: Array, low: int, high: int, name: str) -> None:
    """ShapeError unless every position is at least `low` and below `high`; on a GPU it is taken on trust."""
    if xp is np and where.size:
        least, greatest = int(where.min()), int(where.max())
        if least < low or greatest >= high:
            wrong = least if least < low else greatest
            raise ShapeError(f"{name}: expected positions from {low} to {high - 1}, got {wrong}")


def take_rows(xp: Any, table: Array, where: Array, out: Array, axis: int = 0) -> None:
    """Write `table`'s slices along `axis` at valid positions `where` into `out`, of table's type."""
    if xp is np:
        np.take(table, where, axis=axis, out=out, mode="clip")  # in any other mode NumPy buffers out
    else:
        xp.take(table, where, axis=axis, out=out)


def put_rows(xp: Any, out: Array, where: Array, rows: Array) -> None:
    """Write `rows` (n, width) to the rows of `out` (size, width) at valid positions `where` (n,)."""
    if out.shape[1] != 1:
        out[where] = rows
    elif xp is np:
        out[:, 0][where] = rows[:, 0]  # NumPy's put takes several times as long
    else:
        xp.put(out, where, rows, mode="clip")


def _added_in(dtype: Any, device: str) -> np.dtype[Any]:
    """The type that rows are added up in: on a GPU, which adds at positions in few integer types, float64 for these."""
    return np.dtype("float64") if device != "cpu" and dtype.kind in "iu" else accumulation_type(dtype)


_FEW = 1 << 11
"""Numbers up to which they are added one by one: a sparse product takes SciPy longer to prepare."""
_NARROW, _WIDE = 4, 256
"""Numbers of a row up to which they are added one by one all the same, and from which on a row is added on its own."""
_ALIKE = 1 << 14
"""Rows up to which the matrix of a product is kept for the next one."""


def _one_by_one(count: int, width: int) -> bool:
    return count * width <= _FEW or width < _NARROW


def add_rows_temps(device: str, count: int, rows: ArraySpec, total: ArraySpec) -> list[Temp]:
    """Temporaries of `add_rows` for `count` rows: positions, a row's places; rows and total in
    the type that is added in."""
    wide = _added_in(total.dtype, device)
    width = size_of(rows.shape) // count if count else 0
    numbers = device == "cpu" and width > 0 and _one_by_one(count, width)
    return [
        Temp((width * min(count, INDEX_PIECE // width) if numbers else 0,), "int64"),
        Temp((width if numbers else 0,), "int64"),
        Temp((size_of(rows.shape) if rows.dtype != wide else 0,), wide),
        Temp((size_of(total.shape) if total.dtype != wide else 0,), wide),
    ]


def add_rows(xp: Any, where: Array, rows: Array, total: Array, temps: Arrays, *, fresh: bool = True) -> None:
    """Add each of `rows` (n, width) to the row of `total` (size, width) that `where` (n,) names; rows may recur.

    On the CPU few and narrow rows are added number by number (`add.at` is fast where positions and values have one
    dimension), wide rows row by row, and the others by a sparse product. On a GPU rows of one position are added in
    their order as far as `cuda.rows` takes them. benchmarks/rows_and_steps.py compares it with `add.at` on rows.

    Args:
        temps: what `add_rows_temps` asked for.
        fresh: whether `total` is zeros to begin with, whatever is there.
    """
    index, places, values, wide = temps
    target = total
    if total.dtype != values.dtype:
        target = wide.reshape(total.shape)
        if not fresh:
            xp.copyto(target, total)
    products = xp is np and not _one_by_one(*rows.shape) and rows.shape[1] < _WIDE
    if fresh and not products:
        target.fill(0)
    if rows.dtype != target.dtype:
        xp.copyto(values.reshape(rows.shape), rows, casting="unsafe")
        rows = values.reshape(rows.shape)
    if xp is not np:
        if not add_in_order(xp, where, rows, target):
            xp.add.at(target, where, rows)
    elif products:
        _add_products(where, rows, target, fresh=fresh)
    elif _one_by_one(*rows.shape):
        _add_numbers(where, rows, target.reshape(-1), index, places)
    else:
        for position, row in zip(where.tolist(), rows, strict=True):
            into = target[position]
            np.add(into, row, out=into)
    if target is not total:
        xp.copyto(total, target, casting="unsafe")


def _add_numbers(where: Array, rows: Array, total: Array, index: Array, places: Array) -> None:
    """Add every number of `rows` to its place in `total`, which is flat."""
    width = rows.shape[1]
    step = max(index.size // max(width, 1), 1)
    count_up(np, places)
    for start in range(0, len(where), step):
        part = rows[start : start + step]
        at = index[: part.size].reshape(part.shape)
        np.multiply(where[start : start + step, None], width, out=at)
        np.add(at, places, out=at)
        np.add.at(total, at.reshape(-1), part.reshape(-1))


def _add_products(where: Array, rows: Array, total: Array, *, fresh: bool) -> None:
    """Add rows by the product with the sparse matrix that has a 1 where a column's row goes."""
    count, size = len(where), len(total)
    if size <= 4 * count or total.nbytes <= 2 * CACHE_BYTES:
        product = _ones_at(where, size, rows.dtype) @ rows
        if fresh:
            np.copyto(total, product)
        else:
            np.add(total, product, out=total)
        return
    # Most rows of total stay as they are: rows are added up at the last of those that go to one place.
    every = np.arange(count)
    last = np.empty(size, every.dtype)
    last[where] = every
    target = last.take(where)
    ends = np.flatnonzero(target == every)
    sums = (_ones_at(target, count, rows.dtype) @ rows).take(ends, axis=0)
    into = where.take(ends)
    if fresh:
        total.fill(0)
    else:
        sums += total.take(into, axis=0)
    total[into] = sums


def _ones_at(where: Array, size: int, dtype: Any) -> Any:
    """The matrix (size, n) that has a 1 in each column, at the row that `where` (n,) says."""
    count = len(where)
    if count > _ALIKE:
        return _csc_array((np.ones(count, dtype), where, np.arange(count + 1)), shape=(size, count))
    matrix = copy(_ones(count, size, np.dtype(dtype)))
    matrix.indices = where.astype(matrix.indices.dtype)
    return matrix


@lru_cache(64)
def _ones(count: int, size: int, dtype: np.dtype[Any]) -> Any:
    """A matrix for `_ones_at` to copy and fill in: SciPy takes 50 us to check a new one, and 5 us to copy it."""
    places = np.zeros(count, np.int32), np.arange(count + 1, dtype=np.int32)
    return _csc_array((np.ones(count, dtype), *places), shape=(size, count))


def _csc_array(parts: tuple[Any, ...], shape: tuple[int, int]) -> Any:
    """SciPy's sparse matrix by columns, imported when rows are first added up: it takes longer to load than NumPy."""
    import scipy.sparse

    return scipy.sparse.csc_array(parts, shape=shape)
