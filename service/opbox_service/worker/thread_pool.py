"""`--isolation none`: the engine in this process, on a pool of threads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

import structlog

from opbox_protocol.errors import DeadlineError, NotReadyError

from ..accounting.books import Books
from ..accounting.history import ReportedMetrics
from ..buffers import INLINE, Lease, Pool
from ..call_threads import CallThreads
from ..carriers import RawRequest, RawResponse
from ..checkpoint_store import FileCheckpoints
from ..codec import error_response, infer_again, limits_of, recurring_request, serve
from ..dataset_store import FileDatasets
from ..device_time import DeviceTime, DeviceTimes
from ..engine import Engine
from ..graph_store import BackgroundGraphs
from ..memory_shares import HOST
from ..models.gathered_runs import GatheredRuns
from ..models.reference import ModelKey
from ..routes.route import RouteTable, RunsOn
from ..session.code_policy import UNWATCHED
from ..settings import Settings
from ..stages import Stages
from ..stores import NO_STORES, Stores
from ..task import Task, running
from ..turns import PARKED, Job, Turn, Turns
from .pool import STARTING, Stats
from .processes import resident_bytes

__all__ = ["ThreadPool"]

_OF_SESSIONS = (RunsOn.SESSION_WORKER, RunsOn.NEW_SESSION_WORKER)

_log = structlog.get_logger("opbox.engine")


class ThreadPool:
    """A WorkerPool of threads in this process.

    Args:
        settings: of the server.
        routes: the engine's calls.
        books: record what sessions have, what code they are sent and why they end.
        stores: where sessions' checkpoints and datasets are.
    """

    def __init__(self, settings: Settings, routes: RouteTable, books: Books, stores: Stores = NO_STORES) -> None:
        self._settings = settings
        self._books = books
        self._stores = stores
        self._loop: asyncio.AbstractEventLoop | None = None
        self._times: DeviceTimes | None = None
        self._routes = routes
        self._limits = limits_of(settings)
        self._pool = Pool(shared=False, limit=settings.max_buffer_bytes, keep=settings.buffer_cache_bytes)
        # Besides those that run, calls that wait in the middle of their work, or have lent their place, keep a thread,
        # and what takes no turn.
        self._threads = CallThreads(settings.threads + PARKED + 1 + settings.max_in_flight, "opbox-call")
        self._turns = Turns(settings.threads, self._start)
        self._gathered = GatheredRuns(self._turns)
        self._unanswered: dict[asyncio.Future[RawResponse], RawRequest] = {}
        self._engine: Engine | None = None
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def unready(self) -> str:
        return STARTING if self._engine is None else ""

    async def start(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        policy = replace(UNWATCHED, on_upload=self._uploaded)
        stores = self._stores
        graphs = None if stores.graphs is None else BackgroundGraphs(stores.graphs)
        self._engine = await loop.run_in_executor(
            None, Engine, self._settings, policy, self._routes, stores.checkpoints, 1.0, stores.datasets, graphs
        )
        self._times = self._engine.device_times
        self._sweeping = asyncio.create_task(self._sweep())

    async def stop(self, grace_s: float) -> None:
        engine, self._engine = self._engine, None
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._run_gathered()
        if await self._ended(grace_s) and engine is not None:
            await asyncio.get_running_loop().run_in_executor(None, engine.close)
        for answered, request in self._unanswered.items():
            if not answered.done():
                error = NotReadyError(f"{request}: expected an answer before the server stopped, got none: try again")
                answered.set_exception(error)
        self._pool.close()

    async def _ended(self, grace_s: float) -> bool:
        """Whether all calls come to their end within so many seconds. One that does not ends with the process."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def finish() -> None:
            self._threads.shutdown()
            with contextlib.suppress(RuntimeError):  # nobody has waited so long
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=finish, name="opbox-stop", daemon=True).start()
        try:
            await asyncio.wait_for(ended.wait(), grace_s)
        except TimeoutError:
            _log.warning("calls did not end in time", calls=len(self._unanswered))
            return False
        await asyncio.sleep(0)  # what the last calls have answered is handed over
        return True

    def announce_stop(self) -> None:
        if self._engine is not None:
            self._start(self._engine.sessions.save_at_stop)

    @property
    def checkpoints(self) -> FileCheckpoints | None:
        return self._stores.checkpoints

    @property
    def datasets(self) -> FileDatasets | None:
        return self._stores.datasets

    def sessions_of(self, owner: str) -> int:
        return len(self._engine.sessions.of(owner)) if self._engine is not None else 0

    def device_times(self) -> dict[tuple[str, str], DeviceTime]:
        return self._times.sums() if self._times is not None else {}

    def abandon(self) -> None:
        """Do nothing: threads end with their process."""

    def lease(self, request: RawRequest, nbytes: int) -> Lease:
        return self._pool.lease(nbytes)

    def call_at_once(self, request: RawRequest) -> RawResponse | None:
        engine = self._engine
        if engine is None or request.model is None or request.model.code:
            return None
        recurring = recurring_request(request, engine.models)
        if recurring is None or recurring.known is None or not recurring.known.form.is_quick:
            return None
        answers: list[RawResponse] = []

        def send(response: RawResponse) -> None:
            answers.append(self._copied(response, engine, request.owner))

        def fail(error: Exception) -> None:
            answers.append(error_response(error))

        def work(turn: Turn | None) -> None:
            # In no turn, as this thread must not wait for another one's at a checkpoint.
            infer_again(request, recurring, send, fail, waited_for=True)

        if self._turns.idle:  # so that nobody's turn is this one
            work(None)
        elif not self._turns.run_at_once(self._job(request, work)):
            return None
        return answers[0]

    async def call(self, request: RawRequest) -> RawResponse:
        engine = self._engine
        if engine is None:
            request.release()
            raise NotReadyError("the server is starting or stopping: try again in a moment")
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[RawResponse] = loop.create_future()

        def settle(response: RawResponse | BaseException) -> None:
            if answered.done():
                if isinstance(response, RawResponse):
                    if response.problem is not None:  # nobody waits for it any more, so that no other line has it
                        _log.error("internal error", request_id=request.request_id, exception=response.problem)
                    response.release()
            elif isinstance(response, BaseException):
                answered.set_exception(response)
            else:
                answered.set_result(response)

        def send(response: RawResponse) -> None:
            request.release()
            try:
                own: RawResponse | BaseException = self._copied(response, engine, request.owner)
            except Exception as error:
                own = error
            loop.call_soon_threadsafe(settle, own)

        new_session = request.route.runs_on is RunsOn.NEW_SESSION_WORKER
        try:
            if new_session:
                self._books.check_sessions(request.owner)
        except Exception:
            request.release()
            raise
        request.quota = self._books.quota(request.owner, self)
        task = Task(self._settings.graph_seconds)
        task.weight = request.weight
        request.cancel = task.stop
        if request.trace:
            task.stages = Stages()

        def work(turn: Turn) -> None:
            task.turn = turn
            if task.stages is not None:
                task.stages.begin()
            try:
                with running(task):
                    rest = serve(engine, request, self._limits, send, task)
                    if rest is not None:
                        rest()
            finally:
                task.turn = None  # which knows of this function: what refers to itself waits for the collector

        def late() -> None:
            error = DeadlineError(f"{request}: expected an answer within {deadline:g} s, got none")
            settle(error)
            task.stop(error)

        deadline = self._settings.deadline_s
        timer = loop.call_later(deadline, late)
        try:
            self._unanswered[answered] = request
            try:
                job = self._job(request, work)
                if self._joins_others(engine, request, task, send):
                    pass
                elif request.route.method != "POST":  # it takes no time, and may end what does
                    self._threads.submit(partial(work, Turn(self._turns, job)))
                else:
                    turn = self._turns.offer(job)
                    if turn is not None:
                        self._threads.submit(partial(self._turns.run, turn, job))
            except RuntimeError:  # the pool has been shut down
                request.release()
                raise NotReadyError("the server is stopping: try again when it is back") from None
            response = await answered
        finally:
            timer.cancel()
            del self._unanswered[answered]
        if new_session and response.status == 201:
            opened = json.loads(bytes(response.body))
            self._books.session_made(request.owner, opened, code=False)
        if request.route.runs_on in _OF_SESSIONS:
            self._look()
        return response

    def _joins_others(
        self, engine: Engine, request: RawRequest, task: Task, send: Callable[[RawResponse], None]
    ) -> bool:
        """Have a request that came before run together with others; False for one that runs in another way."""
        model = None if request.model is None or request.trace else engine.models.loaded(request.model)
        if model is None or model.gathers is None:
            return False
        recurring = recurring_request(request, engine.models)
        if recurring is None or recurring.known is None or recurring.known.form.alone:
            return False
        if recurring.model is not model:
            return False

        def fail(error: Exception) -> None:
            send(error_response(error))

        try:
            engine.admit(request.owner, request.quota)
            with running(task):
                infer_again(request, recurring, send, fail, waited_for=True)
        except Exception as error:
            fail(error)
            return True
        if not self._gathered.any and self._loop is not None:
            self._loop.call_soon(self._run_gathered)  # behind the requests that have been read with this one
        self._gathered.add(model.gathers)
        return True

    def _run_gathered(self) -> None:
        while self._gathered.any:
            run = self._gathered.run()
            if run is not None:
                self._threads.submit(run)

    async def prepare(self, request: RawRequest, on_end: Callable[[str], None]) -> RawResponse:
        return await self.call(request)

    def keep_models(self, name: str, keys: Collection[ModelKey]) -> None:
        """Do nothing: no model has a process of its own."""

    def _start(self, work: Callable[[], None]) -> None:
        self._threads.submit(work)

    @staticmethod
    def _job(request: RawRequest, work: Callable[[Turn], None]) -> Job:
        session = request.parameters.get("id", "") if request.route.runs_on is RunsOn.SESSION_WORKER else ""
        return Job(request.owner, session, work, request.weight, request.interactive)

    def stats(self) -> Stats:
        return Stats(
            sessions=len(self._engine.sessions) if self._engine is not None else 0,
            restarts=0,
            resident={"api": resident_bytes()},
            sessions_of={"api": len(self._engine.sessions) if self._engine is not None else 0},
            buffer_bytes=self._pool.lent_bytes,
            device_times=self.device_times(),
        )

    def _copied(self, response: RawResponse, engine: Engine, owner: str) -> RawResponse:
        """The answer in memory of its own, its owner's: what its parts point to is reused as soon as this returns."""
        size = response.size
        if size <= INLINE:
            response.parts = [b"".join(response.parts)]
            return response
        memory = engine.ledger.of(owner, HOST)
        memory.take(size)
        try:
            lease = self._pool.lease(size)
        except NotReadyError:
            memory.give(size)
            raise
        response.write_to(lease.view)

        def release() -> None:
            lease.release()
            memory.give(size)

        response.parts, response.release = [lease.view], release
        return response

    def _uploaded(self, owner: str, session: str, rows: list[tuple[str, str, str]], more: int) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._books.uploaded, owner, session, rows, more)

    def _look(self) -> None:
        """Record in the books what memory sessions have, and which have ended."""
        engine = self._engine
        if engine is not None:
            for owner, id, report in engine.sessions.take_reports():
                self._books.history.report(owner, id, ReportedMetrics(*report))
            for id, owner, reason in engine.sessions.take_ended():
                self._books.session_ended(owner, id, reason)
            self._books.take_memory(self, engine.memory())

    async def _sweep(self) -> None:
        swept = time.monotonic()
        while True:
            await asyncio.sleep(1)
            self._look()
            if time.monotonic() - swept > 10:
                swept = time.monotonic()
                self._pool.sweep()
