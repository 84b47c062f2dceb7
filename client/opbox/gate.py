"""Gate: threads wait until it opens, once and for good."""

from __future__ import annotations

import contextlib
from threading import Lock

from opbox_protocol.signal_shield import interruptibly

__all__ = ["Gate"]


class Gate:
    """Threads wait until it opens, once and for good.

    Each that waits has a lock of its own: an interrupt may land anywhere in its wait, and disturbs nobody else. An
    event of `threading` has one lock for all, which an interrupt can leave locked.
    """

    __slots__ = ("_waiting", "is_open")

    def __init__(self) -> None:
        self.is_open = False
        self._waiting: list[Lock] = []

    def open(self) -> None:
        """Open the gate for all threads. Safe to call again, from any thread."""
        self.is_open = True
        if self._waiting:
            with contextlib.suppress(IndexError):  # another thread opens it too
                while self._waiting:
                    self._waiting.pop().release()

    def wait(self) -> None:
        """Wait until it is open."""
        if self.is_open:
            return
        lock = Lock()
        lock.acquire()
        self._waiting.append(lock)
        if not self.is_open:
            interruptibly(lock.acquire)
