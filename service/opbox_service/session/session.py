"""A session: a device stream that is fed by batches of commands.

Batches run strictly by their `seq`, whichever order they come in and whichever connection they come on; one runs at a
time. The first error of a batch stops it. An error in a batch that nobody waits for is kept: the batches behind it are
skipped, and the next one that is waited for reports it. What a skipped or broken batch would have freed is freed all
the same, for the client has let go of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from threading import Event, Lock
from typing import Any, ClassVar

import numpy as np

from opbox_protocol.datatypes import datatype_of
from opbox_protocol.errors import (
    BadRequestError,
    CancelledError,
    ConflictError,
    DeadlineError,
    ForbiddenError,
    GoneError,
    LimitError,
    QuotaError,
    UnsupportedError,
    error_from_json,
    error_to_json,
)

from ..carriers import AnswerLimit, Done, Tensors
from ..checkpoint_store import CheckpointStore, OwnersCheckpoints
from ..commands import ArrayTable, TypedCommand, check_scopes, parse
from ..commands.command import Exchange
from ..commands.table_image import TableImage, pack, unpack
from ..dataset_store import DatasetStore, OwnersDatasets
from ..device_time import DeviceTimes
from ..owner_terms import SCOPES, Scope
from ..quota import Budget
from ..settings import Settings
from ..stateless.graph_cache import GraphCache
from ..task import Task, current, running
from .batch import NO_LIMIT, Batch
from .code_policy import CodePolicy
from .command_runner import CommandRunner, placed
from .moving import MovedError, SessionHeader
from .session_devices import SessionDevices

__all__ = ["ReportedValues", "ServerSession"]

ANSWERED_S = 5.0
"""Maximum seconds that the end of a session waits for the thread that answers its batch: it takes milliseconds, and
longer on a very busy machine."""
MAX_REPORTS = 64
"""Maximum number of reports that wait; they are collected once a second."""
ReportedValues = tuple[float, int, int | None, Mapping[str, float | None]]
"""A report: time in seconds since 1970, steps, epoch, values by name."""


class ServerSession:
    """A device stream that runs batches of commands in order.

    Args:
        id, owner: its random name, and whose it is.
        devices: canonical names: "cpu", or GPUs, on the first of which every batch begins.
        seed: of its random source.
        ttl_s: how long it is kept unused.
        graphs, settings: shared with the other sessions.
        code_policy: for code that it uploads.
        device_times: counts how long its batches wait and run.
        memory: the owner's on a device, which it draws from.
        host_memory: the owner's on the host, for what is page-locked.
        checkpoints: where it may save some; None where there is no place.
        limit_bytes: of memory of each device; None for the settings'.
        script, host: the program that opened it, and its machine, as it says; for who watches.
        freed: called once with the most bytes that it had, when it has ended and let go of them.
        movable: whether another process takes it over when it brings code (`moving`).
        datasets: the store of them; None where there is none.

    Attributes:
        device: the first of its devices.
        devices: all of them.
        table: the arrays, executors and kernels on the first one.
        budget: counts their memory.
        closed: why it has ended; None while it has not.
        moving: whether it rests, as another process takes it over.
    """

    def __init__(
        self,
        id: str,
        owner: str,
        devices: Sequence[str],
        seed: int,
        ttl_s: float,
        graphs: GraphCache,
        settings: Settings,
        code_policy: CodePolicy,
        device_times: DeviceTimes,
        memory: Callable[[str], Budget | None] = lambda device: None,
        host_memory: Budget | None = None,
        checkpoints: CheckpointStore | None = None,
        limit_bytes: int | None = None,
        freed: Callable[[int], object] = lambda nbytes: None,
        script: str = "",
        host: str = "",
        *,
        movable: bool = False,
        datasets: DatasetStore | None = None,
    ) -> None:
        self.id = id
        self.script = script
        self.host = host
        self._reports: deque[ReportedValues] = deque(maxlen=MAX_REPORTS)
        self._freed = freed
        self.owner = owner
        self.device = devices[0]
        self.ttl_s = ttl_s
        self.settings = settings
        self._code_policy = code_policy
        self._device_times = device_times
        self._host_budget = Budget(settings.max_session_bytes, host_memory, "page-locked memory")
        try:
            self.devices = SessionDevices(
                devices,
                seed,
                settings,
                lambda name: Budget(settings.max_session_bytes if limit_bytes is None else limit_bytes, memory(name)),
                self._host_budget,
                None if code_policy.accepts_code else _refuse_code,
                graphs,
                owner,
                self._check_further,
            )
        except BaseException:
            self._host_budget.close()
            raise
        self.table = self.devices.table
        self.budget = self.devices.budgets[self.device]
        self._definitions = self.devices.definitions
        for table in self.devices.tables.values():
            table.checkpoints = OwnersCheckpoints(checkpoints, owner) if checkpoints is not None else None
            table.datasets = OwnersDatasets(datasets, owner) if datasets is not None else None
            table.on_report = self._report
            table.group_host, table.group_ports = settings.group_host, settings.group_ports
            table.group_nccl = settings.group_nccl
        self._runner = CommandRunner(id, self.devices, code_policy.watcher)
        self._stopping = False
        self.created = time.time()
        self.used = time.monotonic()
        self.closed: str | None = None
        self._next = 1
        self._highest = 0
        self._waiting: dict[int, Batch] = {}
        self._running = False
        self._current: Batch | None = None
        self._error: BaseException | None = None
        self._movable = movable
        self.moving = False
        self._awaited: list[int] = []
        self._lock = Lock()
        self._gone = Event()

    def _check_further(self, devices: Sequence[str]) -> None:
        """BadRequestError where a session of these devices may have but one: in a process for code."""
        if self._code_policy.watcher is not None:
            raise BadRequestError(
                f"devices: expected one in a session with a process of its own for code, got {', '.join(devices)}: "
                "make a session for each",
                detail={"one_device": True},
            )

    @property
    def checkpoint(self) -> str | None:
        """The checkpoint that a stop of the server saves; None where the program asked for none."""
        plans = [table.plan for table in self.devices.tables.values()]
        return next((plan.name for plan in plans if plan is not None and plan.every), None)

    @property
    def bytes_by_device(self) -> dict[str, int]:
        """Bytes in use on each device."""
        return {name: budget.used for name, budget in self.devices.budgets.items()}

    @property
    def _peak_bytes(self) -> int:
        return sum(budget.peak for budget in self.devices.budgets.values())

    def _report(self, steps: int, epoch: int | None, values: Mapping[str, float | None]) -> None:
        self._reports.append((time.time(), steps, epoch, values))

    def take_reports(self) -> list[ReportedValues]:
        """Return the program's reports since the last call; of many, the latest."""
        reports = []
        while self._reports:
            reports.append(self._reports.popleft())
        return reports

    # -- batches ------------------------------------------------------------------------------------------------

    def submit(
        self,
        seq: int | None,
        commands: Any,
        tensors: Tensors,
        done: Done | None,
        scopes: frozenset[Scope] = SCOPES,
        limit: AnswerLimit = NO_LIMIT,
        task: Task | None = None,
        graphs: Sequence[str] = (),
        json_bytes: int = 0,
    ) -> int:
        """Queue a batch; `drain` runs what is ready. Returns its seq.

        Args:
            seq: its place; None is the next one.
            commands: a list of commands, as JSON objects.
            tensors: views that live until `done` is called, or without it until this returns.
            done: takes the answer in the batch's turn; None when nobody waits for it.
            scopes: what the token that brought it may.
            limit: how large the answer may be.
            task: stops the work.
            graphs: the names of graphs that must be here, or nothing of it runs.
            json_bytes: of memory that the commands take at most, while it waits and its call has been answered.

        Raises:
            ConflictError: the seq has come before.
            QuotaError: too many batches, or too many bytes of them, wait.
            GoneError: the session has ended.
            NotFoundError: one of `graphs` is not here. Its place stays free: it is to come again, with the graph.
        """
        for name in graphs:
            self.table.graph(name)  # and keep it
        typed: Sequence[TypedCommand] | BaseException
        try:
            typed = parse(commands, self.settings.max_commands)
            check_scopes(typed, scopes)
            if not self._movable:
                self._code_policy.check(typed)
                self._code_policy.note_uploads(self.owner, self.id, typed)
        except (BadRequestError, LimitError, ForbiddenError, ConflictError) as error:
            # The batch keeps its place, or those behind it would wait for ever.
            typed = error
        batch = Batch(0, typed, tensors, done, limit, task)
        if self._movable:
            batch.source = commands, scopes
            batch.brings_code = not isinstance(typed, BaseException) and any(c.scope != "run" for c in typed)
        if done is None:
            # Counted as long as they wait; what becomes an array is counted as one then.
            nbytes = json_bytes + sum(int(tensor.nbytes) for tensor in tensors.values())
            self.budget.take(nbytes)
            batch.own_bytes = nbytes
            try:
                batch.own_tensors(self.table.backend.unmetered)
            except BaseException:
                self._let_go_of(batch)
                raise
        with self._lock:
            try:
                if self.moving:
                    raise MovedError
                if self.closed is not None:
                    raise GoneError(self.closed)
                batch.seq = self._place_for(seq)
                self._check_place(batch.seq)
            except BaseException:
                self._let_go_of(batch)
                raise
            self._waiting[batch.seq] = batch
            self._highest = max(self._highest, batch.seq)
            self.used = time.monotonic()
        if task is not None:
            task.when_stopped(lambda: self._stopped(batch))
        return batch.seq

    def _place_for(self, seq: int | None) -> int:
        """The place of a batch that names `seq`; one that had a place before the session moved has that."""
        if seq is None:
            return self._awaited.pop(0) if self._awaited else self._highest + 1
        if seq in self._awaited:
            self._awaited.remove(seq)
        return seq

    def _let_go_of(self, batch: Batch) -> None:
        """Stop counting a waiting batch's own tensors."""
        nbytes, batch.own_bytes = batch.own_bytes, 0
        if nbytes:
            self.budget.give(nbytes)

    def _stopped(self, batch: Batch) -> None:
        """Answer a batch that was stopped before it ran, and free its tensors; its number stays used."""
        with self._lock:
            if self.moving or self._waiting.get(batch.seq) is not batch:
                return
            self._let_go_of(batch)
        assert batch.task is not None
        batch.finish(batch.task.stopped)

    def cancel(self) -> list[int]:
        """Stop the batch that runs and those that wait; their numbers. Arrays stay as the last whole step left them."""
        with self._lock:
            batches = [batch for batch in (self._current, *self._waiting.values()) if batch is not None]
        for batch in batches:
            if batch.task is not None:
                batch.task.stop(CancelledError(f"batch {batch.seq} was cancelled"))
        return sorted(batch.seq for batch in batches)

    def _check_place(self, seq: int) -> None:
        if seq < self._next or seq in self._waiting:
            raise ConflictError(
                f"seq: expected {self._highest + 1}, got {seq}, which has come before", detail={"seq": seq}
            )
        limit = self.settings.max_waiting
        if len(self._waiting) >= limit or seq - self._next >= 16 * limit:
            raise QuotaError(
                f"session: expected at most {limit} batches waiting for seq {self._next}, got one more with seq {seq}: "
                f"send the batch with seq {self._next} first",
                detail={"seq": seq},
            )

    def drain(self) -> None:
        """Run the batches whose turn it is. Of several threads that call this, one does the work."""
        while True:
            with self._lock:
                resting = self._running or self.moving or self.closed is not None
                if resting or self._next not in self._waiting:
                    return
                batch = self._waiting[self._next]
                if batch.brings_code:
                    self.moving = True
                else:
                    del self._waiting[self._next]
                    self._let_go_of(batch)
                    self._running = True
                    self._current = batch
            if batch.brings_code:
                assert self._code_policy.move is not None
                self._code_policy.move(self)
                return
            self._run_current(batch)

    def is_next(self, seq: int) -> bool:
        """Return whether a batch of this number would run now."""
        return seq == self._next and not self._running and not self._waiting

    def run_at_once(self, seq: int, commands: Any, tensors: Tensors, done: Done) -> bool:
        """Run a batch by the caller's thread, if its turn has come and nothing is to be said of its commands.

        It is what `submit` and `drain` do, in half the time for a batch of little work.

        Returns:
            Whether it has run; otherwise nothing has happened, and `submit` takes it.
        """
        try:
            typed = parse(commands, self.settings.max_commands)
        except (BadRequestError, LimitError):
            return False
        for command in typed:
            if command.scope != "run":
                return False
        batch = Batch(seq, typed, tensors, done, NO_LIMIT, Task())
        with self._lock:
            if (
                self._running
                or self.moving
                or self._waiting
                or self._stopping
                or self.closed is not None
                or seq != self._next
            ):
                return False
            self._highest = max(self._highest, seq)
            self._running = True
            self._current = batch
        self._run_current(batch)
        if self._waiting:
            self.drain()
        return True

    def _run_current(self, batch: Batch) -> None:
        begun = time.monotonic()
        copies_out = True
        try:
            error = self._run(batch)
            # Before the answer: who has it may count on its being counted, though the process be killed then.
            answered = time.monotonic()
            own_s = answered - begun - (batch.task.away_s if batch.task is not None else 0.0)
            if self.devices.seconds:
                for device, seconds in self.devices.take_seconds():
                    self._device_times.add(self.owner, device, 0.0, seconds)
                    own_s -= seconds
            self._device_times.add(self.owner, self.device, begun - batch.since, max(0.0, own_s))
            begun, copies_out = answered, batch.sends
            with self._lock:  # before the answer too: who has it may ask which batch is the next
                self._next = batch.seq + 1
            batch.finish(error)
            if self._stopping:
                self._runner.save()
        finally:
            ended_at = time.monotonic()
            if copies_out:
                self._device_times.add(self.owner, self.device, 0.0, ended_at - begun, runs=0)
            with self._lock:
                self._next = batch.seq + 1
                self._running = False
                self._current = None
                self.used = ended_at
                ended = self.closed is not None
            if ended:
                self._let_go()

    def _run(self, batch: Batch) -> BaseException | None:
        """Run the batch's commands; what they failed with, for its answer."""
        error, commands = self._error, batch.commands
        if batch.task is not None and batch.task.stopped is not None:
            error = error or batch.task.stopped
        if error is None and isinstance(commands, BaseException):
            error = placed(commands, batch, None)
        if error is None:
            assert not isinstance(commands, BaseException)
            with running(batch.task):
                error = self._runner.run(commands, batch)
        elif not isinstance(commands, BaseException):
            self._runner.run_promised(commands, batch)
        # Whoever cancels knows; an error that nobody waited for goes to the next batch that somebody waits for.
        forgotten = batch.waited_for or isinstance(error, CancelledError)
        self._error = None if forgotten else error
        return error

    # -- checkpoints --------------------------------------------------------------------------------------------

    def save_at_stop(self) -> None:
        """Save where the program is, if it asked for checkpoints: now, or behind the batch that runs."""
        with self._lock:
            self._stopping = True
            if self._running or self.moving or self.closed is not None:
                return
            self._running = True
        try:
            self._runner.save()
        finally:
            with self._lock:
                self._running = False
        self.drain()

    # -- its way to another process -----------------------------------------------------------------------------

    def image(self) -> tuple[dict[str, Any], TableImage]:
        """Return what another process needs to continue this paused session.

        Raises:
            MXNetError: it cannot be had.
        """
        if len(self.devices.names) > 1:
            raise UnsupportedError(
                f"code: expected a session on one device, got one on {', '.join(self.devices.names)}: make a session "
                "with a process of its own on each (OPBOX_CODE=1 does so)"
            )
        with self.table.backend.scope():
            image = pack(self.table)
        batches = []
        awaited = []
        for seq, batch in sorted(self._waiting.items()):
            if batch.done is not None:
                awaited.append(seq)
                continue
            commands, scopes = batch.source if batch.source is not None and not batch.waited_for else ([], SCOPES)
            tensors = {
                name: [
                    image.add(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)),
                    list(tensor.shape),
                    datatype_of(tensor.dtype),
                ]
                for name, tensor in batch.tensors.items()
            }
            batches.append([seq, commands, sorted(scopes), tensors])
        error = None if self._error is None else error_to_json(self._error)
        header = {
            "id": self.id,
            "device": self.device,
            "ttl_s": self.ttl_s,
            "script": self.script,
            "host": self.host,
            "created": self.created,
            "idle_s": time.monotonic() - self.used,
            "next": self._next,
            "peak": self.budget.peak,
            "error": error,
            "batches": batches,
            "awaited": awaited,
        }
        return header, image

    def take_over(self, header: SessionHeader, image: TableImage) -> None:
        """Continue another process's session in this new one; `drain` runs its batches.

        Raises:
            MXNetError: there is no room for it here, or it cannot be made.
        """
        with self.table.backend.scope():
            unpack(self.table, image)
        self.created, self.used = header.created, time.monotonic() - header.idle_s
        self.budget.peak = max(self.budget.peak, header.peak)
        self._next, self._highest = header.next, header.next - 1
        if header.error is not None:
            self._error = error_from_json(header.error.status, header.error.body)
        for batch in header.batches:
            tensors = {name: tensor.of(image) for name, tensor in batch.tensors.items()}
            self.submit(batch.seq, batch.commands, tensors, None, frozenset(batch.scopes))
        self._awaited = list(header.awaited)
        self._highest = max(self._highest, *self._awaited, 0)

    def stay(self, error: BaseException) -> None:
        """Continue here after a failed move; the command that caused it fails too."""
        with self._lock:
            if self.closed is not None:
                return
            self.moving = False
            batch = self._waiting[self._next]
            if not isinstance(batch.commands, BaseException):
                code = next(i for i, command in enumerate(batch.commands) if command.scope != "run")
                refused = [*batch.commands[:code], _Refused(error), *batch.commands[code + 1 :]]
                batch.commands, batch.brings_code = refused, False
            stopped = [batch for batch in self._waiting.values() if batch.task is not None and batch.task.stopped]
        for batch in stopped:
            self._stopped(batch)
        self.drain()

    def leave(self) -> None:
        """End this copy of a moved session; batches with a waiting client must be sent again."""
        with self._lock:
            if self.closed is not None:
                return
            self.closed = self._runner.closed = "it has moved"
            waiting, self._waiting = sorted(self._waiting.items()), {}
        for seq, batch in waiting:
            if batch.done is not None:
                batch.finish(MovedError(seq))
        self._let_go()

    # -- its end ------------------------------------------------------------------------------------------------

    def idle(self, now: float) -> bool:
        """Return whether the session is unused for longer than its time to live."""
        return not self._running and not self.moving and now - self.used > self.ttl_s

    def expire_waiting(self, now: float, deadline_s: float) -> None:
        """Give up on batches that waited too long for one before them, which never came."""
        with self._lock:
            if self._running or self.moving or not self._waiting or self._next in self._waiting:
                return
            late = [batch for batch in self._waiting.values() if now - batch.since > deadline_s]
            if not late:
                return
            missing, self._next = self._next, max(batch.seq for batch in late) + 1
            given_up = [self._waiting.pop(seq) for seq in sorted(self._waiting) if seq < self._next]
            for batch in given_up:
                self._let_go_of(batch)
        error = DeadlineError(f"batch {missing} did not come within {deadline_s:g} s: those behind it were given up")
        for batch in given_up:
            if batch.done is None:
                self._error = self._error or error
            batch.finish(error)
        self.drain()

    def close(self, reason: str) -> None:
        """End it: what waits gets a GoneError with `reason`, and all memory goes."""
        with self._lock:
            if self.closed is not None:
                return
            self.closed = self._runner.closed = reason
            waiting, self._waiting = list(self._waiting.values()), {}
            for batch in waiting:
                self._let_go_of(batch)
            running = self._running
            current = self._current
            answered = current is not None and self._next > current.seq
        if current is not None and current.task is not None:
            current.task.stop(GoneError(reason))
        for batch in waiting:
            batch.finish(GoneError(reason))
        if not running:
            self._let_go()
        elif answered:
            # Who has the answer takes the batch for ended; its thread gives the memory back in a moment.
            self._gone.wait(ANSWERED_S)

    def _let_go(self) -> None:
        self.devices.clear()
        self._host_budget.close()
        self.devices.close()
        self._freed(self._peak_bytes)
        self._gone.set()

    def opened(self) -> dict[str, Any]:
        """The session as its opening is answered."""
        return {
            "id": self.id,
            "device": self.device,
            "devices": self.devices.names,
            "ttl_s": self.ttl_s,
            "limits": self.limits(),
            "script": self.script,
            "host": self.host,
        }

    def json(self) -> dict[str, Any]:
        """The session's state, as GET answers it."""
        task, tables = current(), list(self.devices.tables.values())
        before, wait_s = task.turn.outlook() if task is not None and task.turn is not None else (0, 0.0)
        return {
            "id": self.id,
            "device": self.device,
            "devices": self.devices.names,
            "script": self.script,
            "host": self.host,
            "ttl_s": self.ttl_s,
            "idle_s": round(time.monotonic() - self.used, 3),
            "age_s": round(time.time() - self.created, 3),
            "created": self.created,
            "next_seq": self._next,
            "waiting": len(self._waiting),
            "calls_before": before,
            "wait_s": round(wait_s, 3),
            "objects": sum(len(table) for table in tables),
            "executors": sum(table.executors for table in tables),
            "steps": max(table.steps for table in tables),
            "bytes": sum(self.bytes_by_device.values()),
            "bytes_by_device": self.bytes_by_device,
            "peak_bytes": self._peak_bytes,
            "limits": self.limits(),
        }

    def limits(self) -> dict[str, Any]:
        """The session's limits."""
        settings = self.settings
        return {
            "bytes": self.budget.limit,
            "objects": settings.max_session_objects,
            "commands": settings.max_commands,
            "waiting": settings.max_waiting,
            "body_bytes": settings.max_body_bytes,
            "header_bytes": settings.max_header_bytes,
            "tensors": settings.max_tensors,
            "rank": settings.max_rank,
            "elements": settings.max_elements,
            "dataset_bytes": settings.max_dataset_bytes,
        }


class _Refused:
    """Takes the place of a command that brings code to a session which gets no process for it."""

    scope: ClassVar[Scope] = "run"
    changes_arrays: ClassVar[bool] = False
    always_runs: ClassVar[bool] = False
    silences: ClassVar[bool] = False

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        raise self._error


def _refuse_code(kind: str, op_type: str, code: str, bundle: Any = None, live: Any = None) -> None:
    """ConflictError: operators of a user's own run in a process of their session's."""
    raise ConflictError(f"define {op_type!r}: expected a session with a process of its own, got one that shares its")
