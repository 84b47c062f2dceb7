"""All of a session's arrays and executors as bytes, and a table made of them in another process, value for value.

Unlike a checkpoint, which has what a program names, an image has everything: arrays that share memory go on sharing it,
executors keep what their last forward run has left for backward, and random numbers go on where they are.

An image is a JSON header and blocks of bytes. A block is memory that some arrays lie in: arrays whose bytes overlap are
in one block. The block of an executor's output is made by the executor that it is bound by.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opbox_ops.compute import Array
from opbox_protocol.datatypes import DATATYPES, datatype_of
from opbox_protocol.errors import BadRequestError, MXNetError, UnsupportedError

from ..executor import RunProgress
from ..graph import json as graph_json
from ..quota import Allocation
from ..validation import validate
from .array_table import ArrayEntry, ArrayTable, ExecutorEntry, RowsEntry, UnwrittenOutput
from .checkpoints import CheckpointPlan
from .executors import bind_entries
from .groups import GroupEntry
from .image_header import ImageExecutor, ImageHeader, ImagePlace, check_places

__all__ = ["TableImage", "pack", "unpack"]


@dataclass(slots=True)
class TableImage:
    """Writes a table's arrays and executors as bytes.

    Attributes:
        header: plain JSON.
        blocks: of bytes, on the host.
    """

    header: dict[str, Any]
    blocks: list[np.ndarray[Any, Any]] = field(default_factory=list)

    def add(self, block: np.ndarray[Any, Any]) -> int:
        """Append a block; its number."""
        self.blocks.append(block)
        return len(self.blocks) - 1


def pack(table: ArrayTable) -> TableImage:
    """The image of a table that has no code of a user's, and whose commands rest meanwhile.

    Raises:
        UnsupportedError: an array lies where no image can put it.
    """
    entries: dict[int, Any] = table.entries()
    unwritten = {id: entry for id, entry in entries.items() if isinstance(entry, UnwrittenOutput)}
    entries |= {id: entry.entry for id, entry in unwritten.items()}
    groups = [id for id, entry in entries.items() if isinstance(entry, GroupEntry)]
    if groups:
        raise UnsupportedError(
            f"code: expected a session in no group, got one in group {groups[0]}: code of a user's has no network: "
            "free the group, or train with built-in operators"
        )
    executors = {id: entry for id, entry in entries.items() if isinstance(entry, ExecutorEntry)}
    arrays = {id: entry for id, entry in entries.items() if isinstance(entry, ArrayEntry)}
    datasets = {id: entry for id, entry in entries.items() if isinstance(entry, RowsEntry)}
    every = [entry.array for entry in arrays.values()] + [entry.array for entry in datasets.values()]
    for entry in executors.values():
        every += [*entry.executor.arrays.values(), *entry.executor.outputs]
    spans = _spans(every)
    image = TableImage({})
    for span in spans.blocks:
        image.add(table.backend.get(_bytes_at(table.backend, *span)))
    rows = []
    for id, entry in executors.items():
        executor = entry.executor
        bound = {f"{kind}:{name}": spans.row(array) for (kind, name), array in executor.arrays.items()}
        outputs = [spans.row(array) for array in executor.outputs]
        own = {row[0] for row in bound.values()}
        for row, array in zip(outputs, executor.outputs, strict=True):
            if row[0] not in own and spans.blocks[row[0]] != _span(array)[:2]:
                raise UnsupportedError(f"executor {id}: expected outputs in memory of their own, got some in another's")
        progress = executor.progress()
        values = None
        if progress.values is not None:
            values = image.add(table.backend.get(progress.values))
        rows.append(
            {
                "id": id,
                "graph": graph_json.dump(entry.graph),
                "bound": bound,
                "outputs": outputs,
                "places": dict(entry.places),
                "progress": [
                    progress.layout,
                    values,
                    list(progress.flags),
                    progress.forwards,
                    progress.backwards,
                    None if progress.streams is None else list(progress.streams),
                ],
            }
        )
    plan = table.plan
    present = {id: image.add(entry.present.view(np.uint8)) for id, entry in datasets.items()}
    image.header.update(
        arrays=[[id, spans.row(entry.array), entry.read_only] for id, entry in arrays.items()],
        unwritten=[[id, entry.executor] for id, entry in unwritten.items()],
        datasets=[[id, present[id], spans.row(entry.array)] for id, entry in datasets.items()],
        executors=rows,
        order=list(entries),
        graphs={name: graph_json.dump(graph) for name, graph in table.recent_graphs().items()},
        random=table.random.state(),
        steps=table.steps,
        profile=None if table.profile is None else table.profile.image(),
        plan=None
        if plan is None
        else {
            "name": plan.name,
            "arrays": dict(plan.arrays),
            "executors": list(plan.executors),
            "every": plan.every,
            "step": plan.step,
            "position": None if plan.position is None else dict(plan.position),
            "saved": plan.saved,
            "current": plan.current,
            "generation": plan.generation,
        },
    )
    return image


def unpack(table: ArrayTable, image: TableImage) -> None:
    """Make an image's arrays and executors in a table that has none.

    Raises:
        BadRequestError: it is no image of a table.
        MXNetError: there is no room for them, or they cannot be made here; the table has none then.
    """
    header = validate(ImageHeader, image.header)
    check_places(header, [int(block.nbytes) for block in image.blocks], table.max_rank)
    maker = _Maker(table, image, header)
    try:
        maker.make_all()
    except BaseException as error:
        table.clear()
        if isinstance(error, _UNFIT) and not isinstance(error, MXNetError):
            raise BadRequestError(
                f"the session: expected an image that this server wrote, got another ({type(error).__name__}: {error})"
            ) from error
        raise
    finally:
        maker.let_go()


_UNFIT = (AttributeError, LookupError, TypeError, ValueError, OverflowError)
"""Raised by what an image's values are handed to, where these do not fit each other."""


class _Spans:
    """The blocks that arrays lie in, by their addresses.

    Attributes:
        blocks: begin and end of each, and an array that keeps it.
    """

    def __init__(self, blocks: list[tuple[int, int]], of_array: dict[int, int]) -> None:
        self.blocks = blocks
        self._of_array = of_array

    def row(self, array: Array) -> list[Any]:
        """An array as block, offset, shape, strides and type."""
        block = self._of_array[id(array)]
        offset = _span(array)[2] - self.blocks[block][0]
        return [block, offset, list(array.shape), list(array.strides), datatype_of(array.dtype)]


def _spans(arrays: Sequence[Array]) -> _Spans:
    unique = {id(array): array for array in arrays}
    spans = sorted((_span(array), key) for key, array in unique.items())
    blocks: list[tuple[int, int]] = []
    of_array: dict[int, int] = {}
    for (low, high, _), key in spans:
        if blocks and low < blocks[-1][1]:
            blocks[-1] = blocks[-1][0], max(high, blocks[-1][1])
        else:
            blocks.append((low, high))
        of_array[key] = len(blocks) - 1
    return _Spans(blocks, of_array)


def _span(array: Array) -> tuple[int, int, int]:
    """The first address of an array's bytes, the one behind them, and that of its first element."""
    first = int(array.ctypes.data) if isinstance(array, np.ndarray) else int(array.data.ptr)
    if not array.size:
        return first, first, first
    low = high = first
    for length, stride in zip(array.shape, array.strides, strict=True):
        low, high = (low, high + (length - 1) * stride) if stride > 0 else (low + (length - 1) * stride, high)
    return low, high + int(array.itemsize), first


def _bytes_at(backend: Any, low: int, high: int, keeper: Any = None) -> Array:
    """The memory between two addresses of a device, as bytes; what they give keeps `keeper`."""
    if high == low:
        return backend.unmetered.empty((0,), np.uint8)
    if backend.device_type == "cpu":
        memory: Any = (ctypes.c_ubyte * (high - low)).from_address(low)
        memory.keeper = keeper
        return np.frombuffer(memory, np.uint8)
    cuda: Any = backend.xp.cuda
    pointer = cuda.MemoryPointer(cuda.UnownedMemory(low, high - low, keeper), 0)
    return backend.xp.ndarray((high - low,), np.uint8, pointer)


class _Maker:
    """Makes what an image describes, each thing when something needs it first."""

    def __init__(self, table: ArrayTable, image: TableImage, header: ImageHeader) -> None:
        self._table = table
        self._image = image
        self._header = header
        self._executors: dict[int, ExecutorEntry] = {}
        self._blocks: dict[int, tuple[Array, Allocation]] = {}
        self._makers: dict[int, ImageExecutor] = {}
        for row in header.executors:
            bound = {place.block for place in row.bound.values()}
            for place in row.outputs:
                if place.block not in bound:
                    self._makers.setdefault(place.block, row)

    def make_all(self) -> None:
        table, header = self._table, self._header
        table.random.restore(header.random.model_dump())
        for name, document in header.graphs.items():
            table.keep_graph(name, table.graph(document))
        arrays = {row.id: row for row in header.arrays}
        datasets = {row.id: row for row in header.datasets}
        rows = {row.id: row for row in header.executors}
        for id in header.order:
            table.reserve(id)
            if id in arrays:
                table.add(id, self._entry(arrays[id].place, arrays[id].read_only))
            elif id in datasets:
                flags = self._image.blocks[datasets[id].present].view(bool).copy()
                table.add(id, RowsEntry(self._entry(datasets[id].place), flags))
            else:
                table.add(id, self._executor(rows[id]))
        for id, row in rows.items():
            saved, streams = row.progress, row.progress.streams
            values = None if saved.values is None else table.backend.unmetered.put(self._image.blocks[saved.values])
            progress = RunProgress(
                saved.layout,
                values,
                (saved.flags[0], saved.flags[1], saved.flags[2]),
                saved.forwards,
                saved.backwards,
                None if streams is None else (streams.executor, streams.run, streams.drawn),
            )
            self._executors[id].executor.resume(progress)
        for executor in {output.executor for output in header.unwritten}:
            table.await_run(executor, [output.id for output in header.unwritten if output.executor == executor])
        table.steps = header.steps
        if header.profile is not None:
            table.start_profile().restore(header.profile)
        table.plan = None if header.plan is None else CheckpointPlan(**header.plan.model_dump())

    def let_go(self) -> None:
        """Leave the memory to the entries that have it."""
        for _, allocation in self._blocks.values():
            allocation.drop()

    def _executor(self, row: ImageExecutor) -> ExecutorEntry:
        if row.id in self._executors:
            return self._executors[row.id]
        groups: dict[str, dict[str, ArrayEntry]] = {"arg": {}, "grad": {}, "aux": {}}
        places = row.places.model_dump()
        for key, place in row.bound.items():
            kind, _, name = key.partition(":")
            groups[kind][name] = self._entry(place)
        entry, allocations = bind_entries(
            self._table,
            self._table.graph(row.graph),
            groups["arg"],
            groups["grad"],
            groups["aux"],
            row.places.grad_req,
            places,
        )
        self._executors[row.id] = entry
        for group in groups.values():
            for temporary in group.values():
                temporary.drop()
        for place, array in zip(row.outputs, entry.executor.outputs, strict=True):
            block = place.block
            if self._makers.get(block) is not row or block in self._blocks:
                continue
            described = (list(array.shape), list(array.strides), datatype_of(array.dtype))
            if described != (place.shape, place.strides, place.datatype):
                raise UnsupportedError(f"executor {row.id}: expected outputs that lie as they did, got others")
            allocation = allocations[id(array)]
            assert allocation is not None
            low, high, _ = _span(array)
            memory = _bytes_at(self._table.backend, low, high, array)
            self._table.backend.write(memory, self._image.blocks[block])
            self._blocks[block] = memory, allocation.share()
        return entry

    def _entry(self, place: ImagePlace, read_only: bool = False) -> ArrayEntry:
        block, dtype = place.block, DATATYPES[place.datatype]
        if block not in self._blocks:
            maker = self._makers.get(block)
            if maker is not None:
                self._executor(maker)
            else:
                data = self._image.blocks[block]
                allocation = Allocation(self._table.budget, int(data.nbytes))
                self._blocks[block] = self._table.backend.unmetered.put(data), allocation
        memory, allocation = self._blocks[block]
        if self._table.backend.device_type == "cpu":
            array = np.ndarray(tuple(place.shape), dtype, memory, place.offset, tuple(place.strides))
        else:
            pointer = memory.data + place.offset
            array = self._table.backend.xp.ndarray(tuple(place.shape), dtype, pointer, tuple(place.strides))
        return ArrayEntry(array, None, allocation.share(), read_only)
