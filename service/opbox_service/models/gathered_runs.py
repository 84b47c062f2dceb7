"""GatheredRuns: models with requests that have come, whose runs begin when no more requests are there to be read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

from ..turns import Job, Turn, Turns
from .batching import Batcher

__all__ = ["GatheredRuns"]

Run: TypeAlias = "Callable[[], None]"


class GatheredRuns:
    """The models whose requests one thread has read. For that thread alone.

    Args:
        turns: in which runs are made that are not quick.
        after_run: called behind each.
        answering: a block in which a quick one gives its answers.
    """

    def __init__(
        self,
        turns: Turns,
        after_run: Callable[[], None] = lambda: None,
        answering: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._turns = turns
        self._after_run = after_run
        self._answering = answering
        self._batchers: dict[Batcher, None] = {}

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._batchers)

    def add(self, batcher: Batcher) -> None:
        """Have a run of this model's begun, if none is under way then that the next one follows."""
        self._batchers[batcher] = None

    def run(self) -> Run | None:
        """Make the runs that are quick, or have them made; a run that takes long is for another thread, or later."""
        while self._batchers:
            batcher, _ = self._batchers.popitem()
            if batcher.is_quick and self._turns.idle:  # so that nobody's turn is this one
                if batcher.claim():
                    with self._answering():
                        batcher.run_quick()
                    self._after_run()
                    if batcher.waiting:
                        self._batchers[batcher] = None
                        return None  # more may have come for others meanwhile
                continue
            first = batcher.first()
            if first is None or not batcher.claim():
                continue

            def work(turn: Turn, batcher: Batcher = batcher) -> None:
                try:
                    batcher.run_in(turn)
                finally:
                    self._after_run()

            job = Job(first.owner, "", work, first.weight)
            turn = self._turns.offer(job)
            if turn is not None:
                return lambda turn=turn, job=job: self._turns.run(turn, job)  # type: ignore[misc]
        return None
