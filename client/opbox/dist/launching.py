"""Starts the workers of a training on this machine, and ends all of them when one fails.

A worker is a program with a session of its own, which may be on another server; it computes little itself. So all of
them run here, whichever machines their servers are on.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import secrets
import subprocess
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

from opbox_protocol import routes
from opbox_protocol.errors import MXNetError, PeerLostError

from .. import connection
from ..base import value_text
from .rendezvous import VARIABLE, WorkerPlace, Rendezvous

__all__ = ["GRACE_S", "launch", "run_program"]

GRACE_S = 30.0
"""Seconds that the other workers have to end by themselves when one has failed."""
KILL_S = 5.0
LOOK_S = 0.05
MAX_WORKERS = 256
_log = logging.getLogger(__name__)
_environment = threading.Lock()


class LaunchedWorker(Protocol):
    """A process that can be watched and ended."""

    def status(self) -> int | None:
        """Its exit status; None while it runs."""

    def terminate(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it."""

    def reason(self) -> str:
        """Why it has failed."""


Start = Callable[[int, Mapping[str, str]], LaunchedWorker]


def launch(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    workers: int = 2,
    urls: Sequence[str] = (),
    restarts: int = 0,
    min_workers: int | None = None,
) -> list[Any]:
    """Run a function in several processes, each a worker with a session of its own; wait for all of them.

    Args:
        fn: a function of a module or a script, which processes that are started anew can import. A script calls this
            under `if __name__ == "__main__":`.
        args: its arguments, the same in all workers.
        workers: their number.
        urls: servers, which the workers use in turn; by default that of OPBOX_URL, or an engine in each process.
        restarts: how often all are started again after one has failed. `fn` goes on from a checkpoint of its own.
        min_workers: with how many of them at least, when some have failed; by default all are started again.

    Returns:
        what each worker's call returned, in the order of ranks.

    Raises:
        MXNetError: a worker failed; names its rank.

    Example:
        >>> mx.dist.launch(train, ("data/",), workers=4)
    """
    if not callable(fn):
        raise TypeError(f"launch: fn: expected a function, got {value_text(fn)}")
    pipes: dict[int, Connection] = {}
    context = multiprocessing.get_context("spawn")

    def start(rank: int, variables: Mapping[str, str]) -> LaunchedWorker:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_call, args=(fn, tuple(args), sender), name=f"opbox-worker-{rank}")
        with _variables(variables):
            process.start()
        sender.close()
        pipes[rank] = receiver
        return _Called(process, receiver)

    started = _run(start, workers, urls, restarts, min_workers)
    return [worker.result for worker in started if isinstance(worker, _Called)]


def run_program(
    command: Sequence[str],
    *,
    workers: int = 2,
    urls: Sequence[str] = (),
    restarts: int = 0,
    min_workers: int | None = None,
    write: Callable[[str], object] = print,
) -> None:
    """Run a program several times at once, each a worker; what they print comes with their rank before each line.

    Args:
        command: the program and its arguments.
        workers, urls, restarts, min_workers: as of `launch`.
        write: takes a line.

    Raises:
        MXNetError: a worker failed; names its rank.
    """

    def start(rank: int, variables: Mapping[str, str]) -> LaunchedWorker:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
        except OSError as error:
            raise MXNetError(f"{command[0]}: expected a program, got {error.strerror}") from error
        return _Program(process, rank, write)

    _run(start, workers, urls, restarts, min_workers)


# -- all workers ---------------------------------------------------------------------------------------------------------


def _run(start: Start, workers: int, urls: Sequence[str], restarts: int, min_workers: int | None) -> list[LaunchedWorker]:
    """Start all workers and wait for them, again when one fails; those of the last time."""
    for name, number, least in (("workers", workers, 1), ("restarts", restarts, 0)):
        if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= MAX_WORKERS:
            raise ValueError(f"{name}: expected a number from {least} to {MAX_WORKERS}, got {number!r}")
    smallest = workers if min_workers is None else min_workers
    if not isinstance(smallest, int) or not 1 <= smallest <= workers:
        raise ValueError(f"min_workers: expected a number from 1 to {workers}, got {min_workers!r}")
    size = workers
    for restart in range(restarts + 1):
        try:
            return _run_once(start, size, urls, restart)
        except _WorkerFailed as failure:
            if restart == restarts:
                raise MXNetError(str(failure), detail={"rank": failure.rank}) from None
            size = max(smallest, size - 1)
            _log.warning("%s: starting again with %d workers (%d of %d)", failure, size, restart + 1, restarts)
    raise AssertionError


class _WorkerFailed(Exception):
    def __init__(self, rank: int, size: int, reason: str) -> None:
        super().__init__(f"rank {rank} of {size} has ended: {reason}")
        self.rank = rank


def _run_once(start: Start, size: int, urls: Sequence[str], restart: int) -> list[LaunchedWorker]:
    secret = secrets.token_bytes(32)
    rendezvous = Rendezvous(size, secret, _end_session)
    running: dict[int, LaunchedWorker] = {}
    try:
        for rank in range(size):
            place = WorkerPlace(rank, size, rendezvous.host, rendezvous.port, secret.hex(), restart)
            variables = {VARIABLE: place.dump()}
            if urls:
                variables["OPBOX_URL"] = urls[rank % len(urls)]
            running[rank] = start(rank, variables)
        workers = list(running.values())
        failure = _watch(running, rendezvous, size)
        if failure is not None:
            raise failure
        return workers
    finally:
        _end(list(running.values()))
        rendezvous.close()


def _watch(running: dict[int, LaunchedWorker], rendezvous: Rendezvous, size: int) -> _WorkerFailed | None:
    """Wait until all workers have ended, or one has failed and the others had their time; the failure, if any."""
    failure: _WorkerFailed | None = None
    until = float("inf")
    while running and time.monotonic() < until:
        ended = {rank: worker for rank, worker in running.items() if worker.status() is not None}
        for rank, worker in ended.items():
            del running[rank]
            status = worker.status()
            rendezvous.lose(rank, "it has returned" if not status else worker.reason())
            if status and failure is None:
                failure = _WorkerFailed(rank, size, worker.reason())
                until = time.monotonic() + GRACE_S
        if not ended:
            time.sleep(LOOK_S)
    return failure


def _end(workers: Sequence[LaunchedWorker]) -> None:
    """End workers that still run."""
    left = [worker for worker in workers if worker.status() is None]
    for worker in left:
        worker.terminate()
    until = time.monotonic() + KILL_S
    while left and time.monotonic() < until:
        left = [worker for worker in left if worker.status() is None]
        time.sleep(LOOK_S)
    for worker in left:
        worker.kill()


def _end_session(session: Mapping[str, Any]) -> None:
    """End a lost worker's session, so that the others' servers learn of it."""
    url = str(session.get("url", ""))
    if "://" not in url:
        return  # an engine in that process, which has ended with it
    with contextlib.suppress(MXNetError):
        transport = connection.open_transport(url)
        try:
            transport.call("DELETE", routes.SESSION.format(id=session["id"]))
        finally:
            transport.close()


# -- one worker ----------------------------------------------------------------------------------------------------------


class _Called:
    """A process that calls a function."""

    def __init__(self, process: Any, receiver: Connection) -> None:
        self._process = process
        self._receiver = receiver
        self._answer: tuple[bool, Any] | None = None

    @property
    def result(self) -> Any:
        """What the function returned."""
        return self._answer[1] if self._answer is not None else None

    def status(self) -> int | None:
        if self._answer is None:
            with contextlib.suppress(EOFError, OSError):
                if self._receiver.poll():
                    self._answer = self._receiver.recv()
        code: int | None = self._process.exitcode
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def reason(self) -> str:
        if self._answer is not None and not self._answer[0]:
            return str(self._answer[1])
        return _status_text(self._process.exitcode)


def _call(fn: Callable[..., Any], args: tuple[Any, ...], sender: Connection) -> None:
    """What a process of `launch` does."""
    try:
        result = fn(*args)
    except Exception as error:
        if not isinstance(error, PeerLostError):
            traceback.print_exc()
        sender.send((False, f"{type(error).__name__}: {error}"))
        raise SystemExit(1) from None
    finally:
        connection.disconnect()
    sender.send((True, result))


class _Program:
    """A process that runs a program."""

    def __init__(self, process: subprocess.Popen[str], rank: int, write: Callable[[str], object]) -> None:
        self._process = process
        self._reader = threading.Thread(target=self._pass_on, args=(rank, write), daemon=True)
        self._reader.start()

    def _pass_on(self, rank: int, write: Callable[[str], object]) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                write(f"[{rank}] {line.rstrip()}")

    def status(self) -> int | None:
        code = self._process.poll()
        if code is not None:
            self._reader.join(1)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def reason(self) -> str:
        return _status_text(self._process.returncode)


def _status_text(code: int | None) -> str:
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit status {code}"


@contextlib.contextmanager
def _variables(variables: Mapping[str, str]) -> Iterator[None]:
    """The block's processes start with these variables."""
    with _environment:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
