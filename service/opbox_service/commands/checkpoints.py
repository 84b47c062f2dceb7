"""Checkpoints: `checkpoint` saves arrays and the state of a program, `restore` loads them into a session.

A checkpoint's file is a frame of the wire format behind its header's length: a JSON header, and the arrays' bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from opbox_protocol import wire
from opbox_protocol.datatypes import DATATYPES, datatype_of
from opbox_protocol.errors import BadRequestError, ConflictError, NotFoundError, WireError

from ..checkpoint_store import CHECKPOINT_NAME, Buffer, check_available
from ..graph import json as graph_json
from ..validation import Expected
from .array_table import ArrayTable
from .command import Command, Exchange, Id
from .executors import Bind

__all__ = ["COMMANDS", "CheckpointPlan", "save"]

MAGIC = b"opboxck1"
_LENGTH = struct.Struct("<Q")
START = 64
"""The byte at which the frame begins: its tensors are aligned to that."""
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
    """

    name: str
    arrays: Mapping[str, int]
    executors: Sequence[int]
    every: int = 0
    step: int = 0
    position: Mapping[str, Any] | None = None
    saved: int | None = None
    current: bool = False


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
    position: dict[str, int | float | str] = Field(
        default={}, max_length=64, description="The program's own note of its position."
    )

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        check_available(table.checkpoints)
        plan = table.plan
        if self.arrays is not None:
            for id in self.arrays.values():
                table.read(id)
            for id in self.executors:
                table.executor_entry(id)
            saved = plan.saved if plan is not None and plan.name == self.name else None
            plan = table.plan = CheckpointPlan(self.name, self.arrays, self.executors, self.every, saved=saved)
        elif plan is None or plan.name != self.name:
            raise BadRequestError(f"checkpoint {self.name!r}: arrays: expected the arrays to save, got none yet")
        plan.every, plan.step, plan.position, plan.current = self.every, self.step, self.position, True
        if not self.every or plan.saved is None or not plan.saved <= self.step < plan.saved + self.every:
            exchange.report(name=plan.name, step=plan.step, bytes=save(table, plan))


def save(table: ArrayTable, plan: CheckpointPlan) -> int:
    """Write a plan's arrays as they are; the number of bytes.

    Raises:
        NotFoundError: an array is not there any more.
        QuotaError: the owner's checkpoints have no room for it, or the session no memory.
    """
    blank: dict[int, Any] = {}
    executors, saved_ids = [], set(plan.arrays.values())
    random: list[list[int] | None] = []
    for id in plan.executors:
        entry = table.executor_entry(id)
        random.append(entry.executor.streams.snapshot())
        executors.append({"id": id, "graph": graph_json.dump(entry.graph), **entry.places})
        for group in ("args", "grads", "aux"):
            for number in entry.places[group].values():
                if number not in saved_ids and number not in blank:
                    array = table.read(number)
                    blank[number] = [list(array.shape), datatype_of(array.dtype)]
    header = {
        "format": "opbox checkpoint",
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
        tensors = {name: table.backend.get(array) for name, array in arrays.items()}
        head, buffers = wire.encode(header, tensors, key="arrays")
        start = (MAGIC + _LENGTH.pack(len(head))).ljust(START, b"\0")
        check_available(table.checkpoints).save(plan.name, [start, head, *buffers])
    plan.saved = plan.step
    return START + wire.frame_size(head, buffers)


class Restore(Command):
    """A checkpoint's arrays and executors, under the numbers that they had, in a session that has none yet.

    With `arrays`, those arrays alone, under other numbers, in any session.
    """

    do: Literal["restore"]
    name: Name
    arrays: dict[str, Id] | None = Field(default=None, description="New ids of arrays, by name.")

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        store = check_available(table.checkpoints)
        if self.arrays is not None:
            table.reserve(*self.arrays.values())
        elif len(table):
            raise ConflictError(
                f"restore {self.name!r}: expected a session without arrays, got one with {len(table)} objects: make a "
                "new one, or name the arrays with new numbers"
            )
        header, tensors = _read(self.name, store.load(self.name))
        if self.arrays is not None:
            self._some(table, tensors, self.arrays)
        else:
            try:
                _everything(self.name, table, exchange, header, tensors)
            except BaseException:
                table.clear()
                raise
        ids = header["ids"] if self.arrays is None else self.arrays
        exchange.report(name=self.name, step=header["step"], position=header["position"], arrays=dict(ids))

    def _some(self, table: ArrayTable, tensors: Mapping[str, Any], ids: Mapping[str, int]) -> None:
        for name in ids:
            if name not in tensors:
                listed = ", ".join(list(tensors)[:10]) or "none"
                raise NotFoundError(f"restore {self.name!r}: array {name[:64]!r}: expected one of {listed}")
        for name, id in ids.items():
            table.keep(id, table.backend.put(tensors[name]))


def _everything(
    name: str, table: ArrayTable, exchange: Exchange, header: Mapping[str, Any], tensors: Mapping[str, Any]
) -> None:
    for array_name, id in header["ids"].items():
        if id not in table:  # one array may have two names
            table.keep(id, table.backend.put(tensors[array_name]))
    for id, shape, datatype in header["blank"]:
        array = table.backend.empty(tuple(shape), DATATYPES[datatype])
        array.fill(0)
        table.keep(id, array)
    table.random.resume(header["random"]["source"])
    for executor, place in zip(header["executors"], header["random"]["executors"], strict=True):
        Bind.model_validate({"do": "bind", **executor}).run(table, exchange)
        if place is not None:
            table.executor_entry(executor["id"]).executor.streams.resume(place)
    executors = [executor["id"] for executor in header["executors"]]
    step = header["step"]
    table.plan = CheckpointPlan(name, dict(header["ids"]), executors, step=step, saved=step)


def _read(name: str, data: Buffer) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Read a checkpoint's header and tensors; raise BadRequestError for another file."""
    view = memoryview(data)
    try:
        if bytes(view[: len(MAGIC)]) != MAGIC:
            raise WireError("no checkpoint")
        (length,) = _LENGTH.unpack_from(view, len(MAGIC))
        frame = wire.decode(view[START:], length, key="arrays")
    except (WireError, struct.error) as error:
        raise BadRequestError(f"checkpoint {name!r}: expected a file that this server wrote, got another") from error
    return frame.header, frame.tensors


COMMANDS = (Checkpoint, Restore)
