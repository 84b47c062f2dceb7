"""Runs the commands of a session's batches, and saves what its program asked to have saved."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_ops.backend import device_error
from opbox_protocol.errors import GoneError, MXNetError, OutOfMemoryError

from ..commands import TypedCommand
from ..commands.checkpoints import Checkpoint, CheckpointPlan, save
from ..commands.groups import abandon_sum
from ..commands.profiling import run_profiled
from ..logs import Logger
from .batch import Batch
from .code_policy import Watcher
from .session_devices import SessionDevices

__all__ = ["CommandRunner", "placed"]

_NOTHING: Any = contextlib.nullcontext()
_log = Logger("opbox.sessions")


class CommandRunner:
    """Runs commands one after the other. The caller must run one batch at a time.

    Args:
        session: its id, for the log.
        devices: its devices, with arrays, executors, kernels and the code that it has uploaded.
        watcher: is shown which command runs, in a process for uploaded code; None elsewhere.

    Attributes:
        closed: why no further command runs; None while the session goes on.
    """

    def __init__(self, session: str, devices: SessionDevices, watcher: Watcher | None) -> None:
        self.closed: str | None = None
        self._session = session
        self._devices = devices
        self._table = devices.table
        self._definitions = devices.definitions
        self._watcher = watcher
        self._on_gpus = devices.table.backend.device_type != "cpu"

    def run(self, commands: Sequence[TypedCommand], batch: Batch) -> BaseException | None:
        """Run a batch's commands in order; the error that stopped them, or None."""
        error = self._run(commands, batch)
        if self._table.plan is not None or len(self._devices.tables) > 1:
            for table in self._devices.tables.values():
                if table.plan is not None:
                    _note_changes(table.plan, self._devices.commands_on(table, commands), error)
        if error is None and batch.done is not None and len(self._definitions):
            batch.warnings = self._definitions.take_warnings()
        return error

    def _ended_on_devices(self, batch: Batch) -> BaseException | None:
        """Wait until the devices have done what was queued: an answer says that the work has ended.

        Called in the scope of the first device.
        """
        try:
            for table in self._devices.tables.values():
                if table is self._table:
                    table.backend.synchronize()
                else:
                    with table.backend.scope():
                        table.backend.synchronize()
        except Exception as error:
            return placed(error, batch, batch.position)
        return None

    def _run(self, commands: Sequence[TypedCommand], batch: Batch) -> BaseException | None:
        watcher, table, task, devices = self._watcher, self._table, batch.task, self._devices
        # NaN and infinity are values like others here: no warnings, but for those of code that users bring.
        silent = not len(self._definitions)
        plans_only = True
        for command in commands:
            silent = silent and command.scope == "run"
            plans_only = plans_only and command.silences
        silence: Any = np.errstate(all="ignore") if silent and not plans_only else _NOTHING
        definitions: Any = _NOTHING if plans_only and not len(self._definitions) else self._definitions.scope()
        table.silent = silent
        budget = table.budget
        with table.backend.scope(), definitions, silence:
            try:
                for i, command in enumerate(commands):
                    batch.position = i
                    try:
                        if self.closed is not None:
                            raise GoneError(self.closed)
                        if task is not None:
                            task.check()
                        if watcher is not None:
                            watcher.began(command.scope != "run")
                        if command.scope != "run":
                            table.distrust()
                        if table.profile is None:
                            command.run(table, batch)
                        else:
                            run_profiled(table.profile, command, table, batch)
                        if budget.reserved:
                            budget.settle()
                        if devices.current is not table:
                            table = devices.current
                            budget = table.budget
                        if watcher is not None:
                            watcher.ended()
                    except BaseException as error:
                        abandon_sum(table, error)
                        if watcher is None and not isinstance(error, Exception):
                            raise  # an engine in one's own process, which somebody wants to end
                        if watcher is not None:
                            watcher.ended()
                        budget.settle()
                        self.run_promised(commands[i:], batch)
                        return placed(error, batch, i)
            finally:
                if devices.current is not self._table:
                    devices.leave()
            if batch.done is not None and self._on_gpus:
                return self._ended_on_devices(batch)
        return None

    def run_promised(self, commands: Sequence[TypedCommand], batch: Batch) -> None:
        """Run those commands of a stopped batch that the client counts on: frees, and source sent once."""
        for command in commands:
            if command.always_runs:
                with contextlib.suppress(MXNetError):
                    command.run(self._table, batch)

    def save(self) -> None:
        """Save the arrays, if the program asked for checkpoints and they are those of a step not yet saved."""
        for table in self._devices.tables.values():
            plan = table.plan
            if plan is None or not plan.every or not plan.current or plan.saved == plan.step:
                continue
            try:
                save(table, plan)
            except MXNetError as error:
                _log.error("a checkpoint was not saved", session=self._session, error=error.message)


def placed(error: BaseException, batch: Batch, command: int | None) -> BaseException:
    """The error with the batch and the command that it came from."""
    error = device_error(error) or error
    if isinstance(error, MemoryError):
        error = OutOfMemoryError(
            "memory: expected the system to have enough for this command, got none: free arrays, or use smaller ones"
        )
    if isinstance(error, MXNetError):
        place: dict[str, Any] = {"seq": batch.seq}
        if command is not None:
            place["command"] = command
        error.detail = {**error.detail, **place}
    return error


def _note_changes(plan: CheckpointPlan, commands: Sequence[TypedCommand], error: BaseException | None) -> None:
    """Note whether arrays have changed since the last `checkpoint` command."""
    if error is not None:
        plan.current = False
        return
    for command in reversed(commands):
        if isinstance(command, Checkpoint):
            return
        if command.changes_arrays:
            plan.current = False
            return
