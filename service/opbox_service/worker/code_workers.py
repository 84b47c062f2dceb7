"""The workers with one session each: a few ready ahead, their sessions, and what became of those that have ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter, OrderedDict
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import structlog

from opbox_ops.errors import GoneError, NotReadyError, OpboxError, QuotaError

from ..settings import UPLOADS, Settings
from .code_worker import CodeWorker
from .host import Outcome, Request
from .remains import User, remove_leftovers
from .worker import Worker

__all__ = ["CodeWorkers"]

REMEMBERED = 10_000
"""Ended sessions whose owners still learn what became of them."""
WATCH_S = 0.1
LIST_S = 1.0
"""How long a session that is listed may take to tell of itself; it may be in code that lets nothing else run."""

_log = structlog.get_logger("opbox.code")


class CodeWorkers:
    """See the module.

    Args:
        settings: of the server.
        root: whether the processes can take on users of their own.
    """

    def __init__(self, settings: Settings, *, root: bool) -> None:
        self._settings = settings
        self._users = bool(root and settings.code_user)
        self._wanted = settings.code_sessions > 0 and any(
            UPLOADS & scopes and "run" in scopes
            for scopes in (
                *((frozenset({"run"}) | UPLOADS,) if settings.token is not None else ()),
                *(token.scopes for token in settings.tokens),
            )
        )
        self._spares: list[CodeWorker] = []
        self._taken: dict[str, tuple[str, CodeWorker, dict[str, Any]]] = {}
        self._opening = 0
        self._ended_sessions: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._failures = 0
        self.deaths: Counter[str] = Counter()

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to keep spares, unless no token may bring code."""
        if not self._wanted:
            return
        self._running = True
        await asyncio.to_thread(remove_leftovers)
        self._do(self._watch())
        self._keep_spares()

    async def stop(self, grace_s: float) -> None:
        """End all of them, and wait until nothing of them is left."""
        self._running = False
        workers = [*self._spares, *(worker for _, worker, _ in self._taken.values())]
        await asyncio.gather(*(worker.stop(grace_s) for worker in workers))
        cleaning = [task for task in self._tasks if task.get_name() == "cleaning"]
        for task in self._tasks.difference(cleaning):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def facts(self) -> dict[str, Any]:
        """For the metrics."""
        resident = {f"code{i}": worker.facts()[0] for i, worker in enumerate(self.workers())}
        return {"workers": len(self._taken), "deaths": dict(self.deaths), "rss": resident}

    def workers(self) -> list[CodeWorker]:
        """Those that have a session."""
        return [worker for _, worker, _ in self._taken.values()]

    def pids(self) -> list[int]:
        """Their processes, spares included."""
        return [worker.pid for worker in (*self.workers(), *self._spares)]

    # -- sessions -----------------------------------------------------------------------------------------------

    def worker_of(self, owner: str, id: str) -> CodeWorker | None:
        """The worker of an owner's session; None when it is none of these.

        Raises:
            GoneError: it has ended; why.
        """
        held = self._taken.get(id)
        if held is not None:
            return held[1] if held[0] == owner else None
        ended = self._ended_sessions.get(id)
        if ended is not None and ended[0] == owner:
            raise GoneError(ended[1])
        return None

    async def open(self, request: Request) -> Outcome:
        """Make a session in a process of its own.

        Raises:
            QuotaError: the owner, or the server, has too many.
            NotReadyError: the process did not start.
        """
        told = self._settings
        mine = sum(1 for owner, _, _ in self._taken.values() if owner == request.owner)
        if mine >= told.max_sessions:
            raise QuotaError(f"sessions: expected at most {told.max_sessions} of an owner: delete one first")
        if len(self._taken) + self._opening >= told.code_sessions:
            raise QuotaError(
                f"sessions: expected at most {told.code_sessions} that may bring code: delete one, or make one "
                'without ({"code": false})'
            )
        self._opening += 1
        try:
            worker = await self._take()
            outcome = await worker.call(request, told.deadline_s)
            if outcome.status != 201:
                self._spares.append(worker)  # it has run nothing
                return outcome
            answer = json.loads(bytes(outcome.body))
            worker.session, worker.ttl_s = answer["id"], answer["ttl_s"]
            self._taken[answer["id"]] = (request.owner, worker, answer)
            if worker.ended:
                self._on_end(worker)
            return outcome
        finally:
            self._opening -= 1

    async def delete(self, owner: str, id: str) -> Outcome:
        """End a session and its process at once, whatever that is at."""
        worker = self.worker_of(owner, id)
        assert worker is not None
        worker.retire(f"session {id} was deleted: make a new one")
        await worker.gone()
        return Outcome(200, json.dumps({"deleted": id}).encode())

    async def listed(self, request: Request) -> list[Any]:
        """The owner's sessions, as GET tells them."""
        mine = [held for held in self._taken.values() if held[0] == request.owner]
        return list(await asyncio.gather(*(self._described(request, *held[1:]) for held in mine)))

    async def _described(self, request: Request, worker: CodeWorker, made: dict[str, Any]) -> Any:
        with contextlib.suppress(OpboxError, ValueError, LookupError):
            outcome = await worker.call(replace(request, body=None, header_length=None), LIST_S)
            try:
                if outcome.status == 200:
                    return json.loads(bytes(outcome.body))["sessions"][0]
            finally:
                outcome.release()
        unknown = dict.fromkeys(("idle_s", "created", "next_seq", "objects", "bytes", "peak_bytes"), 0)
        return {**unknown, **made}

    # -- processes ----------------------------------------------------------------------------------------------

    async def _take(self) -> CodeWorker:
        """A worker that is ready: a spare, or a new one."""
        if not self._running:
            raise NotReadyError("the server is starting or stopping: try again in a moment")
        self._failures = 0
        while True:
            ready = next((worker for worker in self._spares if worker.ready), None)
            worker = ready or next((worker for worker in self._spares if not worker.ended), None) or self._new()
            if worker in self._spares:
                self._spares.remove(worker)
            self._keep_spares()
            try:
                await worker.up()
            except OpboxError as error:
                raise NotReadyError(f"the session's own process did not start: {error.message}") from None
            if worker.ready:
                return worker

    def _keep_spares(self) -> None:
        while self._running and len(self._spares) < self._settings.code_spares and self._failures < 5:
            self._spares.append(self._new())

    def _new(self) -> CodeWorker:
        user = User(self._settings.code_user) if self._users else None
        worker = CodeWorker(self._settings, self._on_end, user)
        worker.begin()
        return worker

    def _on_end(self, worker: Worker) -> None:
        assert isinstance(worker, CodeWorker)
        if worker in self._spares:
            self._spares.remove(worker)
        if worker.session is not None:
            held = self._taken.pop(worker.session, None)
            if held is None:
                return
            self._ended_sessions[worker.session] = (held[0], worker.epitaph)
            while len(self._ended_sessions) > REMEMBERED:
                self._ended_sessions.popitem(last=False)
        elif not worker.stopping:
            self._failures += 1
        if worker.cause and not worker.stopping and worker.session is not None:
            self.deaths[worker.cause] += 1
            _log.warning("a code process ended", session=worker.session, cause=worker.cause, why=worker.epitaph)
        self._do(asyncio.to_thread(worker.clean_up), "cleaning")
        self._keep_spares()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            for worker in self.workers():
                worker.watch()
                if worker.ready and worker.session is not None and worker.expired:
                    worker.retire(f"session {worker.session} expired unused: make a new one")

    def _do(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
