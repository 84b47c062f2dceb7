"""Binary search in rows of ascending numbers, all values at a time: `searchsorted` of NumPy, with arrays to write to.

A value's place is found bit by bit, the highest first: it moves on by a power of two where the number before the new
place is at most the value.
"""

from __future__ import annotations

from typing import Any

from ..compute import Array, Arrays, Temp
from .counting import count_up
from .positions import between, take_rows

__all__ = ["search_rows", "search_rows_temps"]


def search_rows_temps(shape: tuple[int, int], dtype: Any) -> list[Temp]:
    """Temporaries of `search_rows` for values of shape `shape` among numbers of `dtype`."""
    return [Temp(shape, "int64"), Temp(shape, dtype), Temp(shape, "bool"), Temp((shape[0], 1), "int64")]


def search_rows(xp: Any, numbers: Array, values: Array, places: Array, temps: Arrays) -> None:
    """Write how many numbers of its row are at most each value: 0 for NaN.

    Args:
        numbers: (rows, n), each row ascending, n at least 1.
        values: (rows, k).
        places: (rows, k), int64.
        temps: what `search_rows_temps` asked for; the last one has where the rows begin afterwards.

    Example:
        >>> search_rows(np, np.array([[0.0, 1, 1, 4]]), np.array([[1.0, -1, 9]]), places, temps)
        >>> places
        array([[3, 0, 4]])
    """
    probes, probed, reached, begins = temps
    size = numbers.shape[1]
    rows = count_up(xp, begins.reshape(-1))
    xp.multiply(rows, size, out=rows)
    places.fill(0)
    for bit in reversed(range(size.bit_length())):
        xp.add(places, (1 << bit) - 1, out=probes)
        xp.minimum(probes, size - 1, out=probes)
        xp.add(probes, begins, out=probes)
        take_rows(xp, numbers.reshape(-1), probes, probed)
        xp.less_equal(probed, values, out=reached)
        xp.multiply(reached, 1 << bit, out=probes)
        xp.add(places, probes, out=places)
    between(xp, places, 0, size)
