"""WishQueue: sessions that wait for a device. An owner's turns come by weight; nobody waits for ever.

Turns are start-time fair queueing (Goyal, Vin and Cheng, 1996): each owner has a line, a line's tag is the turn at
which its first wish starts, and the line with the smallest tag is next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

from .documents import SessionWish

__all__ = ["MAX_OVERTAKEN", "NEVER", "WishLine", "WishQueue"]

MAX_OVERTAKEN = 16
"""A wish that does not fit is overtaken by so many that do; then a device is reserved for it."""
MAX_LINES = 4
"""Number of lines whose first wish is tried for a place at a time."""
NEVER = 1 << 62
"""More bytes than any device has."""


@dataclass(slots=True)
class WishLine:
    """Wishes of one owner for one kind of device, in the order in which they came.

    Attributes:
        owner, weight: whose, and its share of turns.
        tag: the turn at which its first wish starts.
        ids: of the wishes; those that are no longer in the queue are passed over.
        waiting: how many wait.
        overtaken: by how many others its first wish was.
        parked: whether it waits for its owner's quota, and not for memory.
        aside: whether it waits for the device that is reserved for its first wish.
        entry: the tag of its entry in the queue's heap; None if it has none.
    """

    owner: str
    weight: float
    tag: float
    ids: deque[str] = field(default_factory=deque)
    waiting: int = 0
    overtaken: int = 0
    parked: bool = False
    aside: bool = False
    entry: float | None = None


class WishQueue:
    """The queue of one kind of device, or of one device's name.

    Attributes:
        wishes: those that wait, by id.
        bytes: of all of them.
        least: bytes of the smallest of those wishes that have a turn and did not fit: as long as no device has as much
            free, none of them does. 0: they have to be tried.

    Example:
        >>> queue = WishQueue()
        >>> queue.add(SessionWish("1", "ann"), 1.0)
        >>> [line.owner for line in queue.turns()]
        ['ann']
    """

    def __init__(self) -> None:
        self.wishes: dict[str, SessionWish] = {}
        self.bytes = self.least = 0
        self._clock = 0.0
        self._lines: dict[str, WishLine] = {}
        self._heap: list[tuple[float, str]] = []
        self._weights = 0.0

    def __len__(self) -> int:
        return len(self.wishes)

    def add(self, wish: SessionWish, weight: float) -> bool:
        """Add a wish to its owner's line; return whether it is the first there."""
        line = self._lines.get(wish.owner)
        if line is None:
            line = self._lines[wish.owner] = WishLine(wish.owner, weight, self._clock)
        if not line.waiting:
            line.ids.clear()
            line.tag = max(line.tag, self._clock)
            line.weight, line.overtaken, line.parked, line.aside = weight, 0, False, False
            self._weights += weight
            self._push(line)
        line.ids.append(wish.id)
        line.waiting += 1
        self.wishes[wish.id] = wish
        self.bytes += wish.bytes
        return line.waiting == 1

    def first(self, line: WishLine) -> SessionWish:
        """The first wish of a line in which some wait."""
        while line.ids[0] not in self.wishes:
            line.ids.popleft()
        return self.wishes[line.ids[0]]

    def turns(self) -> Iterator[WishLine]:
        """The lines whose turn it is: up to MAX_LINES.

        The caller may remove the first wish of a line (`served` or `drop`), park it or set it aside before it goes on.
        """
        passed: list[WishLine] = []
        counted = 0
        try:
            while counted < MAX_LINES and (line := self._next()) is not None:
                before = line.waiting
                wish = self.first(line)
                yield line
                if wish.id in self.wishes and line.waiting == before and not (line.parked or line.aside):
                    passed.append(line)
                    line.entry = None
                    counted += 1
        finally:
            for line in passed:
                self._push(line)

    def served(self, line: WishLine) -> None:
        """Remove a line's first wish, as it has a place: the turn is another line's."""
        wish = self.first(line)
        self._clock = max(self._clock, line.tag)
        self._remove(wish)
        line.overtaken = self.least = 0
        line.tag += 1 / line.weight
        if line.waiting:
            self._push(line)

    def overtake(self, line: WishLine) -> None:
        """Count that another wish goes before a line's first."""
        line.overtaken += 1

    def drop(self, wish_id: str) -> None:
        """Remove a wish that is not wanted any more, or has no place anywhere."""
        wish = self.wishes.get(wish_id)
        if wish is not None:
            line = self._lines[wish.owner]
            if self.first(line).id == wish_id:
                line.overtaken, line.aside, self.least = 0, False, 0
            self._remove(wish)
            if line.waiting and not line.parked:
                self._push(line)

    def park(self, line: WishLine) -> None:
        """Pass over a line until `unpark`."""
        line.parked = True

    def unpark(self, owner: str) -> bool:
        """Let an owner's line have turns again; return whether it had none."""
        line = self._lines.get(owner)
        if line is None or not line.parked:
            return False
        line.parked, self.least = False, 0
        if line.waiting:
            line.tag = max(line.tag, self._clock)
            self._push(line)
        return True

    def set_aside(self, line: WishLine) -> None:
        """Pass over a line until `call_back`: it keeps its turn."""
        line.aside = True

    def call_back(self, owner: str) -> bool:
        """Let an owner's line have turns again that was set aside; return whether it was."""
        line = self._lines.get(owner)
        if line is None or not line.aside:
            return False
        line.aside, self.least = False, 0
        self._push(line)
        return True

    def position(self, wish: SessionWish) -> int:
        """About how many turns a wish that was just added or is the owner's first has to wait, its own included.

        The n-th wish of an owner with the share s of all weights has the turn n / s, or the queue's last.
        """
        line = self._lines[wish.owner]
        ahead = line.waiting if line.ids[-1] == wish.id else self._place_in(line, wish.id)
        return max(1, min(len(self), math.ceil(ahead * self._weights / line.weight - 1e-9)))

    def _place_in(self, line: WishLine, wish_id: str) -> int:
        return 1 if self.first(line).id == wish_id else line.waiting

    def _remove(self, wish: SessionWish) -> None:
        line = self._lines[wish.owner]
        del self.wishes[wish.id]
        self.bytes -= wish.bytes
        line.waiting -= 1
        if not line.waiting:
            line.ids.clear()
            self._weights = max(0.0, self._weights - line.weight)
        if not self.wishes:
            self._weights = 0.0
        if len(self._lines) > 2 * len(self.wishes) + 1024:
            self._lines = {name: line for name, line in self._lines.items() if line.waiting or line.tag > self._clock}

    def _push(self, line: WishLine) -> None:
        if line.entry != line.tag:
            line.entry = line.tag
            heappush(self._heap, (line.tag, line.owner))

    def _next(self) -> WishLine | None:
        """The line with the smallest tag, which stays at the top of the heap."""
        while self._heap:
            tag, owner = self._heap[0]
            line = self._lines.get(owner)
            if line is not None and line.entry == line.tag == tag and line.waiting and not (line.parked or line.aside):
                return line
            if line is not None and line.entry == tag:
                line.entry = None
            heappop(self._heap)
        return None

    # -- state --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that decides further turns, as JSON."""
        lines = [
            [
                line.owner,
                line.weight,
                line.tag,
                [id for id in line.ids if id in self.wishes],
                line.overtaken,
                line.parked,
                line.aside,
            ]
            for line in self._lines.values()
            if line.waiting or line.tag > self._clock
        ]
        return {"clock": self._clock, "lines": sorted(lines), "weights": self._weights, "least": self.least}

    @classmethod
    def restored(cls, state: dict[str, Any], wishes: dict[str, SessionWish]) -> WishQueue:
        """The queue that had this state; its wishes by id."""
        queue = cls()
        queue._clock, queue._weights, queue.least = state["clock"], state["weights"], state.get("least", 0)
        for owner, weight, tag, ids, overtaken, parked, *aside in state["lines"]:
            line = WishLine(owner, weight, tag, deque(ids), len(ids), overtaken, parked, any(aside))
            queue._lines[owner] = line
            queue.wishes |= {id: wishes[id] for id in ids}
            if ids and not (parked or line.aside):
                line.entry = tag
                queue._heap.append((tag, owner))
        queue.bytes = sum(wish.bytes for wish in queue.wishes.values())
        heapify(queue._heap)
        return queue
