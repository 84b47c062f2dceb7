"""A program's own marks in its profile: tasks, frames, events, counters, instants."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Literal

from opbox_protocol.errors import MXNetError

from ..base import value_text
from .recording import RECORDING, now_us

__all__ = ["Counter", "Domain", "Event", "Frame", "Marker", "Task"]

_SCOPES = {"global": "g", "process": "p", "thread": "t", "task": "t", "marker": "t"}
_numbers = itertools.count(1)


class Domain:
    """A group of marks: the category that they have in the trace.

    Example:
        >>> domain = mx.profiler.Domain("input")
        >>> decoding = domain.new_task("decoding")
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name

    def new_task(self, name: str) -> Task:
        """A task of this domain."""
        return Task(self, name)

    def new_frame(self, name: str) -> Frame:
        """A frame of this domain."""
        return Frame(self, name)

    def new_counter(self, name: str, value: int | None = None) -> Counter:
        """A counter of this domain, with a first value or none."""
        return Counter(self, name, value)

    def new_marker(self, name: str) -> Marker:
        """A marker of this domain."""
        return Marker(self, name)


class _Lasting:
    """A mark with a beginning and an end; what is stopped before it was started leaves nothing."""

    def __init__(self, category: str, name: str) -> None:
        self.name = name
        self._category = category
        self._began: float | None = None

    def __str__(self) -> str:
        return self.name

    def start(self) -> None:
        """Begin; another beginning before the end takes this one's place."""
        self._began = now_us()

    def stop(self) -> None:
        """End: it is in the profile, if that runs."""
        began, self._began = self._began, None
        if began is None or not RECORDING.active:
            return
        ended = now_us()
        common = {"name": self.name, "cat": self._category, "id": next(_numbers), **_place()}
        RECORDING.note({**common, "ph": "b", "ts": began})
        RECORDING.note({**common, "ph": "e", "ts": ended})
        if RECORDING.aggregate:
            RECORDING.statistics.add(self._category, self.name, (ended - began) / 1000)


class Task(_Lasting):
    """A piece of work of the program's; see `start` and `stop`.

    Example:
        >>> task = mx.profiler.Task(mx.profiler.Domain("input"), "decoding")
        >>> task.start(); decode(); task.stop()
    """

    def __init__(self, domain: Domain, name: str) -> None:
        super().__init__(domain.name, name)


class Frame(_Lasting):
    """A frame of what the program shows or computes again and again: in a category of its own, "input,frame"."""

    def __init__(self, domain: Domain, name: str) -> None:
        super().__init__(f"{domain.name},frame", name)


class Event(_Lasting):
    """A piece of work of no domain: in the category "event"."""

    def __init__(self, name: str) -> None:
        super().__init__("event", name)


class Counter:
    """A number that changes: its values are in the profile at their times.

    Raises:
        ValueError: a value that is no integer.

    Example:
        >>> left = mx.profiler.Counter(mx.profiler.Domain("input"), "batches left", 100)
        >>> left -= 1
    """

    def __init__(self, domain: Domain, name: str, value: int | None = None) -> None:
        self.name = name
        self._category = domain.name
        self._value = 0
        if value is not None:
            self.set_value(value)

    def __str__(self) -> str:
        return self.name

    def set_value(self, value: int) -> None:
        """Set it."""
        self._value = int(value)
        if not RECORDING.active:
            return
        RECORDING.note(
            {
                "name": self.name,
                "cat": self._category,
                "ph": "C",
                "ts": now_us(),
                "args": {self.name: self._value},
                **_place(),
            }
        )
        if RECORDING.aggregate:
            RECORDING.statistics.add_value(self._category, self.name, self._value)

    def increment(self, delta: int = 1) -> None:
        """Add to it."""
        self.set_value(self._value + int(delta))

    def decrement(self, delta: int = 1) -> None:
        """Subtract from it."""
        self.set_value(self._value - int(delta))

    def __iadd__(self, delta: int) -> Counter:
        self.increment(delta)
        return self

    def __isub__(self, delta: int) -> Counter:
        self.decrement(delta)
        return self


class Marker:
    """An instant: in the category "input,instant_marker" of a domain "input".

    Example:
        >>> mx.profiler.Marker(mx.profiler.Domain("input"), "epoch ends").mark()
    """

    def __init__(self, domain: Domain, name: str) -> None:
        self.name = name
        self.domain = domain

    def mark(self, scope: Literal["global", "process", "thread", "task", "marker"] = "process") -> None:
        """Mark now.

        Raises:
            MXNetError: another scope.
        """
        if scope not in _SCOPES:
            raise MXNetError(f"mark: scope: expected one of {', '.join(_SCOPES)}, got {value_text(scope)}")
        if not RECORDING.active:
            return
        category = f"{self.domain.name},instant_marker"
        RECORDING.note({"name": self.name, "cat": category, "ph": "i", "ts": now_us(), "s": _SCOPES[scope], **_place()})
        if RECORDING.aggregate:
            RECORDING.statistics.category(category)


def _place() -> dict[str, int]:
    """This process and thread, as an event has them."""
    return {"pid": os.getpid(), "tid": threading.get_ident()}
