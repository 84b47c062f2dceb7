"""Checkpoints: `checkpoint` saves arrays and the state of a program, `restore` loads them into a session."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from opbox_ops.infer import show_shape
from opbox_protocol.datatypes import DATATYPES, datatype_of
from opbox_protocol.errors import BadRequestError, ConflictError, MXNetError, NotFoundError

from ..checkpoint_store import CHECKPOINT_NAME, check_available
from ..executor.allocation import allocate
from ..graph import json as graph_json
from ..task import checkpoint
from ..validation import Expected
from .array_table import ArrayTable
from .checkpoint_file import Position, SavedSession, read, written
from .command import Command, Exchange, Id
from .executors import Bind

__all__ = ["COMMANDS", "CheckpointPlan", "save"]

Name = Annotated[
    str,
    Field(pattern=f"^{CHECKPOINT_NAME}$", description="Name of the checkpoint, unique for its owner."),
    Expected("up to 64 letters, digits, dots, dashes and underlines"),
]


@dataclass(slots=True)
class CheckpointPlan:
    """Content of a session's checkpoint, and the session's progress.

    Attributes:
        name: of the checkpoint.
        arrays: those that are saved, by name.
        executors: those that are made anew.
        every: steps between two; 0 where it is saved whenever it is asked for.
        step, position: of the last `checkpoint` command: where the program is.
        saved: the step that is on the disk; None while none is.
        current: whether no array has changed since that command.
        generation: of the checkpoint as this session saves it; None before it has. See `CheckpointStore`.
    """

    name: str
    arrays: Mapping[str, int]
    executors: Sequence[int]
    every: int = 0
    step: int = 0
    position: Mapping[str, Any] | None = None
    saved: int | None = None
    current: bool = False
    generation: int | None = None


class Checkpoint(Command):
    """Save arrays under a name; with `every`, when so many steps have passed since the last, and when the server stops.

    Without `arrays` those of the session's last `checkpoint` are meant, as is usual for the steps after the first.
    """

    changes_arrays: ClassVar[bool] = False

    do: Literal["checkpoint"]
    name: Name
    arrays: dict[str, Id] | None = Field(default=None, description="The arrays to save, by names of the client's.")
    executors: list[Id] = Field(default=[], description="Executors that `restore` binds anew.")
    every: int = Field(default=0, ge=0, description="Save when so many steps have passed; 0 for now.")
    step: int = Field(default=0, ge=0, description="The number of steps that the arrays have behind them.")
    position: Position = {}

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        check_available(table.checkpoints)
        plan = table.plan
        if self.arrays is not None:
            for id in self.arrays.values():
                table.read(id)
            for id in self.executors:
                table.executor_entry(id)
            before = plan if plan is not None and plan.name == self.name else None
            plan = table.plan = CheckpointPlan(self.name, self.arrays, self.executors, self.every)
            if before is not None:
                plan.saved, plan.generation = before.saved, before.generation
        elif plan is None or plan.name != self.name:
            raise BadRequestError(f"checkpoint {self.name!r}: arrays: expected the arrays to save, got none yet")
        plan.every, plan.step, plan.position, plan.current = self.every, self.step, self.position, True
        if not self.every or plan.saved is None or not plan.saved <= self.step < plan.saved + self.every:
            exchange.report(name=plan.name, step=plan.step, bytes=save(table, plan))


def save(table: ArrayTable, plan: CheckpointPlan) -> int:
    """Write a plan's arrays as they are; the number of bytes.

    Raises:
        NotFoundError: an array is not there any more.
        ConflictError: another session goes on from this one's checkpoint.
        QuotaError: the owner's checkpoints have no room for it, or the session no memory.
    """
    blank: dict[int, Any] = {}
    executors, saved_ids = [], set(plan.arrays.values())
    random: list[list[int] | None] = []
    entries = {id: table.executor_entry(id) for id in plan.executors}
    # Executors make their outputs anew; one that reads another's is bound behind it.
    saved_ids.update(number for entry in entries.values() for number in entry.places["outputs"] if number is not None)
    for id in [id for id in table.entries() if id in entries]:
        entry = entries[id]
        random.append(entry.executor.streams.snapshot())
        executors.append({"id": id, "graph": graph_json.dump(entry.graph), **entry.places})
        for group in ("args", "grads", "aux"):
            for number in entry.places[group].values():
                if number not in saved_ids and number not in blank:
                    array = table.read(number)
                    blank[number] = [list(array.shape), datatype_of(array.dtype)]
    header = {
        "device": table.device,
        "step": plan.step,
        "position": plan.position or {},
        "random": {"source": table.random.snapshot(), "executors": random},
        "ids": dict(plan.arrays),
        "blank": [[id, *description] for id, description in blank.items()],
        "executors": executors,
    }
    with table.budget.settling():
        arrays = {name: table.read(id) for name, id in plan.arrays.items()}
        if table.backend.device_type != "cpu":
            table.budget.reserve(sum(int(array.nbytes) for array in arrays.values()))
        nbytes, parts = written(header, {name: table.backend.get(array) for name, array in arrays.items()})
        plan.generation = check_available(table.checkpoints).save(plan.name, parts, plan.generation)
    plan.saved = plan.step
    return nbytes


class Restore(Command):
    """A checkpoint's arrays and executors, under the numbers that they had, in a session that has none yet.

    With `arrays`, those arrays alone, under other numbers, in any session.
    """

    do: Literal["restore"]
    name: Name
    arrays: dict[str, Id] | None = Field(default=None, description="New ids of arrays, by name.")
    takes_over: bool = Field(
        default=False,
        description="Go on in the place of the session that saved it, which cannot save it any more, wherever it is.",
    )

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        store = check_available(table.checkpoints)
        if self.arrays is not None:
            table.reserve(*self.arrays.values())
        elif len(table):
            raise ConflictError(
                f"restore {self.name!r}: expected a session without arrays, got one with {len(table)} objects: make a "
                "new one, or name the arrays with new numbers"
            )
        takes = self.takes_over and self.arrays is None
        data, generation = store.take(self.name) if takes else (store.load(self.name), None)
        before = table.entries()
        with table.budget.settling():
            try:
                saved = read(data, table.budget, table.max_rank)
                if self.arrays is None:
                    _restore_everything(self.name, table, exchange, saved)
                    assert table.plan is not None
                    table.plan.generation = generation
                else:
                    self._restore_some(table, saved.tensors, self.arrays)
            except BaseException as error:
                table.drop_all([id for id in table.entries() if id not in before])
                if isinstance(error, MXNetError):
                    error.reword(f"checkpoint {self.name!r}: {error.message}")
                raise
        header = saved.header
        ids = header.ids if self.arrays is None else self.arrays
        exchange.report(name=self.name, step=header.step, position=header.position, arrays=dict(ids))

    def _restore_some(self, table: ArrayTable, tensors: Mapping[str, Any], ids: Mapping[str, int]) -> None:
        for name in ids:
            if name not in tensors:
                listed = ", ".join(list(tensors)[:10]) or "none"
                raise NotFoundError(f"array {name[:64]!r}: expected one of {listed}")
        for name, id in ids.items():
            checkpoint()
            table.keep(id, table.backend.put(tensors[name]))


def _restore_everything(name: str, table: ArrayTable, exchange: Exchange, saved: SavedSession) -> None:
    """Restore all arrays and executors. Random numbers change last, when nothing can fail any more."""
    header = saved.header
    outputs = {number for bind in saved.executors for number in bind.outputs}
    # One array may have two names. The executors' numbers, and those of their outputs, `bind` checks.
    table.reserve(*set(header.ids.values()) - outputs, *(blank.id for blank in header.blank))
    for array_name, id in header.ids.items():
        checkpoint()
        if id not in table and id not in outputs:
            table.keep(id, table.backend.put(saved.tensors[array_name]))
    for blank in header.blank:
        checkpoint()
        table.keep(blank.id, allocate(table.backend, tuple(blank.shape), DATATYPES[blank.datatype]))
    for number, bind in enumerate(saved.executors):
        try:
            bind.run(table, exchange)
        except MXNetError as error:
            error.reword(f"executors.{number}: {error.message}")
            raise
    for array_name, id in header.ids.items():
        if id in outputs:
            _write_output(table, array_name, id, saved.tensors[array_name])
    for bind in saved.executors:
        table.await_run(bind.id, _unsaved_outputs(table, bind, set(header.ids.values())))
    table.random.resume(header.random.source.model_dump())
    for bind, place in zip(saved.executors, header.random.executors, strict=True):
        if place is not None:
            table.executor_entry(bind.id).executor.streams.resume((place.executor, place.run, place.drawn))
    executors = [bind.id for bind in saved.executors]
    table.plan = CheckpointPlan(name, dict(header.ids), executors, step=header.step, saved=header.step)


def _write_output(table: ArrayTable, name: str, id: int, values: np.ndarray[Any, Any]) -> None:
    """Write the saved values of an executor's output."""
    output = table.array(id)
    if tuple(output.shape) != values.shape or output.dtype != values.dtype:
        raise BadRequestError(
            f"array {name[:64]!r}: expected {show_shape(tuple(output.shape))} of {output.dtype}, as its executor "
            f"writes, got {show_shape(values.shape)} of {values.dtype}"
        )
    table.backend.write(output, values)


def _unsaved_outputs(table: ArrayTable, bind: Bind, saved: Container[int]) -> list[int]:
    """The numbers of an executor's outputs of which nothing was saved. (A head may be an argument's array.)"""
    executor = table.executor(bind.id)
    arguments = {id(array) for array in executor.arrays.values()}
    outputs = list(zip(bind.outputs, executor.outputs, strict=False))
    written = arguments | {id(array) for number, array in outputs if number in saved}
    return [number for number, array in outputs if number is not None and id(array) not in written]


COMMANDS = (Checkpoint, Restore)
