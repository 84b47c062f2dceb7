"""DecodingThreads: threads that run one function for many items ahead of whoever takes the results."""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

from opbox_protocol.signal_shield import shielded

from ..forks import AfterFork
from ..freed import Freed
from ..gate import Gate

__all__ = ["DecodingThreads", "DecodingWork", "usable_cores"]

R = TypeVar("R")
LAST_IMAGE_S = 5.0
"""Seconds that the program's end waits for a thread to finish its item."""


def usable_cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class DecodingWork(Generic[R]):
    """A function's results for some items, as threads compute them."""

    def __init__(self, function: Callable[[Any], R], items: Sequence[Any]) -> None:
        self._function = function
        self._items = items
        self.begin()

    def begin(self) -> None:
        """Start with no result computed."""
        self._results: list[Any] = [None] * len(self._items)
        self._errors: list[BaseException | None] = [None] * len(self._items)
        self._left = len(self._items)
        self._counting = threading.Lock()
        self.done = Gate()
        if not self._items:
            self.done.open()

    def run(self, position: int) -> None:
        """Compute one result, in a thread."""
        try:
            self._results[position] = self._function(self._items[position])
        except BaseException as error:  # raised where the results are taken
            self._errors[position] = error
        with self._counting:
            self._left -= 1
            last = not self._left
        if last:
            self.done.open()

    def positions(self) -> range:
        """The positions of the items."""
        return range(len(self._items))

    def results(self) -> list[R]:
        """The results, once all are there.

        Raises: what the function raised for the first item that failed.
        """
        self.done.wait()
        for error in self._errors:
            if error is not None:
                raise error
        return self._results


_Tasks: TypeAlias = "queue.SimpleQueue[tuple[DecodingWork[Any], int] | None]"


class DecodingThreads(Freed, AfterFork):
    """Threads that are there until this object is gone. A forked child gets threads of its own.

    Args:
        count: how many; at least one, at most one for each core.

    Example:
        >>> DecodingThreads(4).begin(decode, files).results()
    """

    def __init__(self, count: int) -> None:
        AfterFork.__init__(self)
        self.count = max(1, min(count, usable_cores()))
        self._pending: WeakSet[DecodingWork[Any]] = WeakSet()
        self._reset()
        _at_work.add(self)

    def _reset(self) -> None:
        self._tasks: _Tasks = queue.SimpleQueue()
        self._started: list[threading.Thread] = []
        self.__del__ = partial(self._tasks.put, None)

    def begin(self, function: Callable[[Any], R], items: Sequence[Any]) -> DecodingWork[R]:
        """Start calling a function for each item; return at once."""
        work = DecodingWork(function, items)
        shielded(self._submit, work)
        return work

    def _submit(self, work: DecodingWork[Any]) -> None:
        while len(self._started) < self.count:
            thread = threading.Thread(target=_run, args=(self._tasks,), daemon=True, name="opbox-decode")
            self._started.append(thread)
            thread.start()
        self._pending.add(work)
        for position in work.positions():
            self._tasks.put((work, position))

    def end(self) -> None:
        """Let the threads finish what they are at, and nothing more; wait for that."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._tasks.get_nowait()
        self._tasks.put(None)
        for thread in self._started:
            thread.join(LAST_IMAGE_S)

    def become_childs(self) -> None:
        """Run what the parent's threads had not finished by threads of this process."""
        self._reset()
        for work in list(self._pending):
            if not work.done.is_open:
                work.begin()
                self._submit(work)


def _run(tasks: _Tasks) -> None:
    while (task := tasks.get()) is not None:
        work, position = task
        work.run(position)
        del task, work
    tasks.put(None)  # for the next thread


_at_work: WeakSet[DecodingThreads] = WeakSet()


def _end_all() -> None:
    """End all threads before Python does: one that is then in a library's C++ would abort the program."""
    for threads in list(_at_work):
        threads.end()


atexit.register(_end_all)
