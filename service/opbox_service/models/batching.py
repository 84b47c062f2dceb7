"""Batcher: requests for one model, or one graph, become one run along the batch axis.

What comes while a run is under way runs together after it, at most `max_batch` examples, in the turn of the owner who
waited longest. So a batch is as large as what came while the one before it ran. Where a run uses one core of several,
a second one is begun beside it, and those who wait are divided among them; else one run at a time is best.

The clients that a run has answered come again at once, as a rule, but one by one: the next run waits for them, for a
small part of what the last one took, and not at all where runs are short. Without that every other run would be one of
a single example.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Protocol

from opbox_protocol.errors import QuotaError

from ..task import Task, current, running
from .quick_runs import QuickRuns
from .request_queue import RequestQueue, WaitingRequest

__all__ = ["BatchSizes", "Batcher"]

SHORT_S = 0.001
"""Seconds of a run that is too short to wait for others, or to be divided among cores."""
ANSWER_S = 0.00005
"""Seconds that an answer takes, which no other thread would give sooner: they share one interpreter."""
PATIENCE = 1 / 8
"""How long a run waits for the clients of the last one, as a part of what that took."""
MAX_PADDING = 1 / 4
"""The most of a run that may be padding, where a smaller run of the same model has none."""


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
        sizes: that runs are padded to, in order; none: they are not.
        at_once: the most runs at a time.
        patience: how long a run waits for the clients of the last one, as a part of what that took.

    Attributes:
        quick: whether runs are so short that they are not handed to another thread.
    """

    def __init__(
        self,
        model: BatchSizes,
        max_batch: int,
        max_delay_s: float,
        max_queue: int,
        subject: str,
        sizes: Sequence[int] = (),
        at_once: int = 1,
        patience: float = PATIENCE,
    ) -> None:
        self._model = model
        self._max_batch = max_batch
        self._max_delay_s = max_delay_s
        self._max_queue = max_queue
        self._subject = subject
        self._sizes = sizes
        self._at_once = at_once
        self._patience = patience
        self._queue = RequestQueue()
        self._runs = self._in_runs = 0
        """Number of runs that have begun, and of their examples."""
        self._seconds = 0.0
        """What the last run took."""
        self._due, self._due_until = 0, 0.0
        """Examples of clients that a run has answered and that may come again, and how long they are waited for."""
        self._wanted = 1
        """How many examples a run waits for that has begun and waits."""
        self._more = threading.Condition(threading.Lock())
        self.quick = QuickRuns()

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a run."""
        return self._queue.count

    @property
    def is_quick(self) -> bool:
        """Whether a run may be made by a thread that others wait for."""
        return not self._max_delay_s and self.quick.are_quick

    def join(self, entry: WaitingRequest) -> None:
        """Take a request; it is answered by this thread or another.

        Raises:
            QuotaError: too many wait.
        """
        self.add(entry)
        if self.claim():
            self._run()

    def add(self, entry: WaitingRequest) -> None:
        """Take a request, which waits until who has added it, or another thread, begins a run (`claim`).

        Raises:
            QuotaError: too many wait.
        """
        with self._more:
            queue = self._queue
            if queue.count >= self._max_queue:
                raise QuotaError(
                    f"{self._subject}: expected at most {self._max_queue} waiting requests, got one more: try "
                    "again in a moment"
                )
            queue.push(entry)
            self._due = max(0, self._due - entry.examples)
            if self._runs and queue.examples >= self._wanted:
                self._more.notify_all()

    def claim(self) -> bool:
        """Whether the caller is to begin a run: `run_quick` or `run_in`. Else there are runs enough, or none waits."""
        with self._more:
            return self._claimed()

    def run_quick(self) -> None:
        """Make a run that has been claimed, by a thread that others wait for; whoever waits then is the caller's."""
        self._run_once(waits=False, waited_for=True)
        with self._more:
            self._runs -= 1

    def run_in(self, turn: Any) -> None:
        """Make a run that has been claimed, in a turn of its own."""
        task = Task()
        task.turn = turn
        with running(task):
            self._run()

    def first(self) -> WaitingRequest | None:
        """The request in whose owner's turn the next run is made."""
        with self._more:
            return self._queue.first()

    def _run(self) -> None:
        """Make a run; then have the next one begun, if more have come."""
        task = current()
        turn = task.turn if task is not None else None
        while True:
            try:
                self._run_once()
            finally:
                with self._more:
                    self._runs -= 1
                    follower = self._queue.first() if self._claimed() else None
                if follower is not None and turn is not None:
                    turn.hand_on(follower.owner, self.run_in, follower.weight)
            if follower is None or turn is not None:
                return

    def _claimed(self) -> bool:
        most = self._at_once if self._seconds > SHORT_S else 1
        if not self._queue.count or self._runs >= most:
            return False
        self._runs += 1
        return True

    def _run_once(self, *, waits: bool = True, waited_for: bool = False) -> None:
        """Run the next batch, and note what it took."""
        entries = self._next(waits=waits)
        if not entries:
            return
        examples = sum(entry.examples for entry in entries)
        with self._more:
            self._in_runs += examples
        begun, worked = time.monotonic(), 0.0 if waited_for else time.thread_time()
        try:
            before = current()
            with running(Task(before.graph_seconds if before is not None else float("inf"))):
                self._model.run_together(entries)
        finally:
            ended = time.monotonic()
            answering = ANSWER_S * len(entries)
            worked = 0.0 if waited_for else time.thread_time() - worked - answering
            self.quick.ran(ended - begun - answering, worked, waited_for=waited_for)
            with self._more:
                self._in_runs -= examples
                self._seconds = ended - begun
                self._due = examples + (self._due if ended < self._due_until else 0)
                self._due_until = ended + self._patience * self._seconds

    def _share(self) -> int:
        """How many examples the next run is to have, if they come: of all of them what is one run's."""
        due = self._due if self._due and time.monotonic() < self._due_until else 0
        runs = self._at_once if self._seconds > SHORT_S else 1
        return min(self._max_batch, -(-(self._queue.examples + self._in_runs + due) // runs))

    def _next(self, *, waits: bool) -> list[WaitingRequest]:
        """The requests of the next run: of one key, the owners in turns. Those that end without one are answered."""
        with self._more:
            if waits:
                self._wait()
            late = self._queue.take_late()
            entries = self._queue.take_batch(self._most())
        for entry in late:
            entry.fail(entry.wishes.refusal(self._subject))
        going_on = []
        for entry in entries:
            if entry.task is not None and entry.task.stopped is not None:
                entry.fail(entry.task.stopped)
            else:
                going_on.append(entry)
        return going_on

    def _wait(self) -> None:
        """Wait for more examples: as long as the model's file says, and for those that are due."""
        first = self._queue.first()
        if first is None:
            return
        while True:
            now, until, wanted = time.monotonic(), first.since + self._max_delay_s, self._max_batch
            if until <= now and self._seconds > SHORT_S:
                until, wanted = self._due_until, min(self._share(), self._queue.examples + self._due)
            if until <= now or self._queue.examples >= wanted:
                return
            self._wanted = wanted
            self._more.wait(until - now)

    def _most(self) -> int:
        """The most examples of the next run: a run that would be padding for a large part is a smaller one."""
        share = self._share()
        examples = min(share, self._queue.examples)
        place = bisect_left(self._sizes, examples)
        if 0 < place < len(self._sizes) and examples < (1 - MAX_PADDING) * self._sizes[place]:
            return self._sizes[place - 1]
        return share
