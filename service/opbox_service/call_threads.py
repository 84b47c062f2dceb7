"""CallThreads: the threads that an engine's calls run on in the API process.

A ThreadPoolExecutor makes a Future with a condition for each call, and nobody waits for those: calls answer by
themselves. Making them cost more than the call was handed over for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeAlias

import structlog

__all__ = ["CallThreads"]

Work: TypeAlias = "Callable[[], object]"

_log = structlog.get_logger("opbox.engine")


class CallThreads:
    """Runs functions on at most `most` threads, which are started when they are needed and stay until `shutdown`.

    Args:
        most: how many threads.
        name: the beginning of their names.

    Example:
        >>> threads = CallThreads(2, "opbox-call")
        >>> threads.submit(work)
        >>> threads.shutdown()
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = 0
        """Number of idle threads minus waiting work."""
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, work: Work) -> None:
        """Run `work` in a thread.

        Raises:
            RuntimeError: `shutdown` has been called.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("expected threads that take calls, got some that have been shut down")
            self._free -= 1
            if self._free < 0 and len(self._threads) < self._most:
                self._start()
            self._queue.put(work)

    def shutdown(self) -> None:
        """Refuse further work and wait until everything submitted has run."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no more
            if not self._threads:
                self._free += 1
                raise
            return  # one of those that there are will take it
        self._free += 1
        self._threads.append(thread)

    def _serve(self) -> None:
        take = self._queue.get
        while True:
            work = take()
            if work is None:
                return
            try:
                work()
            except BaseException:  # the thread is the pool's, whatever a call comes to
                _log.error("a call failed behind its answer", exc_info=True)
            del work  # with what it knows of, its request's body among that
            with self._lock:
                self._free += 1
