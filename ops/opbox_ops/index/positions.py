"""Positions given as data: reading them, taking rows at them, adding rows up at them.

MXNet keeps positions in arrays of any element type, float32 by default; a fraction is cut off. Out of range, they are
clipped to the nearest end, wrapped round, or an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import _sparsetools

from opbox_protocol.errors import ShapeError

from ..compute import Array, OpReq, assign

__all__ = ["add_rows", "checked", "positions", "take_rows", "whole"]


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


def take_rows(xp: Any, table: Array, where: Array, req: OpReq, out: Array, axis: int = 0) -> None:
    """Write `table`'s slices along `axis` at valid positions `where` into `out`."""
    if req in (OpReq.WRITE, OpReq.INPLACE) and table.dtype == out.dtype:
        if xp is np:
            np.take(table, where, axis=axis, out=out, mode="clip")  # in any other mode NumPy buffers out
        else:
            xp.take(table, where, axis=axis, out=out)
    elif req:
        assign(out, req, xp.take(table, where, axis=axis))


def add_rows(xp: Any, where: Array, rows: Array, req: OpReq, total: Array) -> None:
    """Add each of `rows` (n, width) to the row of `total` (size, width) that `where` (n,) names; rows may recur.

    On the CPU this is the product of a sparse 0/1 matrix with `rows`, by the inner function of SciPy's sparse product,
    which adds into an array that exists: one pass, no sorting. benchmarks/rows_and_steps.py compares it with add.at.
    """
    if not req or (req == OpReq.ADD and not where.size):
        return
    wide = total.dtype
    if wide.char == "e" or wide.kind == "V":  # float16, bfloat16
        wide = np.dtype("float32")
    elif xp is not np and wide.kind in "iu":
        wide = np.dtype("float64")  # a GPU adds up at positions in few integer types
    direct = wide == total.dtype and total.flags.c_contiguous
    target = total if direct else xp.zeros(total.shape, wide)
    if direct and req != OpReq.ADD:
        target.fill(0)
    if xp is np:
        count = len(where)
        ones = np.ones(count, target.dtype)
        columns = np.arange(count + 1, dtype=np.int64)
        values = np.ascontiguousarray(rows, target.dtype).reshape(-1)
        # Positions are valid here; the C function checks none.
        _sparsetools.csc_matvecs(
            target.shape[0], count, target.shape[1], columns, where, ones, values, target.reshape(-1)
        )
    else:
        xp.add.at(target, where, rows.astype(target.dtype, copy=False))
    if not direct:
        assign(total, req, target)
