"""Measures the API process's loop lag: the time by which slow callbacks delay all requests.

A timer is set every 5 ms, for as long as requests are answered and some seconds beyond; an idle server sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["LoopLag"]

PERIOD_S = 0.005
BEYOND_S = 2.0
"""Seconds to measure after the last request, while buffers are freed."""


class LoopLag:
    """Measures how late the event loop runs its callbacks.

    Args:
        in_flight: how many requests are being answered.
        observe: takes each lag in seconds.

    Attributes:
        longest: the longest lag, in seconds.
        longest_busy: the same, without what the loop's thread had no processor for: other programs' work, and a lock
            that it waited for, are not in it.
    """

    def __init__(self, in_flight: Callable[[], int], observe: Callable[[float], None] = lambda seconds: None) -> None:
        self.longest = 0.0
        self.longest_busy = 0.0
        self._in_flight = in_flight
        self._observe = observe
        self._watching = False
        self._until = 0.0
        self._set_at = self._busy_at = 0.0

    def request_began(self) -> None:
        """Start measuring, unless it is running already."""
        if not self._watching:
            self._watching = True
            self._set(asyncio.get_running_loop())

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        # The loop's own clock stands still while callbacks run.
        self._set_at, self._busy_at = time.monotonic(), time.thread_time()
        loop.call_later(PERIOD_S, self._came, loop)

    def _came(self, loop: asyncio.AbstractEventLoop) -> None:
        now = time.monotonic()
        lag = max(0.0, now - self._set_at - PERIOD_S)
        self.longest = max(self.longest, lag)
        self.longest_busy = max(self.longest_busy, min(lag, time.thread_time() - self._busy_at))
        self._observe(lag)
        if self._in_flight():
            self._until = now + BEYOND_S
        self._watching = now < self._until
        if self._watching:
            self._set(loop)
