"""RepeatedSteps: a training's batches since its last checkpoint, to run again after a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..io.host_array import HostArray

__all__ = ["RepeatedSteps"]

REPEATED_BYTES = 256 << 20
"""Maximum bytes of batches to have in memory for this; steps with more are lost with their session."""
ATTEMPTS = 2
"""How often to run the steps behind one checkpoint again: one of them may be what the session dies of."""


@dataclass(frozen=True, slots=True)
class _CompleteStep:
    number: int
    batch: Any
    nbytes: int


class RepeatedSteps:
    """The batches of the steps behind a checkpoint, as long as their values are in this machine's memory.

    Those of the package's iterators are. An iterator of the program's own, whose arrays are on the server, loses them
    with the session.
    """

    def __init__(self) -> None:
        self._steps: deque[_CompleteStep] = deque()
        self._nbytes = 0
        self._from: int | None = None
        self._attempts = 0

    def add(self, number: int, batch: Any, saved: int) -> None:
        """Note a step that is complete, and forget those up to the one that is saved.

        Args:
            number: of the step.
            batch: its batch.
            saved: the last step that is known to be in a checkpoint.
        """
        while self._steps and (self._steps[0].number <= saved or self._nbytes > REPEATED_BYTES):
            self._nbytes -= self._steps.popleft().nbytes
        if can_repeat(batch):
            step = _CompleteStep(number, batch, sum(array.host_bytes for array in _arrays(batch)))
            self._steps.append(step)
            self._nbytes += step.nbytes

    def begin(self, step: int) -> None:
        """Note that the training goes on from the checkpoint of this step."""
        self._attempts = self._attempts + 1 if step == self._from else 1
        self._from = step

    def behind(self, step: int, last: int) -> list[Any] | None:
        """The batches of the steps behind `step`, up to the last; None where they cannot be run again."""
        batches = [entry.batch for entry in self._steps if step < entry.number <= last]
        whole = len(batches) == last - step and all(map(can_repeat, batches))
        return batches if whole and self._attempts <= ATTEMPTS else None

    def forget(self, step: int) -> None:
        """Forget what is behind a step: it is run again, or lost."""
        while self._steps and self._steps[-1].number > step:
            self._nbytes -= self._steps.pop().nbytes


def can_repeat(batch: Any) -> bool:
    """Return whether a batch's values are in this machine's memory, unchanged."""
    return all(isinstance(array, HostArray) and array.here for array in _arrays(batch))


def _arrays(batch: Any) -> Iterator[Any]:
    yield from batch.data or ()
    yield from batch.label or ()
