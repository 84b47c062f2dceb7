"""StreamThread: runs what an engine in the user's own process has answered before it was done."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from opbox_ops.cpu.runtime.gomp_threads import release_threads

__all__ = ["StreamThread"]


class StreamThread:
    """A thread that runs work in its order. It starts with the first.

    Threads of `concurrent.futures` take no work any more once the interpreter is about to end, when the last batches of
    a program come. Nobody waits for this one at the end of the process but `close`.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` behind what came before; in the calling thread where an interpreter that ends starts no thread."""
        self._work.put(work)
        with self._lock:
            started = self._thread is not None or self._start()
        if not started:
            with suppress(queue.Empty):
                while (waiting := self._work.get_nowait()) is not None:
                    waiting()

    def _start(self) -> bool:
        """Start the thread, and return whether it runs."""
        thread = threading.Thread(target=self._run, name="opbox-stream", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # from Python 3.12 on
            return False
        self._thread = thread
        return True

    def wait_until_idle(self) -> None:
        """Wait until what has come so far is done."""
        if self._thread is not None and self._thread is not threading.current_thread():
            idle = threading.Event()
            self.submit(idle.set)
            idle.wait()

    def close(self) -> None:
        """Wait until all of it is done, and end the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._work.put(None)
            thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            finally:
                if self._work.empty():
                    # With more of them than cores about, those of the user's thread would sleep sooner.
                    release_threads()
