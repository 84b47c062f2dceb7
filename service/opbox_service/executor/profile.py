"""A session's profile: when its operators and commands began, and how long they took.

A plan's calls are timed one by one only while a profile is at work (`Calls.run`); a session without one has no more to
do than to look whether there is one.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from opbox_ops.node import Node

__all__ = ["BYTES", "KINDS", "Event", "Profile", "Title"]

KINDS = ("symbolic", "imperative", "api")
"""What can be timed: nodes of graphs, operators called one by one, commands."""
MAX_EVENTS, MAX_TITLES, MAX_NAME = 1 << 18, 1 << 14, 256
"""Events and titles that wait to be taken, and characters of a name. What comes to a full one is counted, and lost."""
BYTES = 24 * MAX_EVENTS + 640 * MAX_TITLES
"""Bytes of a full profile, counted in the session's quota."""

Title: TypeAlias = tuple[str, str, str]
"""Kind, name (a node's, or a command's) and operator."""
Event: TypeAlias = tuple[int, int, int]
"""The number of a title, the beginning and the duration in nanoseconds of this machine's monotonic clock."""


class Profile:
    """Times that wait to be taken.

    Args:
        synchronize: waits until the device has done what it was told; None for a device that does things at once.
        max_events: that wait to be taken.

    Attributes:
        kinds: those of `KINDS` that are timed now.
        dropped: events that there was no place for.
    """

    def __init__(self, synchronize: Callable[[], None] | None = None, *, max_events: int = MAX_EVENTS) -> None:
        self._max_events = max_events
        self.kinds: frozenset[str] = frozenset()
        self.dropped = 0
        self._synchronize = synchronize
        self._titles: dict[Title, int] = {}
        self._events = array("q")

    def __len__(self) -> int:
        return len(self._events) // 3

    def now(self) -> int:
        """Nanoseconds; on a device that works on behind the program, of when it has done what it was told."""
        if self._synchronize is not None:
            self._synchronize()
        return time.perf_counter_ns()

    def add(self, kind: str, name: str, operator: str, began: int, ended: int) -> None:
        """Record an event from `began` to `ended`, times of `now`."""
        title = (kind, name[:MAX_NAME], operator[:MAX_NAME])
        number = self._titles.get(title)
        if number is None and len(self._titles) < MAX_TITLES:
            number = self._titles[title] = len(self._titles)
        if number is None or len(self._events) >= 3 * self._max_events:
            self.dropped += 1
            return
        self._events.extend((number, began, ended - began))

    def add_node(self, node: Node, began: int, ended: int) -> None:
        """The same for a step of a plan."""
        self.add("symbolic", node.name, node.op.name if node.op is not None else "", began, ended)

    def take(self, most: int) -> tuple[list[Title], list[Event]]:
        """Remove the oldest events, `most` at a time, with the titles that they have numbers of."""
        flat = self._events[: 3 * most].tolist()
        del self._events[: 3 * most]
        every, numbers = list(self._titles), dict[int, int]()
        events = []
        for number, began, duration in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            events.append((numbers.setdefault(number, len(numbers)), began, duration))
        if not self._events:
            self._titles.clear()
        return [every[number] for number in numbers], events

    def image(self) -> dict[str, Any]:
        """All of it as plain JSON, for `restore` in another process of this machine."""
        titles = [list(title) for title in self._titles]
        return {
            "kinds": sorted(self.kinds),
            "dropped": self.dropped,
            "titles": titles,
            "events": self._events.tolist(),
        }

    def restore(self, image: dict[str, Any]) -> None:
        """Continue from `image`."""
        self.kinds, self.dropped = frozenset(image["kinds"]), image["dropped"]
        titles: Sequence[Sequence[str]] = image["titles"]
        self._titles = {(kind, name, operator): number for number, (kind, name, operator) in enumerate(titles)}
        self._events = array("q", image["events"])
