"""`--isolation process`: several workers behind one face, replaced when they end.

A session lives in the worker that made it. When that ends, so does the session: its owner's next call says so, and a
new worker is spawned at once. With `auto` owners have a worker each (owner_workers.py). Sessions with code have one of
their own (code_workers.py): from their beginning where the request says `"code": true`, and from their first code on
where it says nothing and the token has a scope to upload (session_moves.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import structlog
from cachetools import FIFOCache

from opbox_protocol.errors import DeadlineError, GoneError, NotReadyError, WorkerDiedError, error_from_json
from opbox_protocol.strict_json import strict_json

from ..accounting.books import Books
from ..buffers import Lease
from ..carriers import OwnerQuota, RawRequest, RawResponse
from ..checkpoint_store import FileCheckpoints
from ..dataset_store import FileDatasets
from ..device_time import DeviceTime, DeviceTimes
from ..models.reference import ModelKey, ModelReference
from ..owner_terms import UPLOADS
from ..routes.route import RunsOn
from ..session.moving import MovedError
from ..session.sessions import no_such, not_yours
from ..settings import Settings
from ..stores import NO_STORES, Stores
from .code_worker import CodeWorker
from .code_workers import CodeWorkers
from .orphans import forget_orphans
from .owner_workers import SHARED, OwnerWorkers
from .pool import STARTING, Stats
from .processes import resident_bytes
from .processor_shares import ProcessorShares
from .session_moves import SessionMoves, carry
from .worker import Worker

__all__ = ["ProcessPool"]

ENDED_FIRST = 1000
"""Number of sessions to remember that ended before their start was reported."""
LOOK_S = 1.0
"""Seconds between two looks for workers that do not answer, and two distributions of the processors."""
ALL_S = 5.0
"""Seconds that a worker has for its part of a list that all give; one that is well takes milliseconds."""
REMEMBERED = 100_000
"""Number of sessions whose worker is remembered; the oldest ended ones are dropped first."""
LATE = (DeadlineError, NotReadyError, WorkerDiedError)
"""Errors of a worker that does not answer, stops or has ended: a list goes without its part."""

_log = structlog.get_logger("opbox.workers")


class ProcessPool:
    """A WorkerPool of processes."""

    def __init__(self, settings: Settings, books: Books, stores: Stores = NO_STORES) -> None:
        self._settings = settings
        self._books = books
        self._workers: list[Worker] = []
        self._sessions: FIFOCache[str, tuple[str, Worker]] = FIFOCache(REMEMBERED)
        self._open: dict[str, tuple[str, Worker]] = {}
        self._opening: Counter[str] = Counter()
        self._ended_first: FIFOCache[str, str] = FIFOCache(ENDED_FIRST)
        self._tasks: set[asyncio.Task[None]] = set()
        self._supervising = False
        self._turn = 0
        self._own: OwnerWorkers | None = None
        self._reasons: FIFOCache[str, str] = FIFOCache(REMEMBERED)
        self._early_ends: list[float] = []
        self.restarts = 0
        self._device_times = DeviceTimes()
        self._shares = ProcessorShares()
        self._stores = stores
        self._code = CodeWorkers(
            settings,
            self._device_times,
            root=os.geteuid() == 0,
            siblings=lambda: self.pids,
            books=books,
            stores=stores,
        )

        self._moves = SessionMoves(self._code, self._owner_of, self._moved, self.call, self._spawn)

    @property
    def checkpoints(self) -> FileCheckpoints | None:
        return self._stores.checkpoints

    @property
    def datasets(self) -> FileDatasets | None:
        return self._stores.datasets

    @property
    def unready(self) -> str:
        if not (self._supervising and any(worker.ready for worker in self._workers)):
            return STARTING
        return next((_silence(worker) for worker in self._workers if worker.silent_s), "")

    async def start(self) -> None:
        settings = self._settings
        if settings.workers == "auto":
            self._own = OwnerWorkers(settings, self._books, self._new_worker, self._spawn)
            self._workers = [self._new_worker(1 / SHARED)]
        else:
            self._workers = [self._new_worker(1 / settings.workers) for _ in range(settings.workers)]
        try:
            ended = await asyncio.gather(
                *(worker.start() for worker in self._workers), self._code.start(), return_exceptions=True
            )
        except BaseException:
            await self.stop(0)
            raise
        # What the workers say goes before what the processes for code say of the same trouble.
        failed = [error for error in ended if isinstance(error, BaseException)]
        if failed:
            await self.stop(0)
            raise failed[0]
        self._supervising = True
        self._spawn(self._sweep())
        self._spawn(self._look_after())

    async def stop(self, grace_s: float) -> None:
        self._supervising = False
        await asyncio.gather(self._code.stop(grace_s), *(worker.stop(grace_s) for worker in self._all()))
        for task in list(self._tasks):
            task.cancel()

    def announce_stop(self) -> None:
        for worker in (*self._all(), *self._code.workers()):
            worker.announce_stop()

    def abandon(self) -> None:
        self._supervising = False
        for worker in self._all():
            worker.kill()
        self._code.abandon()

    def lease(self, request: RawRequest, nbytes: int) -> Lease:
        worker = self._worker(request)
        request.worker = worker
        return worker.lease(nbytes)

    def sessions_of(self, owner: str) -> int:
        return sum(1 for name, _ in self._open.values() if name == owner) + self._code.sessions_of(owner)

    def device_times(self) -> dict[tuple[str, str], DeviceTime]:
        return self._device_times.sums()

    def call_at_once(self, request: RawRequest) -> RawResponse | None:
        return None  # a worker makes it

    async def call(self, request: RawRequest) -> RawResponse:
        runs_on = request.route.runs_on
        if runs_on is RunsOn.ALL_WORKERS:
            return await self._join(request)
        if runs_on is RunsOn.NEW_SESSION_WORKER:
            return await self._open_session(request)
        try:
            while True:
                if runs_on is RunsOn.SESSION_WORKER:
                    await self._moves.settled(request.parameters["id"])
                worker = self._worker(request)
                request.quota = self._quota(request.owner, worker)
                if request.route.ends_session and isinstance(worker, CodeWorker):
                    request.release()
                    return await self._code.delete(worker, by_admin=request.route.all_owners)
                carry(request, worker)
                self._shares.use(worker, request.owner, request.weight)
                try:
                    return await worker.call(request, self._settings.deadline_s)
                except MovedError as moved:
                    await self._moves.settle(request.parameters["id"], request, moved.detail["seq"])
        except Exception:
            request.release()
            raise

    async def prepare(self, request: RawRequest, on_end: Callable[[str], None]) -> RawResponse:
        if request.model is None or not request.model.code:
            return await self.call(request)
        return await self._code.models.open(request, on_end)

    def keep_models(self, name: str, keys: Collection[ModelKey]) -> None:
        self._code.models.keep_only(name, keys)

    def stats(self) -> Stats:
        workers = self._all()
        memory = [worker.memory() for worker in workers]
        sessions = self._code.sessions
        return Stats(
            sessions=sum(worker.sessions for worker in workers) + sessions,
            restarts=self.restarts,
            resident={
                "api": resident_bytes(),
                **{f"worker{i}": resident for i, (resident, _) in enumerate(memory)},
                **self._code.resident(),
            },
            buffer_bytes=sum(lent for _, lent in memory),
            sessions_of={
                **{f"worker{i}": worker.sessions for i, worker in enumerate(workers)},
                **{f"code{i}": 1 for i in range(sessions)},
            },
            code_workers=sessions,
            code_deaths=dict(self._code.deaths),
            device_times=self.device_times(),
        )

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return [worker.pid for worker in self._all()]

    def _all(self) -> list[Worker]:
        """The workers that owners share, and those that one owner has."""
        return [*self._workers, *(self._own.workers if self._own is not None else ())]

    def _quota(self, owner: str, worker: Worker) -> OwnerQuota | None:
        if isinstance(worker, CodeWorker):
            return self._code.quota(owner, worker)
        return self._books.quota(owner, worker) if self._own is None else self._own.quota(owner, worker)

    # -- which worker -------------------------------------------------------------------------------------------

    def _worker(self, request: RawRequest) -> Worker:
        """The worker that a call belongs to."""
        if request.route.runs_on is not RunsOn.SESSION_WORKER:
            # A body that is there lies in a buffer which only one of them knows.
            if isinstance(request.worker, Worker):
                return request.worker
            if request.model is not None:
                return self._model_worker(request.model)
            return self._next_worker(request.owner)
        id = request.parameters["id"]
        caller = None if request.route.all_owners else request.owner
        own = self._code.worker_of(caller, id)
        if own is not None:
            return own
        owner, worker = self._sessions.get(id, ("", None))
        if worker is None and caller is None:
            raise no_such(id)
        if worker is None or caller not in (None, owner):
            raise not_yours(id, to_end=request.route.ends_session)
        if id in self._reasons and not worker.ready:
            raise GoneError(self._reasons[id])
        if worker.ended:
            raise GoneError(
                f"session {id} is gone: the worker process that held it ended ({worker.reason}); make a new session"
            )
        return worker

    def _next_worker(self, owner: str) -> Worker:
        own = self._own.of(owner) if self._own is not None else None
        if own is not None:
            return own
        ready = [worker for worker in self._workers if worker.ready]
        ready = [worker for worker in ready if not worker.silent_s] or ready
        if not ready:
            raise NotReadyError("no worker is ready: try again in a moment")
        self._turn += 1
        return ready[self._turn % len(ready)]

    def _model_worker(self, reference: ModelReference) -> Worker:
        """The worker that has a model: the same one for as long as it runs."""
        name = reference.name
        if reference.code:
            return self._code.models.worker_of(reference)
        worker = self._workers[zlib.crc32(name.encode()) % len(self._workers)]
        if not worker.ready:
            raise NotReadyError(f"model {name!r}: its worker is starting: try again in a moment")
        return worker

    async def _open_session(self, request: RawRequest) -> RawResponse:
        owner = request.owner
        try:
            self._books.check_sessions(owner, self._opening[owner])
            self._opening[owner] += 1
        except Exception:
            request.release()
            raise
        try:
            request.quota = self._books.quota(owner)
            return await (self._code.open(request) if _takes_code(request) else self._open_shared(request))
        finally:
            self._opening[owner] -= 1
            if not self._opening[owner]:
                del self._opening[owner]

    async def _open_shared(self, request: RawRequest) -> RawResponse:
        owner = request.owner
        try:
            own = await self._own.open(owner) if self._own is not None and request.worker is None else None
            worker = own or self._worker(request)
        except BaseException:
            request.release()
            raise
        request.quota = self._quota(owner, worker)
        self._shares.use(worker, owner, request.weight)
        response = await worker.call(request, self._settings.deadline_s)
        if response.status == 201:
            opened = json.loads(bytes(response.body))
            id = opened["id"]
            self._sessions[id] = self._open[id] = (request.owner, worker)
            self._books.session_made(request.owner, opened, code=False)
            reason = _ended_with(worker) if worker.ended else self._ended_first.pop(id, None)
            if reason is not None:
                self._session_ended(id, reason, worker_ended=worker.ended)
        return response

    def _owner_of(self, id: str, worker: Worker) -> str | None:
        """The owner of a session that a shared worker has; None when that has none of this id."""
        owner, where = self._open.get(id, ("", None))
        return owner if where is worker else None

    def _moved(self, id: str) -> None:
        """A session has a process of its own."""
        owner, _ = self._open.pop(id)
        self._sessions.pop(id, None)
        self._books.session_moved(owner, id)

    def _session_ended(self, id: str, reason: str, *, worker_ended: bool = False) -> None:
        owner, _ = self._open.pop(id, ("", None))
        if owner:
            self._books.session_ended(owner, id, reason)
            if not worker_ended:
                self._reasons[id] = reason
        else:
            self._ended_first[id] = reason  # its worker was faster than the answer to who made it

    async def _join(self, request: RawRequest) -> RawResponse:
        """The lists that the workers answer, one behind the other; without those of workers that answer too late.

        Raises:
            MXNetError: no worker has answered; the error of one.
        """
        request.release()
        workers = [worker for worker in self._all() if worker.ready]
        asked = [worker for worker in workers if not worker.silent_s] or workers
        answers = await asyncio.gather(*(self._part(request, worker) for worker in asked), return_exceptions=True)
        parts = [answer for answer in answers if not isinstance(answer, BaseException)]
        for answer in answers:
            if isinstance(answer, BaseException) and not (parts and isinstance(answer, LATE)):
                raise answer
        if len(parts) < len(workers):
            _log.warning("a list is without what some workers have", missing=len(workers) - len(parts))
        joined: dict[str, list[Any]] = {}
        for part in parts:
            for key, rows in part.items():
                joined.setdefault(key, []).extend(rows)
        if request.route.tag in ("sessions", "admin"):
            joined.setdefault("sessions", []).extend(await self._code.listed(request))
        if "devices" in joined:
            joined["devices"].extend(self._code.device_rows(joined["devices"]))
        return RawResponse(200, [strict_json(joined).encode()])

    async def _part(self, request: RawRequest, worker: Worker) -> dict[str, list[Any]]:
        """A worker's part of a list; MXNetError where it gives none."""
        # Without it a worker would take the owner for one that may have as much as its settings say.
        quota = self._quota(request.owner, worker)
        call = replace(request, body=b"", header_length=None, quota=quota)
        response = await worker.call(call, min(ALL_S, self._settings.deadline_s))
        try:
            part: dict[str, list[Any]] = json.loads(bytes(response.body))
            if response.problem is not None:
                _log.error("internal error", request_id=request.request_id, exception=response.problem)
            if response.status != 200:
                raise error_from_json(response.status, part)
        finally:
            response.release()
        return part

    # -- supervision --------------------------------------------------------------------------------------------

    def _new_worker(self, share: float) -> Worker:
        return Worker(
            self._settings,
            self._ended,
            self._device_times,
            self._books,
            self._stores,
            self._session_ended,
            share,
            self._moves.take,
        )

    def _ended(self, worker: Worker) -> None:
        self._moves.worker_ended(worker)
        for id in [id for id, (_, where) in self._open.items() if where is worker]:
            self._session_ended(id, _ended_with(worker), worker_ended=True)
        if self._own is not None and self._own.remove(worker):
            if self._supervising and not worker.stopping:
                _log.error("an owner's worker process ended", pid=worker.pid, reason=worker.reason)
                self.restarts += 1
            return
        if not self._supervising or worker not in self._workers:
            return
        _log.error("a worker process ended; starting another", pid=worker.pid, reason=worker.reason)
        self.restarts += 1
        self._spawn(self._replace(worker))

    async def _replace(self, worker: Worker) -> None:
        now = time.monotonic()
        self._early_ends = [at for at in self._early_ends if now - at < 60] + [now]
        # At once; but a worker that ends again and again must not keep the machine busy.
        await asyncio.sleep(min(10.0, 0.5 * max(0, len(self._early_ends) - 3)))
        fresh = self._new_worker(worker.share)
        self._workers[self._workers.index(worker)] = fresh
        with contextlib.suppress(Exception):  # it has ended at its start: `_ended` tries again
            await fresh.start()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(10.0, self._settings.worker_idle_s / 2))
            if self._own is not None:
                self._own.end_idle(lambda owner: self._opening[owner])
            for worker in self._all():
                if worker.ready:
                    worker.sweep()
            if self.restarts:
                forget_orphans()

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for worker in self._all():
                worker.watch()
            self._shares.share([*self._all(), *self._code.workers()])

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _silence(worker: Worker) -> str:
    return (
        f"a worker process has not answered for {worker.silent_s:.0f} s; another takes its place after "
        f"{worker.settings.worker_silent_s:g} s: try again in a moment"
    )


def _ended_with(worker: Worker) -> str:
    return f"the worker process that held it ended ({worker.reason})"


def _takes_code(request: RawRequest) -> bool:
    """Return whether the session that this makes is to have a process of its own; a worker refuses what is wrong."""
    if not request.scopes & UPLOADS or isinstance(request.body, Lease):
        return False
    body = request.body or b"{}"
    try:
        header = json.loads(bytes(body if request.header_length is None else body[: request.header_length]))
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("code") is True
