"""Streams that are late: what is queued on them runs when somebody waits for it, and no earlier.

A real device may run it at any moment between the two. Whoever reads before waiting gets what was there before, and
whoever changes what queued work has yet to read changes its result: every time, not once in a thousand runs. Streams in
`hasty` are the opposite: they run as soon as the events that they wait for have come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import TypeAlias

__all__ = ["Mark", "Streams"]

Mark: TypeAlias = tuple[int, int]
"""A stream, and how much of what was queued on it."""


class Streams:
    """What each stream has still to do.

    Attributes:
        hasty: streams that are as early as they may be.
    """

    def __init__(self) -> None:
        self.hasty: set[int] = set()
        self._work: dict[int, deque[Callable[[], None] | Mark]] = {}
        self._queued: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._marks: dict[int, Mark] = {}
        self._at_work: list[int] = []
        self._lock = RLock()

    def queue(self, stream: int, work: Callable[[], None] | Mark) -> None:
        """Work, or a mark that is to be reached before what follows."""
        with self._lock:
            self._work.setdefault(stream, deque()).append(work)
            self._queued[stream] = self._queued.get(stream, 0) + 1
            self._hurry()

    def record(self, event: int, stream: int) -> None:
        """The event comes when the stream has done what is queued on it now."""
        self._marks[event] = stream, self._queued.get(stream, 0)

    def wait(self, stream: int, event: int) -> None:
        """What follows on the stream runs behind the event, as it was recorded last."""
        if event in self._marks:
            self.queue(stream, self._marks[event])

    def reach(self, event: int) -> None:
        """Run what an event waits for."""
        if event in self._marks:
            self._run(self._marks[event])

    def come(self, event: int) -> bool:
        """Whether an event has come."""
        stream, count = self._marks.get(event, (0, 0))
        return self._ended.get(stream, 0) >= count

    @property
    def waiting(self) -> int:
        """How much of what was queued has not run."""
        return sum(map(len, self._work.values()))

    def finish(self, stream: int | None = None) -> None:
        """Run all that is queued on a stream, or on all."""
        for number in list(self._work) if stream is None else [stream]:
            self._run((number, self._queued.get(number, 0)))

    def _run(self, mark: Mark) -> None:
        stream, count = mark
        with self._lock:
            while self._ended.get(stream, 0) < count:
                self._next(stream)
            self._hurry()

    def _next(self, stream: int) -> None:
        work = self._work[stream].popleft()
        self._at_work.append(stream)
        try:
            if isinstance(work, tuple):
                self._run(work)
            else:
                work()
        finally:
            self._at_work.pop()
            self._ended[stream] = self._ended.get(stream, 0) + 1

    def _hurry(self) -> None:
        """Let hasty streams go on as far as nothing that they wait for is missing."""
        for stream in (self._work.keys() & self.hasty) - set(self._at_work):
            work = self._work[stream]
            while work and not (isinstance(work[0], tuple) and self._ended.get(work[0][0], 0) < work[0][1]):
                self._next(stream)
