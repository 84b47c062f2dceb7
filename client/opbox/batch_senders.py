"""BatchSenders: the threads that send a session's batches, as many as the round trip to the engine needs."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["MAX_SENDERS", "BatchSenders"]

MAX_SENDERS = 8
"""Maximum number of batches that travel at a time."""
LONG_S = 0.004
"""Seconds on the link from which on more than the first senders are worth their threads."""
WATCHED = 8
"""Number of batches whose shortest time on the link is taken for the round trip."""


class BatchSenders:
    """Threads that send batches; another is started where the round trip is long and batches wait for it.

    Args:
        work: what each does until it is told to end.
        name: of the device, for the threads' names.
        count: how many there are from the start.
        grows: whether there may be more.
    """

    def __init__(self, work: Callable[[], None], name: str, count: int, *, grows: bool) -> None:
        self._work, self._name, self._grows = work, name, grows
        self._threads: list[threading.Thread] = []
        self._seconds: deque[float] = deque(maxlen=WATCHED)
        for _ in range(count):
            self._start()

    def __len__(self) -> int:
        return len(self._threads)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"opbox-{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def answered(self, link_s: float) -> bool:
        """Note how long a batch and its answer were on the link; return whether another sender is worth its thread."""
        self._seconds.append(link_s)
        return (
            self._grows
            and len(self._seconds) == WATCHED
            and len(self._threads) < MAX_SENDERS
            and min(self._seconds) > LONG_S
        )

    def grow(self) -> None:
        """Start another, if there may be more. The caller lets one thread do this at a time."""
        if len(self._threads) < MAX_SENDERS:
            self._seconds.clear()
            self._start()

    def join(self, timeout: float) -> None:
        """Wait until they have ended, for so many seconds each."""
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(timeout)
