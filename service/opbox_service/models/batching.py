"""Batcher: requests for one model, or one graph, become one run along the batch axis.

The first request that finds the model idle runs what waits, at most `max_batch` examples; requests that come meanwhile
wait for the next run, which is begun in the turn of the owner who waited longest. So no thread is kept waiting, and a
batch is as large as what came while the one before it ran. Owners take turns inside a batch; a priority orders the
requests of one owner. A request whose time in the queue is over is answered before the next run.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from opbox_protocol.errors import NotReadyError, QuotaError

from ..task import Task, current, running

__all__ = ["NO_WISHES", "BatchSizes", "Batcher", "QueueWishes", "WaitingRequest"]

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

    @property
    def rank(self) -> int:
        """Its place among the requests of its owner: lower ones run first."""
        return self.wishes.priority or LAST

    @property
    def until(self) -> float:
        """The time by which it is to run."""
        return self.wishes.until(self.since)


class BatchSizes(Protocol):
    """What a Batcher needs of a model."""

    def run_together(self, entries: Sequence[WaitingRequest]) -> None:
        """Run entries of one key, and answer each."""


class Batcher:
    """Gathers the requests for a model. Safe to call from many threads.

    Args:
        model: runs them.
        max_batch: the most examples of a run.
        max_delay_s: how long a run waits for more examples when there are fewer.
        max_queue: the most requests that wait.
        subject: whose requests they are, for errors, such as "model 'digits'".
    """

    def __init__(self, model: BatchSizes, max_batch: int, max_delay_s: float, max_queue: int, subject: str) -> None:
        self._model = model
        self._max_batch = max_batch
        self._max_delay_s = max_delay_s
        self._max_queue = max_queue
        self._subject = subject
        self._waiting: OrderedDict[str, list[WaitingRequest]] = OrderedDict()
        self._count = self._examples = 0
        self._earliest = math.inf
        """When the first of the waiting requests has waited for too long."""
        self._busy = False
        self._more = threading.Condition(threading.Lock())

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a run."""
        return self._count

    def join(self, entry: WaitingRequest) -> None:
        """Take a request; it is answered by this thread or another.

        Raises:
            QuotaError: too many wait.
        """
        with self._more:
            if self._count >= self._max_queue:
                raise QuotaError(
                    f"{self._subject}: expected at most {self._max_queue} waiting requests, got one more: try "
                    "again in a moment"
                )
            insort(self._waiting.setdefault(entry.owner, []), entry, key=_rank)
            self._earliest = min(self._earliest, entry.until)
            self._count += 1
            self._examples += entry.examples
            if self._busy:
                if self._examples >= self._max_batch:
                    self._more.notify()
                return
            self._busy = True
        self._run()

    def _run(self) -> None:
        """Run a batch; then have the next one begun, if more have come."""
        task = current()
        turn = task.turn if task is not None else None
        try:
            entries = self._next()
            if entries:
                with running(Task(task.graph_seconds if task is not None else float("inf"))):
                    self._model.run_together(entries)
        finally:
            with self._more:
                follower = self._first()
                self._busy = follower is not None
            if follower is not None:
                if turn is not None:
                    turn.hand_on(follower.owner, self._run_in)
                else:
                    self._run()

    def _run_in(self, turn: Any) -> None:
        """Run a batch in a turn of its own."""
        task = Task()
        task.turn = turn
        with running(task):
            self._run()

    def _first(self) -> WaitingRequest | None:
        """The request that has waited longest, of those that are first of their owners'."""
        return min((entries[0] for entries in self._waiting.values()), key=lambda entry: entry.since, default=None)

    def _next(self) -> list[WaitingRequest]:
        """The requests of the next run: of one key, the owners in turns. Those that end without one are answered."""
        with self._more:
            first = self._first()
            if first is None:
                return []
            until = first.since + self._max_delay_s
            while self._examples < self._max_batch and (rest := until - time.monotonic()) > 0:
                self._more.wait(rest)
            late = self._late()
            entries = self._batch()
        for entry in late:
            entry.fail(entry.wishes.refusal(self._subject))
        going_on = []
        for entry in entries:
            if entry.task is not None and entry.task.stopped is not None:
                entry.fail(entry.task.stopped)
            else:
                going_on.append(entry)
        return going_on

    def _batch(self) -> list[WaitingRequest]:
        """Take the requests of the next run out of the queue."""
        first = self._first()
        if first is None:
            return []
        entries = [self._pop(first.owner)]
        examples, key = entries[0].examples, entries[0].key
        owners = deque(self._waiting)
        while owners and examples < self._max_batch:
            owner = owners.popleft()
            queue = self._waiting.get(owner)
            if not queue or queue[0].key != key or examples + queue[0].examples > self._max_batch:
                continue
            entry = self._pop(owner)
            entries.append(entry)
            examples += entry.examples
            owners.append(owner)
        return entries

    def _late(self) -> list[WaitingRequest]:
        """Take the requests that have waited for too long out of the queue."""
        now = time.monotonic()
        if now <= self._earliest:
            return []
        late = [entry for queue in self._waiting.values() for entry in queue if entry.until < now]
        for entry in late:
            queue = self._waiting[entry.owner]
            queue.remove(entry)
            if not queue:
                del self._waiting[entry.owner]
            self._count -= 1
            self._examples -= entry.examples
        waiting = (entry.until for queue in self._waiting.values() for entry in queue)
        self._earliest = min(waiting, default=math.inf)
        return late

    def _pop(self, owner: str) -> WaitingRequest:
        queue = self._waiting.pop(owner)
        entry = queue.pop(0)
        if queue:
            self._waiting[owner] = queue  # behind the other owners
        self._count -= 1
        self._examples -= entry.examples
        return entry


def _rank(entry: WaitingRequest) -> int:
    return entry.rank
