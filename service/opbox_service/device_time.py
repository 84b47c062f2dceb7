"""Seconds that calls waited for a device and ran on it, summed by owner and device, for the metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeAlias

__all__ = ["DeviceTime", "DeviceTimeRow", "DeviceTimes", "checked_rows"]

DeviceTimeRow: TypeAlias = "tuple[str, str, float, float, int]"
"""Owner, device, seconds of waiting, seconds of running, number of runs."""
DAY_S = 86_400.0


@dataclass(slots=True)
class DeviceTime:
    """Waiting and running times of one owner on one device.

    Attributes:
        queue_s: seconds that runs waited for their turn.
        compute_s: seconds that they took, with what copies their results out.
        runs: how many.
    """

    queue_s: float = 0.0
    compute_s: float = 0.0
    runs: int = 0


class DeviceTimes:
    """The sums of an engine, or of a server's engines. Safe to use from many threads."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], DeviceTime] = {}
        self._untaken_s = 0.0
        self._lock = Lock()

    def add(self, owner: str, device: str, queue_s: float, compute_s: float, runs: int = 1) -> None:
        """Count a run of an owner's on a device."""
        with self._lock:
            sums = self._sums.get((owner, device))
            if sums is None:
                sums = self._sums[owner, device] = DeviceTime()
            sums.queue_s += queue_s
            sums.compute_s += compute_s
            sums.runs += runs
            self._untaken_s += compute_s

    def take(self, least_s: float = 0.0) -> list[DeviceTimeRow]:
        """The sums since the last time, for `add_rows` elsewhere; none while all runs together took less than that."""
        with self._lock:
            if self._untaken_s < least_s:
                return []
            taken, self._sums, self._untaken_s = self._sums, {}, 0.0
        return [(owner, device, sums.queue_s, sums.compute_s, sums.runs) for (owner, device), sums in taken.items()]

    def add_rows(self, rows: Any) -> None:
        """Count the times that a worker reports, rows as `take` gives them; ValueError for others."""
        for row in checked_rows(rows):
            self.add(*row)

    def sums(self) -> dict[tuple[str, str], DeviceTime]:
        """The sums by owner and device."""
        with self._lock:
            return dict(self._sums)


def checked_rows(rows: Any) -> Iterable[DeviceTimeRow]:
    """Rows as `DeviceTimes.take` gives them; ValueError for others."""
    for row in rows:
        owner, device, queue_s, compute_s, runs = row
        numbers = (queue_s, compute_s, runs)
        if not (isinstance(owner, str) and isinstance(device, str) and type(runs) is int):
            raise ValueError(f"expected an owner, a device and sums, got {row!r:.100}")
        if not all(type(number) in (int, float) and math.isfinite(number) and number >= 0 for number in numbers):
            raise ValueError(f"expected seconds and a number of runs, got {row!r:.100}")
        yield owner, device, min(queue_s, DAY_S), min(compute_s, DAY_S), min(runs, 1 << 20)
