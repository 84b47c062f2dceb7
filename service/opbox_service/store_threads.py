"""Threads that read and write the files of checkpoints and datasets, apart from those that other requests need."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from opbox_protocol.errors import DeadlineError, MXNetError, NotReadyError

from .call_threads import CallThreads

__all__ = ["STORE_S", "GoOn", "StoreThreads"]

STORE_S = 120.0
"""Seconds that a request to a store may take, its wait for the owner's earlier ones included."""
THREADS = 8
"""Number of owners whose requests run at a time; they wait for the disk rather than for a processor."""
GoOn: TypeAlias = "Callable[[], None]"
"""Raises an exception when the work is to stop."""
T = TypeVar("T")


class StoreJob:
    """One piece of work, from its request to its end.

    Args:
        work: what to do; called with what raises an exception when it is to stop.
        fd: closed when the work has ended, or will not begin; None where it needs none.
        discard: takes the result when nobody waits for it any more.
    """

    __slots__ = ("_discard", "_error", "_fd", "begun", "done", "work")

    def __init__(self, work: Callable[[GoOn], Any], fd: int | None, discard: Callable[[Any], None]) -> None:
        self.work = work
        self._discard = discard
        self.done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._fd = fd
        self._error: MXNetError | None = None
        self.begun = False

    def stop(self, error: MXNetError) -> None:
        """Have it end with `error`, at its next look."""
        self._error = error
        self.fail(error)
        if not self.begun:
            self.close()

    def go_on(self) -> None:
        """Raise the error that it was stopped with."""
        if self._error is not None:
            raise self._error

    def succeed(self, result: Any) -> None:
        """Hand its result to whoever waits."""
        if self.done.done():
            self._discard(result)
        else:
            self.done.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Hand the error that it ended with to whoever waits."""
        if not self.done.done():
            self.done.set_exception(error)

    def close(self) -> None:
        """Close the descriptor."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


class StoreThreads:
    """Runs requests to stores. Those of one owner run one behind the other, so that nobody else waits for them.

    A thread that waits for a broken disk does not hold up the end of the process.

    Args:
        threads: how many.
        seconds: that a request may take.
    """

    def __init__(self, threads: int = THREADS, seconds: float = STORE_S) -> None:
        self._threads = CallThreads(threads, "opbox-store")
        self._seconds = seconds
        self._waiting: dict[tuple[str, bool], deque[StoreJob]] = {}

    async def run(
        self,
        owner: str,
        subject: str,
        work: Callable[[GoOn], T],
        *,
        writes: bool,
        fd: int | None = None,
        discard: Callable[[T], None] = lambda result: None,
    ) -> T:
        """Run `work` in a thread and return its result.

        Args:
            owner: whose; reading and writing requests of an owner do not wait for each other.
            subject: what it is about, for errors.
            work: called with a function that it calls often, and which raises an exception when it is to stop.
            writes: whether it writes.
            fd: a descriptor for `work`, which this closes.
            discard: takes the result when nobody waits for it any more.

        Raises:
            DeadlineError: it was not done in time.
            NotReadyError: the system has no thread for it.
        """
        loop, key, job = asyncio.get_running_loop(), (owner, writes), StoreJob(work, fd, discard)
        begun = time.monotonic()
        late = DeadlineError(f"{subject}: expected the disk within {self._seconds:g} s, got no answer")
        timer = loop.call_later(self._seconds, job.stop, late)
        if key in self._waiting:
            self._waiting[key].append(job)
        else:
            self._waiting[key] = deque()
            self._begin(key, job)
        try:
            result: T = await job.done
            return result
        except asyncio.CancelledError:
            seconds = time.monotonic() - begun
            job.stop(NotReadyError(f"{subject}: the server stops, and has waited for the disk for {seconds:.1f} s"))
            raise
        finally:
            timer.cancel()

    def _begin(self, key: tuple[str, bool], job: StoreJob) -> None:
        loop, job.begun = asyncio.get_running_loop(), True

        def work() -> None:
            settle: Callable[[], None]
            try:
                job.go_on()
                settle = partial(job.succeed, job.work(job.go_on))
            except BaseException as error:
                settle = partial(job.fail, error)
            finally:
                job.close()
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever waited
                loop.call_soon_threadsafe(self._ended, key, settle)

        try:
            self._threads.submit(work)
        except RuntimeError:
            job.close()
            job.fail(NotReadyError("stored files: the system has no thread left: try again later"))
            self._next(key)

    def _ended(self, key: tuple[str, bool], settle: Callable[[], None]) -> None:
        settle()
        self._next(key)

    def _next(self, key: tuple[str, bool]) -> None:
        """Begin the owner's next job that somebody waits for."""
        jobs = self._waiting[key]
        while jobs:
            job = jobs.popleft()
            if not job.done.done():
                self._begin(key, job)
                return
        del self._waiting[key]
