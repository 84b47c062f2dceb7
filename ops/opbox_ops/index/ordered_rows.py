"""sort, argsort and topk on the CPU: rows in order, some at a time, in temporaries that the plan has laid out.

The first few of a long row are looked for among few: the row is read as a table whose columns are as many as the
answer and more, the best of each column is found in one sweep, and what is wanted stands in the best columns. Where
two columns are equally good at the border, the row is put in order as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import Call, as_one, nothing
from ..compute import Array, Arrays, ArraySpec, Temp
from ..infer import size_of
from ..pausing import pause
from .packed_order import multiples, order_calls, order_temps

__all__ = ["Wanted", "ordered_rows", "ordered_rows_temps"]

AT_ONCE = 1 << 18
"""Elements that are put in order at a time, or one row: some 5 ms."""
_LONG, _MANY, _ENOUGH = 1 << 8, 16, 1 << 13
"""Rows whose first few are looked for in columns: of so many elements, so many times as many as are wanted, and so many
of all rows together. Below, the calls themselves take longer (benchmarks/results/cpu-decisions.md)."""
_DEEPEST = 1 << 12
"""Elements of a column at most."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The order that a call wants of data's rows: along which axis, how many elements, and which way.

    Attributes:
        axis: the rows' axis, from 0 on; None: data as one row.
        first: how many elements of each row's order; None: all.
        ascend: smallest first.
    """

    axis: int | None
    first: int | None
    ascend: bool

    def table(self, shape: Sequence[int]) -> tuple[int, int]:
        """(rows, elements of a row) of an array of shape `shape`."""
        size = size_of(shape) if self.axis is None else shape[self.axis]
        return (size_of(shape) // size if size else 0), size

    def in_rows(self, shape: Sequence[int]) -> bool:
        """Return whether the rows lie one after the other in an array without gaps."""
        return self.axis is None or self.axis == len(shape) - 1


@dataclass(frozen=True, slots=True)
class _Columns:
    """A row of `size` elements as a table, whose last elements are left over.

    Attributes:
        depth, count: elements of a column, and columns.
        rest: elements that are in none.
    """

    depth: int
    count: int
    rest: int

    @classmethod
    def of(cls, rows: int, size: int, first: int) -> _Columns | None:
        """None where rows are short or `first` are not few of them."""
        if size < _LONG or rows * size < _ENOUGH or not first or first * _MANY > size:
            return None
        depth = min(math.isqrt(size // first), _DEEPEST)
        return cls(depth, size // depth, size % depth)

    def temps(self, dtype: Any, rows: int, first: int) -> list[Temp]:
        """The best of the columns; places and values of the best of these; candidates, and which of them it is."""
        candidates = rows * (first * self.depth + self.rest)
        return [
            Temp((rows * self.count,), dtype),
            Temp((rows * (first + 1),), "int64"),
            Temp((rows * (first + 1),), dtype),
            Temp((rows,), "bool"),
            Temp((candidates,), "int64"),
            Temp((candidates,), dtype),
            Temp((rows * first,), "int64"),
        ]


def ordered_rows_temps(wanted: Wanted, data: ArraySpec, outputs: Sequence[ArraySpec]) -> list[Temp]:
    """The temporaries of `ordered_rows`: data in rows, places, those of the orders; outputs whose rows lie apart."""
    rows, size = wanted.table(data.shape)
    first = size if wanted.first is None else wanted.first
    step = _rows_at_once(rows, size)
    columns = _Columns.of(step, size, first)
    apart = [] if wanted.in_rows(data.shape) else [Temp((size_of(out.shape),), out.dtype) for out in outputs]
    return [
        Temp((rows * size,), data.dtype),
        Temp((step * first,), "int64"),
        Temp((step if step > 1 else 0,), "int64"),
        *order_temps(data.dtype, step, size),
        *([] if columns is None else columns.temps(data.dtype, step, first)),
        *apart,
    ]


def _rows_at_once(rows: int, size: int) -> int:
    return min(rows, max(1, AT_ONCE // max(size, 1)))


def ordered_rows(
    wanted: Wanted, data: Array, temps: Arrays, *, values: Array = None, places: Array = None, mask: Array = None
) -> Call:
    """A call that writes what is asked for of data's rows: each output has its shape, or `wanted.first` along the axis.

    Args:
        temps: what `ordered_rows_temps` asked for.
        values, places: the elements in order, and where in their rows they were; None: nobody reads them.
        mask: of data's shape: 1 where an element is among those wanted, 0 elsewhere.
    """
    rows, size = wanted.table(data.shape)
    first = size if wanted.first is None else wanted.first
    outputs = [out for out in (values, places, mask) if out is not None]
    if not outputs or not rows * first:
        return nothing if mask is None else partial(mask.fill, 0)
    step = _rows_at_once(rows, size)
    of_order = len(order_temps(data.dtype, step, size))
    of_columns = (
        0 if (columns := _Columns.of(step, size, first)) is None else len(columns.temps(data.dtype, step, first))
    )
    scratch, flat, begun, *temps = temps
    order, tables, apart = temps[:of_order], temps[of_order : of_order + of_columns], temps[of_order + of_columns :]

    table, calls = _as_table(wanted, data, scratch)
    ends: list[Call] = []
    targets: dict[int, Array] = {}
    for out, temp in zip(outputs, apart or [None] * len(outputs), strict=True):
        length = out.size // rows
        targets[id(out)] = target = (out if temp is None else temp).reshape(rows, length)
        if temp is not None:
            moved = _rows_last(wanted, out)
            ends.append(partial(np.copyto, moved, target.reshape(moved.shape)))
    if mask is not None:
        calls.append(partial(targets[id(mask)].fill, 0))
    for start in range(0, rows, step):
        piece = table[start : start + step]
        at = flat[: len(piece) * first].reshape(len(piece), first)
        if rows > step:
            calls.append(pause)
        calls += (
            order_calls(piece, wanted.ascend, order, at)
            if columns is None
            else [_first_by_columns(piece, columns, wanted.ascend, order, tables, at)]
        )
        part = slice(start, start + len(piece))
        if values is not None:
            calls.append(partial(np.take, piece.reshape(-1), at, out=targets[id(values)][part], mode="clip"))
        if mask is not None:
            calls.append(partial(_mark, targets[id(mask)][part].reshape(-1), at))
        if places is not None:
            begins, counting = multiples(len(piece), size, "int64", begun)
            target = targets[id(places)][part]
            calls += [*counting, partial(np.subtract, at, begins[:, None], out=target, casting="unsafe")]
    return as_one([*calls, *ends])


def _as_table(wanted: Wanted, data: Array, scratch: Array) -> tuple[Array, list[Call]]:
    """`data` as a table of rows without gaps, and the calls that copy it to `scratch` where it does not lie so."""
    rows, size = wanted.table(data.shape)
    if wanted.in_rows(data.shape) and data.flags.c_contiguous:
        return data.reshape(rows, size), []
    moved = _rows_last(wanted, data)
    return scratch.reshape(rows, size), [partial(np.copyto, scratch.reshape(moved.shape), moved)]


def _rows_last(wanted: Wanted, array: Array) -> Array:
    """The array with the rows' axis behind the others; itself where it is one row."""
    return array if wanted.axis is None else np.moveaxis(array, wanted.axis, -1)


def _mark(mask: Array, places: Array) -> None:
    mask[places] = 1


def _first_by_columns(piece: Array, columns: _Columns, ascend: bool, order: Arrays, tables: Arrays, at: Array) -> Call:
    """A call that writes to `at` (m, first) where in `piece` (m, n), as one row, the first of each row's order are."""
    (rows, size), first = piece.shape, at.shape[1]
    depth, count, inside = columns.depth, columns.count, columns.depth * columns.count
    wide = first * depth + columns.rest
    shapes = ((rows, count), (rows, first + 1), (rows, first + 1), (rows,), (rows, wide), (rows, wide), (rows, first))
    best, top, top_values, clear, candidates, candidate_values, ranks = (
        temp[: math.prod(shape)].reshape(shape) for temp, shape in zip(tables, shapes, strict=True)
    )
    better, strictly = (np.fmin, np.less) if ascend else (np.maximum, np.greater)  # NaN is the largest
    search: list[Call] = [
        partial(better.reduce, piece[:, :inside].reshape(rows, depth, count), axis=1, out=best),
        *order_calls(best, ascend, order, top),
        partial(np.take, best.reshape(-1), top, out=top_values, mode="clip"),
        partial(strictly, top_values[:, first - 1], top_values[:, first], out=clear),
    ]
    chosen = top[:, :first]
    downwards, along = multiples(depth, count, "int64")[0], multiples(rows, size - count, "int64")[0]
    in_columns = candidates[:, : first * depth].reshape(rows, depth, first)
    among: list[Call] = [
        chosen.sort,  # candidates stand in the order of their places, which decides between equals
        partial(np.add, chosen, along[:, None], out=chosen),
        partial(np.add, chosen[:, None, :], downwards[:, None], out=in_columns),
    ]
    if columns.rest:
        begins, last = multiples(rows, size, "int64")[0], multiples(columns.rest, 1, "int64")[0] + inside
        among.append(partial(np.add, begins[:, None], last, out=candidates[:, first * depth :]))
    among += [
        partial(np.take, piece.reshape(-1), candidates, out=candidate_values, mode="clip"),
        *order_calls(candidate_values, ascend, order, ranks),
        partial(np.take, candidates.reshape(-1), ranks, out=at, mode="clip"),
    ]
    by_columns, as_a_whole = as_one(among), as_one(order_calls(piece, ascend, order, at))
    looking = as_one(search)

    def run() -> None:
        looking()
        (by_columns if clear.all() else as_a_whole)()

    return run
