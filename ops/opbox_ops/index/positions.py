"""Positions given as data: reading them, taking rows at them, putting rows at them.

MXNet keeps positions in arrays of any element type, float32 by default; a fraction is cut off. Out of range, they are
clipped to the nearest end, wrapped round, or an error.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opbox_protocol.errors import PositionError

from ..compute import Array

__all__ = ["between", "checked", "positions", "put_rows", "take_rows", "whole"]


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
    """PositionError unless every position is at least `low` and below `high`; on a GPU it is taken on trust."""
    if xp is np and where.size:
        least, greatest = int(where.min()), int(where.max())
        if least < low or greatest >= high:
            wrong = least if least < low else greatest
            raise PositionError(f"{name}: expected positions from {low} to {high - 1}, got {wrong}")


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
