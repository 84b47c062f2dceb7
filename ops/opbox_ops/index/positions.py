"""Positions given as data: reading them, taking rows at them, adding rows up at them.

MXNet keeps positions in arrays of any element type, float32 by default; a fraction is cut off. Out of range, they are
clipped to the nearest end, wrapped round, or an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import _sparsetools

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, ArraySpec, Temp
from ..infer import size_of
from .counting import count_up

__all__ = ["add_rows", "add_rows_temps", "checked", "positions", "put_rows", "take_rows", "whole"]


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
        xp.clip(out, 0, max(size - 1, 0), out=out)
    return out


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
    if out.shape[1] == 1:
        xp.put(out, where, rows, mode="clip")
    else:
        out[where] = rows


def _added_in(dtype: Any, device: str) -> np.dtype[Any]:
    """The type that rows are added up in: half precision in single."""
    if dtype.char == "e" or dtype.kind == "V":
        return np.dtype("float32")
    # A GPU adds up at positions in few integer types.
    return np.dtype("float64") if device != "cpu" and dtype.kind in "iu" else np.dtype(dtype)


def add_rows_temps(device: str, count: int, rows: ArraySpec, total: ArraySpec) -> list[Temp]:
    """What `add_rows` needs for `count` rows: ones and their numbers; rows and total in the type that is added in."""
    wide = _added_in(total.dtype, device)
    return [
        Temp((count,), wide),
        Temp((count + 1,), "int64"),
        Temp((size_of(rows.shape) if rows.dtype != wide else 0,), wide),
        Temp((size_of(total.shape) if total.dtype != wide else 0,), wide),
    ]


def add_rows(xp: Any, where: Array, rows: Array, total: Array, temps: Arrays, *, fresh: bool = True) -> None:
    """Add each of `rows` (n, width) to the row of `total` (size, width) that `where` (n,) names; rows may recur.

    On the CPU this is the product of a sparse 0/1 matrix with `rows`, by the inner function of SciPy's sparse product,
    which adds into an array that exists: one pass, no sorting. benchmarks/rows_and_steps.py compares it with add.at.

    Args:
        temps: what `add_rows_temps` asked for.
        fresh: whether `total` is zeros to begin with, whatever is there.
    """
    ones, columns, values, wide = temps
    target = total
    if total.dtype != ones.dtype:
        target = wide.reshape(total.shape)
        if not fresh:
            xp.copyto(target, total)
    if fresh:
        target.fill(0)
    if rows.dtype != target.dtype:
        xp.copyto(values.reshape(rows.shape), rows, casting="unsafe")
        rows = values.reshape(rows.shape)
    if xp is np:
        ones.fill(1)
        count_up(xp, columns)
        # Positions are valid here; the C function checks none.
        _sparsetools.csc_matvecs(
            target.shape[0], len(where), target.shape[1], columns, where, ones, rows.reshape(-1), target.reshape(-1)
        )
    else:
        xp.add.at(target, where, rows)
    if target is not total:
        xp.copyto(total, target, casting="unsafe")
