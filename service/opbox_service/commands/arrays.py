"""Arrays: put, write, zeros, copy, view, fetch, describe, free."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from opbox_ops.backend import copy_between
from opbox_ops.compute import Array
from opbox_ops.infer import show_shape
from opbox_ops.params import AnyDType
from opbox_protocol.datatypes import datatype_of
from opbox_protocol.errors import BadRequestError, ShapeError
from opbox_protocol.mxnet import numpy_dtype

from ..executor.allocation import allocate
from ..task import checkpoint
from .array_table import ArrayEntry, ArrayTable
from .command import Command, Exchange, Id, Ids

__all__ = ["COMMANDS"]


class Put(Command):
    """Create an array from a tensor of the request."""

    do: Literal["put"]
    id: Id
    tensor: str

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.reserve(self.id)
        table.keep(self.id, exchange.device_copy(self.tensor, table.backend))


class Write(Command):
    """Write a tensor of the request into an existing array, with a cast if needed."""

    do: Literal["write"]
    id: Id
    tensor: str

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        target, host = table.writable(self.id), exchange.tensor(self.tensor)
        _check_shape(self.id, target.shape, host.shape)
        table.backend.write(target, host)


class Zeros(Command):
    """Create arrays of zeros, all of one shape and type."""

    do: Literal["zeros"]
    ids: Ids
    shape: list[Annotated[int, Field(ge=0)]]
    dtype: AnyDType

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.reserve(*self.ids)
        shape = tuple(self.shape)
        if len(shape) > table.max_rank:
            raise BadRequestError(f"zeros: expected at most {table.max_rank} dimensions, got {len(shape)}")
        dtype = numpy_dtype(self.dtype)
        for id in self.ids:
            checkpoint()
            table.keep(id, allocate(table.backend, shape, dtype))


class Copy(Command):
    """Copy an array into another, with a cast if needed; both may be on any device of the session.

    If `to` does not exist, it is created on the selected device.
    """

    do: Literal["copy"]
    source: Id = Field(alias="from")
    to: Id

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        far, near = table.holder_of(self.source), table.holder_of(self.to)
        source = far.read(self.source)
        if self.to in near:
            target = near.writable(self.to)
            _check_shape(self.to, target.shape, source.shape)
            _fill(target, source, near, far, table)
            return
        table.reserve(self.to)
        target = table.backend.empty(tuple(source.shape), source.dtype)
        _fill(target, source, table, far, table)
        table.keep(self.to, target)


def _fill(target: Array, source: Array, near: ArrayTable, far: ArrayTable, current: ArrayTable) -> None:
    """Copy an array of `far`'s device to one of `near`'s."""
    if near is far is current:
        target[...] = source
    elif near is far:
        with near.backend.scope():
            target[...] = source
    else:
        with near.budget.settling(), far.budget.settling():
            copy_between(source, target, far.backend, near.backend)


class View(Command):
    """An array that shares memory with another: rows `begin` to `end`, row `at`, or another `shape`."""

    do: Literal["view"]
    id: Id
    of: Id
    begin: int | None = None
    end: int | None = None
    at: int | None = None
    shape: list[int] | None = None

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.reserve(self.id)
        entry = table.entry(self.of)
        if (self.begin is not None or self.end is not None) + (self.at is not None) + (self.shape is not None) != 1:
            raise BadRequestError(f"view {self.id}: expected either begin and end, or at, or shape")
        array = self._rows(entry.array) if self.shape is None else self._reshaped(entry.array, self.shape)
        shared = entry.allocation.share() if entry.allocation is not None else None
        table.add(self.id, ArrayEntry(array, None, shared, entry.read_only))

    def _reshaped(self, array: Array, shape: list[int]) -> Array:
        if not array.flags.c_contiguous:
            raise BadRequestError(f"view {self.id}: array {self.of} is not contiguous: copy it before reshaping")
        try:
            return array.reshape(shape)
        except (ValueError, OverflowError):
            raise ShapeError(
                f"view {self.id}: expected a shape of {array.size} elements, as {show_shape(array.shape)} has, "
                f"got {tuple(shape)}"
            ) from None

    def _rows(self, array: Array) -> Array:
        rows = array.shape[0] if array.ndim else 0
        if self.at is not None:
            if not 0 <= self.at < rows:
                raise ShapeError(f"view {self.id}: at: expected a row from 0 to {rows - 1}, got {self.at}")
            # An Ellipsis keeps a row of a vector an array (of rank 0) that shares its memory.
            return array[self.at, ...]
        begin = self.begin or 0
        end = rows if self.end is None else self.end
        if not 0 <= begin <= end <= rows:
            raise ShapeError(f"view {self.id}: expected 0 <= begin <= end <= {rows}, got {begin} and {end}")
        return array[begin:end]


class Fetch(Command):
    """Send an array in the answer's outputs, under the name `as`."""

    changes_arrays: ClassVar[bool] = False

    do: Literal["fetch"]
    id: Id
    name: str = Field(alias="as")

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        exchange.send(self.name, table.read(self.id), table.backend)


class Describe(Command):
    """Report an array's shape, datatype and device in the answer's results."""

    changes_arrays: ClassVar[bool] = False

    do: Literal["describe"]
    id: Id

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        array = table.read(self.id)
        exchange.report(shape=list(array.shape), datatype=datatype_of(array.dtype), device=table.device)


class Free(Command):
    """Free arrays, executors and kernels; unknown ids are ignored."""

    changes_arrays: ClassVar[bool] = False
    always_runs: ClassVar[bool] = True

    do: Literal["free"]
    ids: Ids

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.drop_all(self.ids)


COMMANDS = (Put, Write, Zeros, Copy, View, Fetch, Describe, Free)


def _check_shape(id: int, expected: Any, got: Any) -> None:
    if tuple(expected) != tuple(got):
        raise ShapeError(f"array {id}: expected {show_shape(tuple(expected))}, got {show_shape(tuple(got))}")
