"""QuickRuns: whether runs of one kind take less time than it takes to hand one to another thread."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MIN_SLOW_RUNS", "QUICK_S", "RUNS_ELSEWHERE", "QuickRuns"]

QUICK_S = 0.0005
"""Seconds that a run may take which does not deserve to be handed to another thread."""
MIN_SLOW_RUNS = 4
"""Number of slow runs, one behind the other, that are no accident of a busy machine."""
RUNS_ELSEWHERE = 16
"""Number of runs in other threads after one that took longer in a thread that others wait for."""


@dataclass(slots=True)
class QuickRuns:
    """Runs of one kind, of which the latest tell how long the next one takes.

    Attributes:
        elsewhere: how many runs are still to be made by other threads than the one that calls come by.
        slow: how many of the latest runs in that thread were slow.
    """

    elsewhere: int = 1
    slow: int = 0

    @property
    def are_quick(self) -> bool:
        """Whether the latest runs took less time than it takes to hand one to another thread."""
        return not self.elsewhere

    def ran(self, seconds: float, worked_s: float, *, waited_for: bool) -> None:
        """Take note of a run.

        Args:
            seconds: that it took.
            worked_s: of the processor's time that its thread worked.
            waited_for: whether other calls waited for the thread.
        """
        if waited_for:
            self.slow = self.slow + 1 if seconds > QUICK_S else 0
            if self.slow >= MIN_SLOW_RUNS:
                self.elsewhere, self.slow = RUNS_ELSEWHERE, 0
        elif worked_s > QUICK_S:
            self.elsewhere = max(1, self.elsewhere)
        elif self.elsewhere:
            self.elsewhere -= 1
