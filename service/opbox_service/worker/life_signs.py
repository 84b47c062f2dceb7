"""LifeSigns: for how long a process has shown no sign of life, as one does that is stopped or hangs."""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["LifeSigns"]

LATE_S = 2.0
"""Seconds between two looks from which on whoever looks was held up itself, and has heard nothing meanwhile."""
QUIET_S = 2.0
"""Seconds before more is asked of the system: the main thread of a process that is well wakes up once a second."""
AT_WORK = (b"R", b"D")
"""States of a thread that has work: it runs or waits for a processor, or for a disk or swapped memory."""


class LifeSigns:
    """Notes a process's signs of life: its messages, its main thread's sleeps, and else its work.

    The first two would not do: a call in C may keep the interpreter, and memory that is swapped out comes back slowly.
    Such a process uses processor time or reads pages, or a thread of it wants to; a stopped one does nothing.
    """

    def __init__(self) -> None:
        self._last = self._looked = time.monotonic()
        self._sleeps: int | None = None
        self._work: tuple[int, ...] | None = None

    def heard(self) -> None:
        """A message has come."""
        self._last = time.monotonic()

    def silent_s(self, pid: int) -> float:
        """Return the seconds since the last sign of life of process `pid`; 0 while it may be well.

        Called about once a second: what the process does between two calls shows.
        """
        now = time.monotonic()
        if now - self._looked > LATE_S:
            self._last += now - self._looked
        self._looked = now
        slept, self._sleeps = self._sleeps, _sleeps_of(pid)
        if self._sleeps != slept:
            self._last = now
        if now - self._last <= QUIET_S:
            self._work = None
            return 0.0
        before, self._work = self._work, _work_of(pid)
        if self._work is None or (before is not None and self._work != before):
            self._last = now
        return 0.0 if before is None else now - self._last


def _sleeps_of(pid: int) -> int | None:
    """How often the main thread of a process has gone to sleep; None where that cannot be read."""
    try:
        text = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    return int(text.partition(b"\nvoluntary_ctxt_switches:")[2].split(None, 1)[0])


def _work_of(pid: int) -> tuple[int, ...] | None:
    """The processor ticks and pages that a process has used; None where a thread is at work, or none can be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        tasks = [file.read_bytes().rpartition(b")")[2].split()[0] for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return None
    # Faults that read a page from a disk, and ticks in the program and in the kernel.
    return None if any(state in AT_WORK for state in tasks) else tuple(int(fields[at]) for at in (9, 11, 12))
