"""The processors' time, shared among worker processes by the weights of the owners that they work for.

Within a process calls take turns (turns.py); between processes the system shares the processors, and knows of niceness
alone. Here an owner's weight is parted among the processes that have worked for it of late, a process has the sum of
what its owners have in it, and is made the nicer the less that is: four sessions that bring code, with a process each,
get no more than one. Where the server may not make a process less nice again, weights alone count.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Protocol

from .processes import set_niceness, set_niceness_of_user

__all__ = ["ProcessorShares", "Sharer", "steps_of"]

STEP = 1.25
"""Factor in processor time between two steps of niceness on Linux."""
LATELY_S = 5.0
"""Seconds that an owner's call counts; one that runs counts as long as it does."""


class Sharer(Protocol):
    """A worker process."""

    user: int
    """The user id that is its own; 0 where it has none."""

    @property
    def pid(self) -> int: ...

    @property
    def busy(self) -> bool: ...


def steps_of(weights: Mapping[Sharer, float]) -> dict[Sharer, int]:
    """Return the niceness of each process, relative to the heaviest, for processor time in proportion to weights."""
    most = max(weights.values(), default=1.0)
    return {worker: round(math.log(most / weight, STEP)) for worker, weight in weights.items()}


class ProcessorShares:
    """Shares the processors among worker processes by owners' weights.

    Args:
        reversible: whether processes can be made less nice again; by default, whether this process may.
    """

    def __init__(self, reversible: bool | None = None) -> None:
        self._reversible = _may_lower() if reversible is None else reversible
        self._uses: dict[Sharer, dict[str, tuple[float, float]]] = {}
        self._steps: dict[Sharer, int] = {}

    def use(self, worker: Sharer, owner: str, weight: float) -> None:
        """Note a call of an owner with this weight in a process."""
        uses = self._uses.get(worker)
        if uses is None:
            uses = self._uses[worker] = {}
        uses[owner] = weight, time.monotonic()

    def share(self, workers: Collection[Sharer]) -> None:
        """Set the niceness of each process by its share; processes not listed have ended."""
        for gone in self._uses.keys() - set(workers):
            del self._uses[gone]
        for gone in self._steps.keys() - set(workers):
            del self._steps[gone]
        steps = dict.fromkeys(workers, 0) | steps_of(self.weights())
        for worker, number in steps.items():
            # Threads that a process has made since are as nice as the one that made them.
            if worker.pid and self._steps.get(worker, 0) != number:
                self._steps[worker] = number
                if worker.user:
                    set_niceness_of_user(worker.user, number)
                set_niceness(worker.pid, number)

    def weights(self) -> dict[Sharer, float]:
        """Return the weight of each active process: its share of its owners' weights."""
        since = time.monotonic() - LATELY_S
        active: dict[Sharer, dict[str, float]] = {}
        for worker, uses in self._uses.items():
            busy = worker.busy or not self._reversible
            if owners := {owner: weight for owner, (weight, at) in uses.items() if busy or at >= since}:
                active[worker] = owners
        if not self._reversible:
            return {worker: max(owners.values()) for worker, owners in active.items()}
        processes = Counter(owner for owners in active.values() for owner in owners)
        return {
            worker: sum(weight / processes[owner] for owner, weight in owners.items())
            for worker, owners in active.items()
        }


def _may_lower() -> bool:
    if os.geteuid() == 0:
        return True
    # The limit n allows a niceness down to 20 - n.
    return resource.getrlimit(resource.RLIMIT_NICE)[0] >= 20 - os.getpriority(os.PRIO_PROCESS, 0)
