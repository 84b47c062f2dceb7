"""An allowance of events: so many at once, and so many in a second."""

from __future__ import annotations

import time

__all__ = ["Allowance"]


class Allowance:
    """Grows with time up to a maximum; every event takes one of it.

    Args:
        burst: the maximum.
        per_s: growth in a second.
        first: what there is at the beginning; by default the maximum.
    """

    def __init__(self, burst: float, per_s: float, first: float | None = None) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = burst if first is None else first
        self._counted = time.monotonic()

    def add(self, count: float) -> None:
        """Allow so many more."""
        self._left = min(self._burst, self._left + count)

    def take(self) -> bool:
        """Return whether an event is allowed, which counts it."""
        now = time.monotonic()
        self.add((now - self._counted) * self._per_s)
        self._counted = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
