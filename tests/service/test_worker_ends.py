"""Workers that cannot be started, that nobody waits for, and that are given up for being idle: without a server."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from opbox_protocol.errors import DeadlineError, GoneError, NotReadyError, WorkerDiedError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.books import Books
from opbox_service.carriers import RawRequest, RawResponse
from opbox_service.device_time import DeviceTimes
from opbox_service.owner_terms import SCOPES
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings
from opbox_service.worker import messages, owner_workers, template
from opbox_service.worker.code_worker import CodeWorker
from opbox_service.worker.code_workers import CodeWorkers
from opbox_service.worker.owner_workers import OwnerWorkers
from opbox_service.worker.process_pool import ProcessPool
from opbox_service.worker.template import ForkedProcess
from opbox_service.worker.worker import Worker

GENEROUS_S = 60.0
"""What must come to an end does, on the slowest machine; what hangs fails."""
READY = """
import socket, sys
from opbox_service.worker import messages
sock = socket.socket(fileno=int(sys.argv[1]))
messages.receive(sock)
messages.send(sock, messages.write({"kind": "ready", "pid": 0}))
while messages.receive(sock)[0]:
    pass
"""
"""A process that takes calls and never answers."""
MIB = 1 << 20


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing depends on what else the machine is at."""
    monkeypatch.setattr(owner_workers, "FREE_BYTES", 0)


class System:
    """Starts small processes instead of workers, and none while it has no room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_memory = True
        self.refusals = 0
        self._start = subprocess.Popen
        monkeypatch.setattr(subprocess, "Popen", self._popen)

    def _popen(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if not self.has_memory:
            self.refusals += 1
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        if template.PROGRAM in command:  # what is forked is no small process
            raise OSError(errno.ENOSYS, "Function not implemented")
        fd = next(part for part in command if part.isdigit())
        return self._start([command[0], "-c", READY, fd], **{**options, "cwd": None})


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    return System(monkeypatch)


def books_of(settings: Settings) -> Books:
    return Books(settings, Accounts(settings))


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, GENEROUS_S))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def request_for_a_session(owner: str = "ann") -> RawRequest:
    route, parameters = ROUTES.match("POST", "/v1/sessions")
    return RawRequest(route, parameters, "/v1/sessions", owner, SCOPES, "r", body=b"{}")


# -- the system has no room -------------------------------------------------------------------------------------


def test_a_worker_that_cannot_be_started_has_ended(system: System) -> None:
    async def work() -> None:
        settings, ended = Settings(), list[Worker]()
        system.has_memory = False
        worker = Worker(settings, ended.append, DeviceTimes(), books_of(settings))
        with pytest.raises(WorkerDiedError, match="Resource temporarily unavailable"):
            await worker.start()
        assert (ended, worker.ended, worker.ready) == ([worker], True, False)
        assert worker._channel is not None
        assert worker._channel.closed
        await worker.stop(0)

    run(work())


def test_a_process_that_cannot_be_watched_is_ended(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def work() -> None:
        settings, ended = Settings(), list[Worker]()
        monkeypatch.setattr("os.pidfd_open", refuse)
        worker = Worker(settings, ended.append, DeviceTimes(), books_of(settings))
        with pytest.raises(WorkerDiedError, match="Too many open files"):
            await worker.start()
        assert ended == [worker]
        assert worker._process is not None
        assert worker._process.returncode is not None

    run(work())


def test_the_only_worker_is_replaced_when_there_is_room_again(system: System) -> None:
    async def work() -> None:
        settings = Settings(workers=1, code_sessions=0)
        pool = ProcessPool(settings, books_of(settings))
        await pool.start()
        system.has_memory = False
        (killed,) = pool._workers
        killed.kill()
        await until(lambda: system.refusals >= 2)
        system.has_memory = True
        await until(lambda: not pool.unready)
        assert pool._workers[0] is not killed
        await pool.stop(1)

    run(work())


def test_a_server_whose_workers_cannot_be_started_says_so_and_stops(system: System) -> None:
    async def work() -> None:
        settings = Settings(workers=2, code_sessions=0)
        system.has_memory = False
        with pytest.raises(WorkerDiedError, match="could not be started"):
            await ProcessPool(settings, books_of(settings)).start()

    run(work())


def test_an_owner_gets_a_worker_when_there_is_room_again(system: System) -> None:
    async def work() -> None:
        settings = Settings(workers="auto", code_sessions=0)
        pool = ProcessPool(settings, books_of(settings))
        await pool.start()
        assert pool._own is not None
        system.has_memory = False
        assert await pool._own.open("ann") is None, "the owner shares a worker then"
        assert pool._own.workers == []
        system.has_memory = True
        own = await pool._own.open("ann")
        assert own is not None
        assert own.ready
        await pool.stop(1)

    run(work())


# -- nobody waits for a session with code -----------------------------------------------------------------------


@pytest.mark.parametrize("cancelled", [False, True], ids=["deadline", "cancelled"])
def test_a_process_whose_session_nobody_waits_for_is_ended(system: System, *, cancelled: bool) -> None:
    async def work() -> None:
        settings = Settings(token=SecretStr("a-secret-token"), deadline_s=1e6 if cancelled else 0.2, code_spares=0)
        workers = CodeWorkers(settings, DeviceTimes(), root=False, siblings=list, books=books_of(settings))
        await workers.start()
        opening = asyncio.create_task(workers.open(request_for_a_session()))
        await until(lambda: any(worker.busy for worker in workers._alive))
        (worker,) = workers._alive
        if cancelled:
            opening.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else DeadlineError):
            await opening
        await until(lambda: worker.ended)
        assert not workers._alive
        await workers.stop(0)
        assert not Path(worker.folder).exists()

    run(work())


def test_a_stop_ends_the_process_of_a_session_that_is_being_made(system: System) -> None:
    async def work() -> None:
        settings = Settings(token=SecretStr("a-secret-token"), code_spares=0)
        workers = CodeWorkers(settings, DeviceTimes(), root=False, siblings=list, books=books_of(settings))
        await workers.start()
        opening = asyncio.create_task(workers.open(request_for_a_session()))
        await until(lambda: any(worker.busy for worker in workers._alive))
        (worker,) = workers._alive
        await workers.stop(0)
        assert worker.ended
        with pytest.raises(WorkerDiedError):
            await opening

    run(work())


def test_the_log_has_the_end_of_a_spare_process_and_another_takes_its_place(system: System) -> None:
    async def work() -> None:
        settings = Settings(token=SecretStr("a-secret-token"), code_spares=1)
        workers = CodeWorkers(settings, DeviceTimes(), root=False, siblings=list, books=books_of(settings))
        await workers.start()
        (spare,) = workers._spares
        with capture_logs() as lines:
            os.kill(spare.pid, signal.SIGKILL)
            await until(lambda: spare.ended and workers._spares and workers._spares[0].ready)
        ends = [line for line in lines if line["event"] == "a spare process ended"]
        assert [(line["log_level"], line["pid"]) for line in ends] == [("error", spare.pid)]
        assert "SIGKILL" in ends[0]["reason"]
        assert workers._spares != [spare]
        await workers.stop(0)

    run(work())


class LostTemplate:
    """A template that ends when it has forked and before it has said so.

    Attributes:
        message: what the forked process reads first.
    """

    ended = False
    message: asyncio.Task[bytes]

    async def fork(self, folder: str, fds: tuple[int, ...]) -> ForkedProcess:
        def read(end: socket.socket) -> bytes:
            with end:
                return messages.receive(end)[0]

        forked = socket.socket(fileno=os.dup(fds[0]))
        self.message = asyncio.create_task(asyncio.to_thread(read, forked))
        raise NotReadyError("the template process has ended: try again in a moment")


def test_a_process_whose_template_was_lost_takes_no_message_of_the_one_that_replaces_it(system: System) -> None:
    async def work() -> None:
        settings, forks = Settings(), LostTemplate()
        books = books_of(settings)
        worker = CodeWorker(
            settings, lambda ended: None, DeviceTimes(), None, books, template=cast("template.Template", forks)
        )
        await worker.start()
        assert await forks.message == b"", "its connection ends"
        assert worker.ready
        await worker.stop(GENEROUS_S)
        worker.clean_up()

    run(work())


# -- idle workers of owners -------------------------------------------------------------------------------------


def test_a_worker_that_receives_a_body_is_not_idle(system: System) -> None:
    async def work() -> None:
        settings = Settings(workers="auto", code_sessions=0)
        pool = ProcessPool(settings, books_of(settings))
        await pool.start()
        soon = settings.model_copy(update={"worker_idle_s": 0.0})
        owners = pool._own = OwnerWorkers(soon, books_of(settings), pool._new_worker, pool._spawn)
        worker = await owners.open("ann")
        assert worker is not None
        lease = worker.lease(MIB)  # as for the body of a call to come
        owners.end_idle(lambda owner: 0)
        assert owners.of("ann") is worker
        lease.release()
        owners.end_idle(lambda owner: 0)
        assert owners.of("ann") is None
        await until(lambda: not owners.workers)
        assert pool.restarts == 0
        await pool.stop(1)

    run(work())


def test_a_worker_whose_owner_opens_a_session_is_not_idle(system: System) -> None:
    async def work() -> None:
        settings = Settings(workers="auto", code_sessions=0)
        pool = ProcessPool(settings, books_of(settings))
        await pool.start()
        soon = settings.model_copy(update={"worker_idle_s": 0.0})
        owners = pool._own = OwnerWorkers(soon, books_of(settings), pool._new_worker, pool._spawn)
        opening = asyncio.create_task(pool.call(request_for_a_session()))
        await until(lambda: owners.workers)
        (worker,) = owners.workers
        while not worker.busy:  # it starts, and has started, and is about to be called
            owners.end_idle(lambda owner: pool._opening[owner])
            assert not worker.stopping
            await asyncio.sleep(0)
        owners.end_idle(lambda owner: pool._opening[owner])
        assert owners.of("ann") is worker
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert not pool._opening
        await pool.stop(1)

    run(work())


def test_a_worker_that_starts_is_not_idle_though_nobody_waits_for_it(system: System) -> None:
    async def work() -> None:
        settings = Settings(workers="auto", code_sessions=0)
        pool = ProcessPool(settings, books_of(settings))
        await pool.start()
        soon = settings.model_copy(update={"worker_idle_s": 0.0})
        owners = OwnerWorkers(soon, books_of(settings), pool._new_worker, pool._spawn)
        opening = asyncio.create_task(owners.open("ann"))
        await until(lambda: owners.workers)
        opening.cancel()
        (worker,) = owners.workers
        await asyncio.sleep(0)
        owners.end_idle(lambda owner: 0)
        assert not worker.stopping
        await until(lambda: worker.ready)
        await pool.stop(1)
        await worker.stop(1)

    run(work())


def test_an_owner_shares_a_worker_when_its_own_ends_as_a_session_opens(system: System) -> None:
    async def work() -> None:
        settings = Settings(workers="auto", code_sessions=0)
        pool = ProcessPool(settings, books_of(settings))
        await pool.start()
        assert pool._own is not None
        own = await pool._own.open("ann")
        assert own is not None
        own.stopping = True
        assert await pool._own.open("ann") is None
        opening = asyncio.create_task(pool.call(request_for_a_session()))
        (shared,) = pool._workers
        await until(lambda: shared.busy)
        own.stopping = False
        os.kill(own.pid, signal.SIGKILL)
        await until(lambda: not pool._own or not pool._own.workers)
        assert not opening.done(), "it waits for the shared worker's answer"
        opening.cancel()
        await pool.stop(1)

    run(work())


class Process:
    """A worker that ends when it is let, with a share of the device's memory."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.pid = 0  # the number of no process, as that of one that has just ended
        self.ready = True
        self.busy = False
        self.sessions = 0
        self.may_end = asyncio.Event()

    async def start(self) -> None:
        """Nothing."""

    async def stop(self, grace_s: float) -> None:
        await self.may_end.wait()


def test_a_workers_memory_is_its_own_until_it_has_ended() -> None:
    async def work() -> None:
        settings = Settings(
            workers="auto", worker_idle_s=1e-9, max_device_bytes=400 * MIB, max_owner_bytes=200 * MIB, code_sessions=0
        )

        def new_worker(share: float) -> Worker:
            return cast("Worker", Process(share))

        owners = OwnerWorkers(settings, books_of(settings), new_worker, asyncio.create_task)
        anns = await owners.open("ann")
        assert anns is not None
        assert cast("Process", anns).share == 200 / 400, "its part, and not the whole device"
        assert await owners.open("bob") is None, "100 MiB are left"
        owners.end_idle(lambda owner: 0)
        assert owners.of("ann") is None
        assert owners.workers == [anns], "a stop of the server waits for it"
        assert await owners.open("bob") is None, "it has not ended"
        cast("Process", anns).may_end.set()
        assert owners.remove(anns)
        assert owners.workers == []
        assert await owners.open("bob") is not None

    run(work())


def test_what_became_of_a_session_is_known_while_its_worker_stops(system: System) -> None:
    async def work() -> None:
        settings = Settings(workers=1, code_sessions=0)
        pool = ProcessPool(settings, books_of(settings))
        await pool.start()
        (worker,) = pool._workers
        pool._sessions["s"] = pool._open["s"] = ("ann", worker)
        pool._session_ended("s", "session s was deleted: make a new one")
        worker.stopping = True
        route, parameters = ROUTES.match("GET", "/v1/sessions/s")
        with pytest.raises(GoneError, match="was deleted"):
            await pool.call(RawRequest(route, parameters, "/v1/sessions/s", "ann", SCOPES, "r"))
        await pool.stop(1)

    run(work())


# -- quotas of calls that all workers are asked -----------------------------------------------------------------


class Listing(Process):
    """A worker that lists no sessions, and notes what its owner may have."""

    session = "a" * 32
    silent_s = 0.0

    async def call(self, request: RawRequest, deadline_s: float) -> RawResponse:
        self.quota = request.quota
        return RawResponse(200, [b'{"sessions": []}'])


def test_lists_of_all_workers_come_with_the_owners_quota() -> None:
    async def work() -> None:
        settings = Settings(workers=1, max_owner_bytes=200 * MIB)
        books = books_of(settings)
        pool = ProcessPool(settings, books)
        shared, code = Listing(1.0), Listing(1.0)
        pool._workers = [cast("Worker", shared)]
        opened = {"id": code.session, "device": "cpu", "ttl_s": 600.0, "limits": {}}
        pool._code._taken[code.session] = ("ann", cast("CodeWorker", code), opened)
        books.take_memory(code, [("ann", "cpu", 50 * MIB)])
        route, parameters = ROUTES.match("GET", "/v1/sessions")
        await pool.call(RawRequest(route, parameters, "/v1/sessions", "ann", SCOPES, "r"))
        for worker, elsewhere in ((shared, {"cpu": 50 * MIB}), (code, {})):
            assert worker.quota is not None
            assert (worker.quota.memory_bytes, worker.quota.elsewhere) == (200 * MIB, elsewhere)

    run(work())
