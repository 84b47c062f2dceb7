"""The stable order of rows without memory of its own: numbers that hold an element and its position, sorted in place.

An element becomes a signed number of 32 bits of the same order (a float's bits, turned where it is negative; -0 as 0;
every NaN as one, the largest). Above its position, in an integer of 64 bits, it is sorted by NumPy's in-place sort:
equal elements differ by their positions and stay in their order, and the lower halves are the answer. An element of 64
bits is sorted twice, by its lower half and then by its upper one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..bound_calls import Call
from ..compute import Array, Arrays, Temp
from .counting import count_up

__all__ = ["multiples", "order_calls", "order_temps"]

_SHORT = 1 << 12
"""Numbers up to which 0, 1, 2, … are kept in an array for all calls, and are not counted each time."""
_LOWER, _UPPER = (0, 1) if sys.byteorder == "little" else (1, 0)
"""Positions of the halves of an integer of 64 bits."""


def _comparable(dtype: Any) -> np.dtype[Any]:
    """The type whose bits are compared: a float or signed integer of 32 or 64 bits that has all values of `dtype`.

    uint64 has none; its bits are compared as int64, with the highest one turned round.
    """
    if np.dtype(dtype) == np.uint64:
        return np.dtype(np.int64)
    for wide in ("int32", "float32", "int64", "float64"):
        if np.dtype(dtype).kind in "biu" and np.dtype(wide).kind == "f":
            continue
        if np.can_cast(dtype, wide):
            return np.dtype(wide)
    raise TypeError(f"{dtype}: expected a type of 64 bits or less that can be ordered")


def order_temps(dtype: Any, rows: int, size: int) -> list[Temp]:
    """The temporaries of `order_calls` for so many rows of `size` elements of `dtype`."""
    comparable, count = _comparable(dtype), rows * size
    twice = comparable.itemsize == 8
    return [
        Temp((count,), "int64"),  # elements above their positions
        Temp((count,), comparable),  # the elements
        Temp((count if comparable.kind == "f" else 0,), "bool"),  # which are NaN
        Temp((size if size > _SHORT else 0,), "uint32"),  # 0, 1, 2, …
        Temp((rows if rows > _SHORT else 0,), "int64"),  # where the rows begin
        Temp((count if twice else 0,), "int32"),  # upper halves
        Temp((count if twice else 0,), "int32"),  # the same in the order of the lower ones
        Temp((count if twice else 0,), "int64"),  # the positions in the order of the lower ones
    ]


def order_calls(rows: Array, ascend: bool, temps: Arrays, places: Array) -> list[Call]:
    """Calls that write the order of each row of `rows` (m, n), or its beginning.

    Equal elements stay in their order, whatever the direction; NaN is the largest.

    Args:
        temps: what `order_temps` asked for, for m rows or more.
        places: (m, k), int64, k at most n: element j of row i is to be rows.reshape(-1)[places[i, j]].

    Example:
        >>> rows, places = np.array([[3, 1, 2], [5, 5, 4]], "int32"), np.empty((2, 3), "int64")
        >>> temps = [np.empty(temp.shape, temp.dtype) for temp in order_temps(rows.dtype, *rows.shape)]
        >>> as_one(order_calls(rows, True, temps, places))()
        >>> places
        array([[1, 2, 0],
               [5, 3, 4]])
    """
    table, elements, lacking, counted, begun, *halves = temps
    count, size = rows.shape
    packed = table[: rows.size].reshape(rows.shape)
    lower, upper = _halves(packed)
    begins, calls = multiples(count, size, "int64", begun)
    numbers, counting = multiples(size, 1, "uint32", counted)
    begins, calls = begins[:, None], calls + counting
    elements = elements[: rows.size].reshape(rows.shape)
    if elements.dtype.itemsize == 8:
        return calls + _by_halves(rows, ascend, packed, elements, lacking, begins, numbers, halves, places)
    calls += _as_integers(rows, ascend, elements, upper, lacking, upper)
    first = places.shape[1]
    calls += [partial(np.copyto, lower, numbers), *_sorted(packed, first)]
    calls.append(partial(np.add, lower[:, :first], begins, out=places))
    return calls


def multiples(count: int, step: int, dtype: Any, temp: Array = None) -> tuple[Array, list[Call]]:
    """0, step, 2 step, … (count,), and the calls that write them into `temp` (count,) where they are many."""
    if temp is None or count <= _SHORT:
        return _few(count, step, dtype), []
    return temp[:count], [
        partial(count_up, np, temp[:count]),
        partial(np.multiply, temp[:count], step, out=temp[:count]),
    ]


@lru_cache(256)
def _few(count: int, step: int, dtype: Any) -> Array:
    few = np.arange(count, dtype=dtype) * step
    few.flags.writeable = False
    return few


def _halves(numbers: Array) -> tuple[Array, Array]:
    """The lower halves of integers of 64 bits, without a sign, and the upper ones with theirs: views."""
    return numbers.view(np.uint32)[:, _LOWER::2], numbers.view(np.int32)[:, _UPPER::2]


def _sorted(packed: Array, first: int) -> list[Call]:
    """Calls that put the `first` elements of each row of `packed` in order, and in front."""
    if first == packed.shape[1]:
        return [packed.sort]
    return [partial(packed.partition, first - 1), packed[:, :first].sort]


def _as_integers(rows: Array, ascend: bool, elements: Array, out: Array, lacking: Array, scratch: Array) -> list[Call]:
    """Calls that write integers of `rows`'s order, or of the opposite one, to `out`; `elements` is used up."""
    width = 8 * elements.itemsize
    calls: list[Call] = []
    if elements.dtype.kind == "f":
        lacking = lacking[: rows.size].reshape(rows.shape)
        bits = elements.view(f"i{elements.itemsize}")
        calls += [
            partial(np.copyto, elements, rows, casting="unsafe"),
            partial(np.add, elements, 0, out=elements),  # -0 becomes 0
            partial(np.isnan, elements, out=lacking),
            partial(np.copyto, elements, np.nan, where=lacking),
            partial(np.right_shift, bits, width - 1, out=scratch),  # all ones where it is negative
            partial(np.bitwise_and, scratch, (1 << width - 1) - 1, out=scratch),
            partial(np.bitwise_xor, bits, scratch, out=out),
        ]
    else:
        calls.append(partial(np.copyto, out, rows, casting="unsafe"))
        if rows.dtype == np.uint64:
            calls.append(partial(np.bitwise_xor, out, np.int64(-1 << 63), out=out))
    if not ascend:
        calls.append(partial(np.invert, out, out=out))
    return calls


def _by_halves(
    rows: Array,
    ascend: bool,
    packed: Array,
    elements: Array,
    lacking: Array,
    begins: Array,
    numbers: Array,
    halves: Sequence[Array],
    places: Array,
) -> list[Call]:
    """`order_calls` of elements of 64 bits."""
    lower, upper = _halves(packed)
    highs, gathered, by_lower = (half[: rows.size].reshape(rows.shape) for half in halves)
    bits = elements.view(np.int64)
    low, high = _halves(bits)
    first = places.shape[1]
    ranks = bits.reshape(-1)[: places.size].reshape(places.shape)
    return [
        *_as_integers(rows, ascend, elements, bits, lacking, packed),
        partial(np.copyto, highs, high),
        partial(np.bitwise_xor, low, np.uint32(1 << 31), out=upper.view(np.uint32)),  # in the order of signed numbers
        partial(np.copyto, lower, numbers),
        packed.sort,
        partial(np.add, lower, begins, out=by_lower),
        partial(np.take, highs.reshape(-1), by_lower, out=gathered, mode="clip"),
        partial(np.copyto, upper, gathered),
        partial(np.copyto, lower, numbers),
        packed.sort,
        partial(np.add, lower[:, :first], begins, out=ranks),
        partial(np.take, by_lower.reshape(-1), ranks, out=places, mode="clip"),
    ]
