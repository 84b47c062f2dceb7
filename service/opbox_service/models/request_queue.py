"""RequestQueue: requests that wait for a run of a model, and which of them are next."""

from __future__ import annotations

import math
import time
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.errors import NotReadyError

from ..task import Task

__all__ = ["NO_WISHES", "QueueWishes", "RequestQueue", "WaitingRequest"]

Array: TypeAlias = "np.ndarray[Any, Any]"
LAST = 1 << 64
"""The rank of a request without a priority: behind those with one."""


@dataclass(frozen=True, slots=True)
class QueueWishes:
    """What a request asks of the queue that it waits in.

    Attributes:
        priority: 1 runs first of the requests of one owner, then 2, and so on; 0 runs last.
        timeout_us: microseconds that it may wait; 0: as long as it takes.
    """

    priority: int = 0
    timeout_us: int = 0

    def until(self, came: float) -> float:
        """The time by which a request is to run that came at `came`."""
        return came + self.timeout_us / 1e6 if self.timeout_us else math.inf

    def check(self, subject: str, came: float) -> None:
        """Raise NotReadyError if a request that came at `came` has waited for too long."""
        if self.timeout_us and time.monotonic() > self.until(came):
            raise self.refusal(subject)

    def refusal(self, subject: str) -> NotReadyError:
        """The error of a request that has waited for too long."""
        return NotReadyError(
            f"{subject}: expected a run within the {self.timeout_us} us of parameters.timeout, got none in that "
            "time: allow more, or try again in a moment"
        )


NO_WISHES = QueueWishes()


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """A request that waits for a run.

    Attributes:
        owner: whose it is.
        tensors: by input.
        examples: lengths of their batch axis.
        take: gets its outputs; they are valid while it runs.
        fail: gets the error that it ended with.
        outputs: the names of those that are wanted.
        task: stops it; None where nothing does.
        key: requests with the same one run together: shapes and types without the batch axis.
        since: when it came, by time.monotonic.
        wishes: its priority, and how long it may wait.
        weight: of its owner; see `turns`.
    """

    owner: str
    tensors: Mapping[str, Array]
    examples: int
    take: Callable[[dict[str, Array]], None]
    fail: Callable[[Exception], None]
    outputs: Sequence[str]
    task: Task | None
    key: tuple[Any, ...]
    since: float
    wishes: QueueWishes = NO_WISHES
    weight: float = 1.0

    @property
    def rank(self) -> int:
        """Its place among the requests of its owner: lower ones run first."""
        return self.wishes.priority or LAST

    @property
    def until(self) -> float:
        """The time by which it is to run."""
        return self.wishes.until(self.since)


class RequestQueue:
    """Requests by owner. Not safe to call from several threads at once: who has it has a lock.

    Attributes:
        count: number of requests.
        examples: lengths of their batch axes.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, list[WaitingRequest]] = OrderedDict()
        self.count = self.examples = 0
        self._earliest = math.inf
        """When the first of the waiting requests has waited for too long."""

    def push(self, entry: WaitingRequest) -> None:
        """Take a request, behind those of its owner's that run before it."""
        insort(self._waiting.setdefault(entry.owner, []), entry, key=_rank)
        self._earliest = min(self._earliest, entry.until)
        self.count += 1
        self.examples += entry.examples

    def first(self) -> WaitingRequest | None:
        """The request that has waited longest, of those that are first of their owners'."""
        return min((entries[0] for entries in self._waiting.values()), key=_since, default=None)

    def take_batch(self, most: int) -> list[WaitingRequest]:
        """Take the requests of the next run out: of one key, the owners in turns, at most so many examples.

        The first one is taken however large it is.
        """
        first = self.first()
        if first is None:
            return []
        entries = [self._pop(first.owner)]
        examples, key = entries[0].examples, entries[0].key
        owners = deque(self._waiting)
        while owners and examples < most:
            owner = owners.popleft()
            queue = self._waiting.get(owner)
            if not queue or queue[0].key != key or examples + queue[0].examples > most:
                continue
            entry = self._pop(owner)
            entries.append(entry)
            examples += entry.examples
            owners.append(owner)
        return entries

    def take_late(self) -> list[WaitingRequest]:
        """Take the requests out that have waited for too long."""
        if math.isinf(self._earliest):
            return []
        now = time.monotonic()
        if now <= self._earliest:
            return []
        late = [entry for queue in self._waiting.values() for entry in queue if entry.until < now]
        for entry in late:
            queue = self._waiting[entry.owner]
            queue.remove(entry)
            if not queue:
                del self._waiting[entry.owner]
            self.count -= 1
            self.examples -= entry.examples
        waiting = (entry.until for queue in self._waiting.values() for entry in queue)
        self._earliest = min(waiting, default=math.inf)
        return late

    def _pop(self, owner: str) -> WaitingRequest:
        queue = self._waiting.pop(owner)
        entry = queue.pop(0)
        if queue:
            self._waiting[owner] = queue  # behind the other owners
        self.count -= 1
        self.examples -= entry.examples
        return entry


def _rank(entry: WaitingRequest) -> int:
    return entry.rank


def _since(entry: WaitingRequest) -> float:
    return entry.since
