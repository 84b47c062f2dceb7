"""The pool of code workers: one for each session that may bring code, spare ones, and why the ended ones ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import structlog
from cachetools import FIFOCache

from opbox_protocol.errors import GoneError, InternalError, MXNetError, NotReadyError, QuotaError, error_from_json

from ..accounting.books import Books
from ..carriers import OwnerQuota, RawRequest, RawResponse
from ..device_time import DeviceTimes
from ..memory_shares import HOST
from ..owner_terms import SCOPES, UPLOADS
from ..routes.sessions import SessionState
from ..session.sessions import ended_by_admin
from ..settings import Settings
from ..stores import NO_STORES, Stores
from .bounded_json import read_bounded
from .code_answers import LARGEST_ERROR, read_opened, read_state
from .code_memory import PROCESS_BYTES, CodeMemory
from .code_models import CodeModels
from .code_worker import CodeWorker, code_environment
from .confine import own_packages, unreadable
from .orphans import User, end_leftovers, end_strays
from .scratch_dirs import remove_leftovers
from .template import Template
from .walls import walls_of
from .worker import Worker

__all__ = ["CodeWorkers"]

REMEMBERED = 10_000
"""Number of ended sessions whose end is remembered, to tell their owners why."""
WATCH_S, MEASURE_S = 0.1, 0.5
STRAYS_S = 0.5
"""Seconds between two searches for strays, while there are sessions to leave any."""
MAX_TEMPLATES = 5
"""Number of templates that may end before the server does without one."""
LIST_S = 1.0
"""Seconds that a process may take to describe its session in a list: its code may let nothing else run."""

_log = structlog.get_logger("opbox.code")


class CodeWorkers:
    """The pool of code workers.

    Args:
        settings: of the server.
        device_times: counts how long sessions' calls wait and run.
        root: whether the processes can take on users of their own.
        siblings: the processes that the server has started besides.
        books: record what sessions have, what code they are sent and why they end.
        stores: where sessions' checkpoints and datasets are.
    """

    def __init__(
        self,
        settings: Settings,
        device_times: DeviceTimes,
        *,
        root: bool,
        siblings: Callable[[], list[int]],
        books: Books,
        stores: Stores = NO_STORES,
    ) -> None:
        self._settings = settings
        self._device_times = device_times
        self._siblings = siblings
        self._books = books
        self._stores = stores
        self._users = bool(root and settings.code_user)
        self._wanted = settings.code_sessions > 0 and any(
            UPLOADS & scopes and "run" in scopes
            for scopes in (
                # What a file will list when it changes is not known.
                *((SCOPES,) if settings.token or settings.token_file or settings.tokens_file else ()),
                *(token.scopes for token in settings.tokens),
                *((frozenset().union(*settings.scopes_of_claims.values()),) if settings.oidc_issuer else ()),
            )
        )
        self._alive: set[CodeWorker] = set()
        self._spares: list[CodeWorker] = []
        self._taken: dict[str, tuple[str, CodeWorker, dict[str, Any]]] = {}
        self._opening = 0
        self.models = CodeModels(settings, self.take, self.quota)
        self._memory = CodeMemory(settings, books, self._alive, self.workers)
        self._busy = asyncio.Event()
        self._ended_sessions: FIFOCache[str, tuple[str, str]] = FIFOCache(REMEMBERED)
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False
        self._started = False
        self._failures = 0
        self._template: Template | None = None
        self._templates_ended = 0
        self.deaths: Counter[str] = Counter()

    # -- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to keep spares, unless no token may bring code.

        Raises:
            NotReadyError: no process for code can be had here; why, and what to do.
        """
        if not self._wanted:
            return
        unread = unreadable(own_packages()) if self._users else None
        if unread is not None:
            raise NotReadyError(
                f"code of sessions runs with a user id of its own, which may not read {unread}: make the packages and "
                "Python readable for all (chmod -R o+rX), set OPBOX_CODE_USER=0 (it stays root, without its powers), "
                "or give no token a scope to upload"
            )
        walls = walls_of(self._settings)
        _log.info(walls.line)
        for sentence in walls.missing:
            _log.warning(sentence)
        self._running = True
        await asyncio.to_thread(self._remove_leftovers)
        self._start_template()
        self._keep_spares()
        if self._spares:
            try:
                await self._spares[0].up()
            except MXNetError as error:
                raise NotReadyError(f"a process for code of sessions did not start: {error.message}") from None
        self._started = True
        self._do(self._watch())
        self._do(self._measure())

    def _remove_leftovers(self) -> None:
        if self._users:
            end_leftovers(self._settings.code_user)
        remove_leftovers()

    async def stop(self, grace_s: float) -> None:
        """End all of them, and wait until nothing of them is left."""
        self._running = False
        await asyncio.gather(*(worker.stop(grace_s) for worker in self._alive))
        if self._template is not None:
            self._template.kill()
        cleaning = [task for task in self._tasks if task.get_name() == "cleaning"]
        for task in self._tasks.difference(cleaning):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def abandon(self) -> None:
        """End all of them now; what they leave, the next server removes."""
        self._running = False
        for worker in self._alive:
            worker.kill()
        if self._template is not None:
            self._template.kill()

    def resident(self) -> dict[str, int]:
        """Bytes of memory by process."""
        return {f"code{i}": worker.memory()[0] for i, worker in enumerate(self.workers())}

    def workers(self) -> list[CodeWorker]:
        """The workers that have a session or a model."""
        return [*(worker for _, worker, _ in self._taken.values()), *self.models.workers()]

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return len(self._taken)

    def device_rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One row for each device with the memory of all sessions with code, as `GET /v1/devices` has it.

        Args:
            rows: the other workers', which know how much memory a device has.
        """
        used: Counter[str] = Counter()
        for worker in self.workers():
            if worker.whose is not None:
                device = worker.whose[1]
                used[device] += self._books.memory_of(worker, device)
        listed = []
        for device, nbytes in used.items():
            beside = [row for row in rows if row["device"] == device]
            whole = beside[0] if beside else {"memory_used_bytes": 0, "memory_bytes": 0}
            limit = self._memory.limit() if device == HOST else sum(row["limit_bytes"] for row in beside)
            listed.append({**whole, "device": device, "worker": 0, "used_bytes": nbytes, "limit_bytes": limit})
        return listed

    def sessions_of(self, owner: str) -> int:
        """Return the number of an owner's sessions."""
        return sum(1 for name, _, _ in self._taken.values() if name == owner)

    # -- sessions -----------------------------------------------------------------------------------------------

    def worker_of(self, owner: str | None, id: str) -> CodeWorker | None:
        """Return the worker of an owner's session (owner None: of any session); None when there is no such session.

        Raises:
            GoneError: it has ended; why.
        """
        taken = self._taken.get(id)
        if taken is not None:
            return taken[1] if owner in (None, taken[0]) else None
        ended = self._ended_sessions.get(id)
        if ended is not None and owner in (None, ended[0]):
            raise GoneError(ended[1])
        return None

    async def open(self, request: RawRequest) -> RawResponse:
        """Make a session in a process of its own.

        Raises:
            QuotaError: the server has too many.
            NotReadyError: the process did not start.
        """
        self._check_capacity()
        self._opening += 1
        self._busy.set()
        try:
            worker = await self._take()
            try:
                response = await worker.call(request, self._settings.deadline_s)
            except BaseException:
                worker.retire("nobody waited for the session: make a new one")  # which it may have by now
                raise
            if response.status != 201:
                self._spares.append(worker)  # it has run nothing
                return response
            session = self._opened(worker, response)
            self._books.session_made(request.owner, session, code=True)
            self._keep(request.owner, worker, session)
            return response
        finally:
            self._opening -= 1

    def _opened(self, worker: CodeWorker, response: RawResponse) -> dict[str, Any]:
        """The session that a worker has opened; InternalError, and the worker's end, if it answered something else."""
        try:
            opened = read_opened(response)
            if opened["id"] in self._taken or worker.only_session not in (None, opened["id"]):
                raise ValueError(f"expected a session of its own, got {opened['id']!r:.80}")
        except ValueError as error:
            _log.error("a process for code did not open its session", pid=worker.pid, error=str(error)[:1000])
            worker.retire("it did not open its session")
            raise InternalError("the session's own process: the server's log has the reason") from None
        return opened

    async def take(self) -> CodeWorker:
        """A process for a model, which is ready.

        Raises:
            QuotaError: the server has too many.
            NotReadyError: the process did not start.
        """
        self._check_capacity()
        self._opening += 1
        try:
            worker = await self._take()
        finally:
            self._opening -= 1
        self._busy.set()
        return worker

    async def adopt(self, request: RawRequest, id: str, device: str, nbytes: int, image: int) -> CodeWorker:
        """Continue a shared worker's session in a process of its own.

        Args:
            request: of the session's owner, without a body.
            id: of the session.
            device: the session's.
            nbytes: that it has there.
            image: its descriptor.

        Raises:
            QuotaError: there are too many such processes.
            MXNetError: the process did not start, or has no room for the session.
        """
        self._check_capacity()
        self._opening += 1
        try:
            worker = await self._take()
            worker.whose, worker.only_session = (request.owner, device), id
            request.quota = self._quota_without(request.owner, worker, device, nbytes)
            try:
                response = await worker.call(request, self._settings.deadline_s, "adopt", image)
                if response.status != 201:
                    raise error_from_json(response.status, read_bounded(response.body, LARGEST_ERROR))
                opened = self._opened(worker, response)
            except BaseException:
                worker.retire("its session stayed where it was")
                raise
            self._keep(request.owner, worker, opened)
            return worker
        finally:
            self._opening -= 1

    def _check_capacity(self) -> None:
        """QuotaError when there may be no further session with a process of its own."""
        most = self._settings.code_sessions
        if len(self.workers()) + self._opening >= most:
            raise QuotaError(
                f"sessions: expected at most {most} of all owners that may bring code, got one more: "
                'ask for one that takes none ({"code": false}, or OPBOX_CODE=0 for the Python client), or try again '
                "when one has ended"
            )
        rest = self._memory.left() - self._opening * PROCESS_BYTES
        if rest < PROCESS_BYTES:
            raise QuotaError(
                f"memory of sessions that may bring code: expected {PROCESS_BYTES} bytes for another one's process, "
                f"got {max(0, rest)} left of {self._memory.limit()}: ask for a session that takes no code "
                '({"code": false}, or OPBOX_CODE=0 for the Python client), or try again when one has ended'
            )

    def _keep(self, owner: str, worker: CodeWorker, session: dict[str, Any]) -> None:
        """Note that a worker has a session."""
        worker.session, worker.ttl_s = session["id"], session["ttl_s"]
        worker.whose, worker.only_session = (owner, session["device"]), session["id"]
        self._taken[session["id"]] = (owner, worker, session)
        self._busy.set()
        if worker.ended:
            self._on_end(worker)

    def forget(self, id: str) -> None:
        """Forget a session that arrived after its process had ended."""
        self._taken.pop(id, None)

    def quota(self, owner: str, worker: CodeWorker) -> OwnerQuota:
        """Return the owner's quota in a session's process; its host memory is what the other processes leave."""
        account = self._books.accounts.of(owner)
        quota = self._books.quota(owner, worker) or OwnerQuota(account.sessions, account.session_bytes)
        return quota._replace(host_bytes=max(1, self._memory.left(without=worker) - PROCESS_BYTES))

    def _quota_without(self, owner: str, worker: CodeWorker, device: str, nbytes: int) -> OwnerQuota:
        """The quota in a process where a session is to come that has so many bytes of a device elsewhere meanwhile."""
        quota = self.quota(owner, worker)
        elsewhere, beside = (
            {**rows, device: max(0, rows[device] - nbytes)} if device in rows else rows
            for rows in (quota.elsewhere, quota.beside)
        )
        frees = device == HOST and not self._settings.max_code_bytes  # processes with code have what others leave
        return quota._replace(elsewhere=elsewhere, beside=beside, host_bytes=quota.host_bytes + nbytes * frees)

    async def delete(self, worker: CodeWorker, *, by_admin: bool) -> RawResponse:
        """End a session and its process at once, whatever that is at."""
        id = str(worker.session)
        owner = self._taken[id][0]
        await worker.ask_times()
        worker.retire(ended_by_admin(id) if by_admin else f"session {id} was deleted: make a new one")
        await worker.gone()
        return RawResponse(200, [json.dumps({"ended": id, "owner": owner} if by_admin else {"deleted": id}).encode()])

    async def listed(self, request: RawRequest) -> list[Any]:
        """The sessions that the route lists, as it tells them."""
        listed = [taken for taken in self._taken.values() if request.route.all_owners or taken[0] == request.owner]
        return list(await asyncio.gather(*(self._state(request, *taken) for taken in listed)))

    async def _state(self, request: RawRequest, owner: str, worker: CodeWorker, opened: dict[str, Any]) -> Any:
        whose = {"owner": owner} if request.route.all_owners else {}
        # What its process answers may be of its code's making.
        with contextlib.suppress(MXNetError, ValueError, LookupError, TypeError):
            quota = self.quota(request.owner, worker)
            call = replace(request, body=b"", header_length=None, quota=quota)
            response = await worker.call(call, LIST_S)
            try:
                if response.status == 200:
                    return {**read_state(response, opened, self._settings), **whose}
            finally:
                response.release()
        unknown = dict.fromkeys(("idle_s", "created", "next_seq", "objects", "bytes", "peak_bytes"), 0)
        return {**SessionState.model_validate({**unknown, **opened}).model_dump(), **whose}

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
            except MXNetError as error:
                if worker.lost_template and not (self._template is None or self._template.ended):
                    continue  # it ended with its template, and there is another
                raise NotReadyError(f"the session's own process did not start: {error.message}") from None
            except asyncio.CancelledError:
                worker.retire("nobody waited for it")
                raise
            if worker.ready:
                return worker

    def _start_template(self) -> None:
        """Have a template, where the system tells of the end of processes that are not one's own children."""
        if not hasattr(os, "pidfd_open") or self._templates_ended >= MAX_TEMPLATES:
            return
        try:
            self._template = Template(code_environment(self._settings), self._template_ended)
        except OSError as error:
            _log.error("the template of processes for code cannot be started", reason=str(error))

    def _template_ended(self, template: Template) -> None:
        if not self._running:
            return
        if not template.has_begun:
            _log.warning("processes for code are started, not forked, which takes longer", reason=template.reason)
        else:
            _log.error("the template of processes for code ended, and these with it", pid=template.pid)
            self._templates_ended += 1
            self._start_template()

    def _keep_spares(self) -> None:
        while self._running and len(self._spares) < self._settings.code_spares and self._failures < 5:
            try:
                self._spares.append(self._new())
            except MXNetError as error:
                self._failures += 1
                _log.error("a spare process cannot be made", reason=error.message)

    def _new(self) -> CodeWorker:
        """A process that starts; NotReadyError when the system has no room for one."""
        user = User(self._settings.code_user) if self._users else None
        try:
            worker = CodeWorker(
                self._settings, self._on_end, self._device_times, user, self._books, self._stores, self._template
            )
        except OSError as error:
            if user is not None:
                user.release()
            raise NotReadyError(f"a process for the session: the system has no room ({error}): try later") from None
        self._alive.add(worker)
        worker.begin()
        return worker

    def _on_end(self, worker: Worker) -> None:
        assert isinstance(worker, CodeWorker)
        self._busy.set()
        self._alive.discard(worker)
        if worker in self._spares:
            self._spares.remove(worker)
        if worker.session is not None:
            taken = self._taken.pop(worker.session, None)
            if taken is None:
                return
            self._ended_sessions[worker.session] = (taken[0], worker.epitaph)
            self._books.session_ended(taken[0], worker.session, worker.epitaph)
        elif worker.model is not None:
            self.models.ended(worker)
        elif not worker.stopping:
            self._failures += 1
            if self._started:  # before, whoever starts the server is told
                _log.error("a spare process ended", pid=worker.pid, reason=worker.reason)
        name = worker.session if worker.model is None else worker.model.name
        if worker.cause and not worker.stopping and name is not None:
            self.deaths[worker.cause] += 1
            whose = "session" if worker.model is None else "model"
            _log.warning("a code process ended", **{whose: name}, cause=worker.cause, why=worker.epitaph)
        self._do(asyncio.to_thread(worker.clean_up), "cleaning")
        self._keep_spares()

    async def _watch(self) -> None:
        """Look after sessions while there are any; with none, and nothing left of the last, this sleeps."""
        looked = 0.0
        while True:
            await self._busy.wait()
            await asyncio.sleep(WATCH_S)
            workers = list(self._alive)
            for worker in workers:
                worker.watch()
                if worker.ready and worker.session is not None and worker.expired:
                    worker.retire(f"session {worker.session} expired unused: make a new one")
            if self.workers() and time.monotonic() - looked < STRAYS_S:
                continue
            looked = time.monotonic()
            known = {*(worker.pid for worker in self._alive), *self._siblings()}
            if self._template is not None:
                known.add(self._template.pid)
            strays = end_strays(known, kill=not self._users)
            # What a stray leaves becomes a child of this process when that has ended, and not before.
            cleaning = any(task.get_name() == "cleaning" for task in self._tasks)
            if not (strays or self.workers() or self._opening or cleaning):
                self._busy.clear()

    async def _measure(self) -> None:
        """Judge what sessions hold, again and again; a twentieth of the time at most."""
        while True:
            await self._busy.wait()
            begun = time.monotonic()
            await self._memory.judge()
            await asyncio.sleep(max(MEASURE_S, 19 * (time.monotonic() - begun)))

    def _do(self, work: Coroutine[Any, Any, None], name: str = "") -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name or None)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
