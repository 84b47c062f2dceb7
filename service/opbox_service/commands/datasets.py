"""Datasets: rows that a session gets once, and from which its steps take batches.

`dataset` opens one, `put_rows` brings rows, `take_rows` gathers a batch on the device, `keep_rows` saves blocks of rows
in the owner's store, where other sessions find them by their hashes.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from opbox_ops.compute import Array
from opbox_ops.infer import show_shape
from opbox_ops.params import AnyDType
from opbox_protocol.errors import (
    BadRequestError,
    ConflictError,
    DTypeError,
    NotFoundError,
    PositionError,
    QuotaError,
    ShapeError,
)
from opbox_protocol.mxnet import numpy_dtype

from ..dataset_documents import BlockName
from ..dataset_store import DatasetArray
from ..executor.allocation import allocate, bytes_of
from ..task import checkpoint
from ..validation import Expected, InPieces
from .array_table import ArrayEntry, ArrayTable, RowsEntry
from .command import Command, Exchange, Id

__all__ = ["COMMANDS"]

LARGEST_SHARE = 2
"""A dataset gets at most one part in so many of the memory that the session has left: the network needs the rest."""
Count = Annotated[int, Field(ge=0), Expected("an integer of 0 or more")]
Rows = Annotated[int, Field(ge=1), Expected("an integer of 1 or more")]


class Dataset(Command):
    """Open a dataset: rows of a shape and type, with those blocks that your store has; or an array of a named one.

    The result has `missing`, the numbers of the blocks that are yet to come, with the shape and the type.
    """

    changes_arrays: ClassVar[bool] = False

    do: Literal["dataset"]
    id: Id
    shape: list[Count] | None = Field(default=None, description="Of the whole dataset; its first axis are the rows.")
    dtype: AnyDType | None = None
    block_rows: Rows | None = Field(default=None, description="Rows of a block.")
    blocks: Annotated[list[BlockName], InPieces()] = Field(
        default=[], description="SHA-256 of the bytes of each block, in order."
    )
    name: str | None = Field(default=None, description="A named dataset of yours, or a published one as owner/name.")
    array: str | None = Field(default=None, description="Name of the array in that dataset.")

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.reserve(self.id)
        wanted, owner = self._named(table) if self.name is not None else (self._described(table), None)
        if len(wanted.shape) > table.max_rank:
            raise BadRequestError(f"dataset: expected at most {table.max_rank} dimensions, got {len(wanted.shape)}")
        shape, dtype = tuple(wanted.shape), numpy_dtype(wanted.dtype)
        nbytes = bytes_of(shape, dtype) + shape[0]  # a flag for each row
        available = table.budget.available
        if LARGEST_SHARE * nbytes > available:
            raise QuotaError(
                f"dataset {self.id}: expected at most {max(0, available) // LARGEST_SHARE} bytes, a half of the memory "
                f"that the session has left, got {nbytes}: send the rows with each step (OPBOX_DATASETS=0)"
            )
        with table.budget.settling():
            array = ArrayEntry(allocate(table.backend, shape, dtype), table.budget)
            entry = RowsEntry(array, np.zeros(shape[0], bool))
            missing = _load(table, entry, wanted, owner)
            if self.name is not None and missing:
                raise NotFoundError(
                    f"dataset {self.name[:200]!r}: array {str(self.array)[:64]!r}: expected all of its blocks, got "
                    f"{len(missing)} missing: put the dataset again"
                )
            table.keep_dataset(self.id, entry)
        exchange.report(missing=missing, shape=list(shape), dtype=wanted.dtype)

    def _described(self, table: ArrayTable) -> DatasetArray:
        if self.array is not None:
            raise BadRequestError(f"dataset {self.id}: array: expected it beside a name, got it without one")
        if not self.shape or self.dtype is None:
            raise BadRequestError(
                f"dataset {self.id}: expected a shape of 1 or more dimensions and a dtype, or a name and an array, got "
                "neither"
            )
        if self.blocks and self.block_rows is None:
            raise BadRequestError(f"dataset {self.id}: block_rows: expected the rows of a block, got nothing")
        block_rows = self.block_rows or 1
        count = -(-self.shape[0] // block_rows)
        if self.blocks and len(self.blocks) != count:
            raise BadRequestError(
                f"dataset {self.id}: blocks: expected {count} of {block_rows} rows for {self.shape[0]}, got "
                f"{len(self.blocks)}"
            )
        return DatasetArray(self.shape, self.dtype, block_rows, self.blocks)

    def _named(self, table: ArrayTable) -> tuple[DatasetArray, str]:
        if self.shape is not None or self.dtype is not None or self.blocks or self.block_rows is not None:
            raise BadRequestError(
                f"dataset {self.id}: expected a name, or shape, dtype, block_rows and blocks, got both"
            )
        assert self.name is not None
        if table.datasets is None:
            raise NotFoundError(f"dataset {self.name[:200]!r}: expected a session with a store of datasets")
        dataset = table.datasets.find(self.name)
        if self.array is None or self.array not in dataset.arrays:
            names = ", ".join(list(dataset.arrays)[:10])
            raise NotFoundError(
                f"dataset {self.name[:200]!r}: array: expected one of {names}, got {str(self.array)[:64]!r}"
            )
        return dataset.arrays[self.array], dataset.owner


def _load(table: ArrayTable, entry: RowsEntry, wanted: DatasetArray, owner: str | None) -> list[int]:
    """Fill a dataset with the blocks that the store has; the numbers of the others."""
    numbers = range(len(wanted.blocks))
    store = table.datasets
    if store is None or not wanted.blocks:
        return list(numbers)
    missing = set() if owner is not None else set(store.missing(wanted.blocks))
    for number in numbers:
        if number in missing:
            continue
        checkpoint()
        rows = slice(number * wanted.block_rows, min((number + 1) * wanted.block_rows, len(entry.present)))
        target = entry.array[rows]
        try:
            data = np.frombuffer(store.load(wanted.blocks[number], owner), np.uint8)
        except NotFoundError:  # it has expired since
            missing.add(number)
            continue
        if data.nbytes != int(target.nbytes):
            missing.add(number)
            continue
        table.backend.write(target, data.view(target.dtype).reshape(target.shape))
        entry.mark(rows)
    return sorted(missing)


class PutRows(Command):
    """Put rows into a dataset, at the numbers in the tensor `rows`, or one behind the other from row `begin`."""

    changes_arrays: ClassVar[bool] = False

    do: Literal["put_rows"]
    id: Id
    tensor: str
    rows: str | None = Field(default=None, description="Name of a tensor of integers: the rows' numbers.")
    begin: Count | None = None

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        entry, host = table.rows_entry(self.id), exchange.tensor(self.tensor)
        subject = f"put_rows {self.id}"
        if (self.rows is None) == (self.begin is None):
            raise BadRequestError(f"{subject}: expected either rows or begin")
        expected = tuple(entry.array.shape[1:])
        if not host.ndim or tuple(host.shape[1:]) != expected:
            raise ShapeError(
                f"{subject}: expected rows of shape {show_shape(expected)}, got a tensor of shape "
                f"{show_shape(tuple(host.shape))}"
            )
        if host.dtype != entry.array.dtype:
            raise DTypeError(f"{subject}: expected {entry.array.dtype}, got {host.dtype}")
        if self.rows is None:
            assert self.begin is not None
            part = _range(subject, self.begin, self.begin + len(host), len(entry.present))
            table.backend.write(entry.array[part], host)
            entry.mark(part)
            return
        rows = _numbers(subject, exchange.tensor(self.rows), len(entry.present))
        if len(rows) != len(host):
            raise ShapeError(f"{subject}: rows: expected {len(host)} numbers, one for each row, got {len(rows)}")
        if table.backend.device_type == "cpu":
            entry.array[rows] = host
        else:
            entry.array[table.backend.put(rows)] = table.backend.put(host)
        entry.mark(rows)


class TakeRows(Command):
    """Take rows of a dataset into an array, with a cast, and times `scale`: a batch.

    The rows are those in the tensor `rows`, or `begin` to before `end`. If the array does not exist, it is created.
    """

    do: Literal["take_rows"]
    id: Id
    of: Id
    rows: str | None = Field(default=None, description="Name of a tensor of integers: the rows' numbers.")
    begin: Count | None = None
    end: Count | None = None
    dtype: AnyDType | None = Field(default=None, description="Of an array that is created; by default the dataset's.")
    scale: Annotated[float, Field(allow_inf_nan=False), Expected("a finite number")] = 1.0

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        entry = table.rows_entry(self.of)
        subject, count = f"take_rows {self.of}", len(entry.present)
        if (self.rows is None) == (self.begin is None and self.end is None):
            raise BadRequestError(f"{subject}: expected either rows, or begin and end")
        part: slice | np.ndarray[Any, Any]
        if self.rows is None:
            part = _range(subject, self.begin or 0, count if self.end is None else self.end, count)
            length = part.stop - part.start
        else:
            part = _numbers(subject, exchange.tensor(self.rows), count)
            length = len(part)
        if not entry.complete and not entry.present[part].all():
            raise ConflictError(f"{subject}: expected rows that have been put, got some that have not: put them first")
        shape = (length, *entry.array.shape[1:])
        if self.id in table.holder_of(self.id):
            target = table.writable(self.id)
            if tuple(target.shape) != shape:
                raise ShapeError(
                    f"{subject}: expected an array of shape {show_shape(shape)}, got array {self.id} of shape "
                    f"{show_shape(tuple(target.shape))}"
                )
            _take(table, subject, entry.array, part, target, self.scale)
            return
        table.reserve(self.id)
        dtype = entry.array.dtype if self.dtype is None else numpy_dtype(self.dtype)
        target = allocate(table.backend, shape, dtype, overwritten=True)
        _take(table, subject, entry.array, part, target, self.scale)
        table.keep(self.id, target)


def _take(
    table: ArrayTable, subject: str, source: Array, part: slice | np.ndarray[Any, Any], target: Array, scale: float
) -> None:
    """Gather rows into an array of their shape."""
    if scale != 1.0 and target.dtype.kind in "biu":
        raise DTypeError(f"{subject}: scale: expected 1 for an array of {target.dtype}, got {scale}")
    backend = table.backend
    if isinstance(part, slice):
        target[...] = source[part]
    elif backend.device_type != "cpu":
        target[...] = source.take(backend.put(part), axis=0)
    elif source.dtype == target.dtype and target.flags.c_contiguous:
        # With another mode NumPy takes the rows into a buffer first; `_numbers` has checked them.
        np.take(source, part, axis=0, out=target, mode="clip")
    else:
        target[...] = source.take(part, axis=0)
    if scale != 1.0:
        target *= target.dtype.type(scale)


class KeepRows(Command):
    """Save blocks of a dataset's rows in your store, under their hashes; what your quota has no space for is left out.

    The answer does not wait for the disk.
    """

    changes_arrays: ClassVar[bool] = False

    do: Literal["keep_rows"]
    id: Id
    block_rows: Rows
    blocks: Annotated[list[Count], InPieces()] = Field(description="Numbers of blocks.")

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        entry = table.rows_entry(self.id)
        count = -(-len(entry.present) // self.block_rows)
        for number in self.blocks:
            if number >= count:
                raise PositionError(f"keep_rows {self.id}: blocks: expected numbers below {count}, got {number}")
            rows = slice(number * self.block_rows, (number + 1) * self.block_rows)
            if not entry.present[rows].all():
                raise ConflictError(f"keep_rows {self.id}: block {number}: expected all of its rows, got some missing")
        if table.datasets is None:
            return
        parts = []
        for number in sorted(set(self.blocks)):
            checkpoint()
            rows = slice(number * self.block_rows, (number + 1) * self.block_rows)
            parts.append(memoryview(table.backend.get(entry.array[rows]).reshape(-1).view(np.uint8)))
        table.datasets.keep(parts)


def _range(subject: str, begin: int, end: int, count: int) -> slice:
    if not 0 <= begin <= end <= count:
        raise PositionError(f"{subject}: expected rows 0 <= begin <= end <= {count}, got {begin} and {end}")
    return slice(begin, end)


def _numbers(subject: str, rows: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """Row numbers as indices, each checked."""
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise BadRequestError(
            f"{subject}: rows: expected a vector of integers, got shape {show_shape(tuple(rows.shape))} of {rows.dtype}"
        )
    if len(rows):
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= count:
            raise PositionError(
                f"{subject}: rows: expected numbers from 0 to {count - 1}, got {low if low < 0 else high}"
            )
    return rows.astype(np.intp)


COMMANDS = (Dataset, PutRows, TakeRows, KeepRows)
