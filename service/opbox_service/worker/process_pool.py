"""`--isolation process`: several workers behind one face, replaced when they end.

A session lives in the worker that made it. When that ends, so does the session: its owner's next call says so, and a
new worker is spawned at once. Sessions that may bring code have a worker each (code_workers.py): those are the sessions
whose token has a scope to upload, unless the request says `"code": false`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from dataclasses import replace
from typing import Any

import structlog
from cachetools import FIFOCache

from opbox_protocol.errors import GoneError, NotFoundError, NotReadyError
from opbox_protocol.wire import strict_json

from ..buffers import Lease
from ..carriers import RawRequest, RawResponse
from ..device_time import DeviceTimes
from ..routes.route import RunsOn
from ..settings import UPLOADS, Settings
from .code_worker import CodeWorker
from .code_workers import CodeWorkers
from .pool import Stats
from .processes import resident_bytes
from .worker import Worker

__all__ = ["ProcessPool"]

REMEMBERED = 100_000
"""Sessions whose worker is known; those of the longest ago are forgotten first, when they have ended."""

_log = structlog.get_logger("opbox.workers")


class ProcessPool:
    """See WorkerPool."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._workers: list[Worker] = []
        self._sessions: FIFOCache[str, tuple[str, Worker]] = FIFOCache(REMEMBERED)
        self._tasks: set[asyncio.Task[None]] = set()
        self._supervising = False
        self._turn = 0
        self._early_ends: list[float] = []
        self.restarts = 0
        self._device_times = DeviceTimes()
        self._code = CodeWorkers(settings, self._device_times, root=os.geteuid() == 0, siblings=lambda: self.pids)

    @property
    def ready(self) -> bool:
        return self._supervising and any(worker.ready for worker in self._workers)

    async def start(self) -> None:
        self._workers = [self._new_worker() for _ in range(self._settings.workers)]
        try:
            ended = await asyncio.gather(
                *(worker.start() for worker in self._workers), self._code.start(), return_exceptions=True
            )
        except BaseException:
            await self.stop()
            raise
        # What the workers say goes before what the processes for code say of the same trouble.
        failed = [error for error in ended if isinstance(error, BaseException)]
        if failed:
            await self.stop()
            raise failed[0]
        self._supervising = True
        self._spawn(self._sweep())

    async def stop(self) -> None:
        self._supervising = False
        grace = self._settings.stop_grace_s
        await asyncio.gather(self._code.stop(grace), *(worker.stop(grace) for worker in self._workers))
        for task in list(self._tasks):
            task.cancel()

    def abandon(self) -> None:
        self._supervising = False
        for worker in self._workers:
            worker.kill()
        self._code.abandon()

    def lease(self, request: RawRequest, nbytes: int) -> Lease:
        return self._worker(request).lease(nbytes)

    async def call(self, request: RawRequest) -> RawResponse:
        runs_on = request.route.runs_on
        if runs_on is RunsOn.ALL_WORKERS:
            return await self._list_sessions(request)
        if runs_on is RunsOn.NEW_SESSION_WORKER:
            return await self._open_session(request)
        try:
            worker = self._worker(request)
            if request.route.method == "DELETE" and isinstance(worker, CodeWorker):
                request.release()
                return await self._code.delete(request.owner, str(worker.session))
        except Exception:
            request.release()
            raise
        return await worker.call(request, self._settings.deadline_s)

    def stats(self) -> Stats:
        memory = [worker.memory() for worker in self._workers]
        sessions = len(self._code.workers())
        return Stats(
            sessions=sum(worker.sessions for worker in self._workers) + sessions,
            restarts=self.restarts,
            resident={
                "api": resident_bytes(),
                **{f"worker{i}": resident for i, (resident, _) in enumerate(memory)},
                **self._code.resident(),
            },
            buffer_bytes=sum(lent for _, lent in memory),
            code_workers=sessions,
            code_deaths=dict(self._code.deaths),
            device_times=self._device_times.sums(),
        )

    @property
    def pids(self) -> list[int]:
        """The worker processes."""
        return [worker.pid for worker in self._workers]

    # -- which worker -------------------------------------------------------------------------------------------

    def _worker(self, request: RawRequest) -> Worker:
        """The worker that a call belongs to."""
        if request.route.runs_on is not RunsOn.SESSION_WORKER:
            return self._next_worker()
        id = request.parameters["id"]
        own = self._code.worker_of(request.owner, id)
        if own is not None:
            return own
        owner, worker = self._sessions.get(id, ("", None))
        if worker is None or owner != request.owner:
            raise NotFoundError(
                f"session {id[:64]!r}: expected one of yours, got an id that is not: make a new session"
            )
        if worker.ended:
            raise GoneError(f"session {id} is gone: the worker process that held it ended; make a new session")
        return worker

    def _next_worker(self) -> Worker:
        ready = [worker for worker in self._workers if worker.ready]
        if not ready:
            raise NotReadyError("no worker is ready: try again in a moment")
        self._turn += 1
        return ready[self._turn % len(ready)]

    async def _open_session(self, request: RawRequest) -> RawResponse:
        if _takes_code(request):
            return await self._code.open(request)
        try:
            worker = self._next_worker()
        except Exception:
            request.release()
            raise
        response = await worker.call(request, self._settings.deadline_s)
        if response.status == 201:
            self._sessions[json.loads(bytes(response.body))["id"]] = (request.owner, worker)
        return response

    async def _list_sessions(self, request: RawRequest) -> RawResponse:
        request.release()
        sessions: list[Any] = []
        for worker in [worker for worker in self._workers if worker.ready]:
            response = await worker.call(replace(request, body=b"", header_length=None), self._settings.deadline_s)
            if response.status != 200:
                return response
            sessions += json.loads(bytes(response.body))["sessions"]
            response.release()
        sessions += await self._code.listed(request)
        return RawResponse(200, [strict_json({"sessions": sessions}).encode()])

    # -- supervision --------------------------------------------------------------------------------------------

    def _new_worker(self) -> Worker:
        return Worker(self._settings, self._ended, self._device_times)

    def _ended(self, worker: Worker) -> None:
        if not self._supervising or worker not in self._workers:
            return
        _log.error("a worker process ended; starting another", pid=worker.pid)
        self.restarts += 1
        self._spawn(self._replace(worker))

    async def _replace(self, worker: Worker) -> None:
        now = time.monotonic()
        self._early_ends = [at for at in self._early_ends if now - at < 60] + [now]
        # At once; but a worker that ends again and again must not keep the machine busy.
        await asyncio.sleep(min(10.0, 0.5 * max(0, len(self._early_ends) - 3)))
        fresh = self._new_worker()
        self._workers[self._workers.index(worker)] = fresh
        with contextlib.suppress(Exception):  # it has ended at its start: `_ended` tries again
            await fresh.start()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(10)
            for worker in self._workers:
                if worker.ready:
                    worker.sweep()

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _takes_code(request: RawRequest) -> bool:
    """Whether the session that this makes is one that may bring code; a worker refuses what is wrong in it."""
    if not request.scopes & UPLOADS or isinstance(request.body, Lease):
        return False
    body = request.body or b"{}"
    try:
        header = json.loads(bytes(body if request.header_length is None else body[: request.header_length]))
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("code", None) in (None, True)
