"""ReportPace: how often nodes report, so that the controller's one core is enough for all of them."""

from __future__ import annotations

__all__ = ["MAX_REPORT_S", "REPORT_S", "ReportPace"]

REPORT_S = 1.0
"""Seconds between two reports of a node, and between two questions of a wish that waits."""
MAX_REPORT_S = 10.0
"""The same while the controller has too much to do."""
BUSY, CALM = 0.8, 0.5
"""Shares of the controller's core above and below which reports come more rarely and more often."""
LATE_S = 1.0
"""Seconds that a report waits to be read, above which reports come more rarely."""
RARER, OFTENER = 1.25, 0.8
"""By what the seconds are multiplied when the core is busy or reports are read late, and when it is calm.

The band between BUSY and CALM is wider than one of these steps, so that no step brings the next one back.
"""


AVERAGE_S = 5.0
"""Seconds over which lateness and use of the core are averaged."""


class ReportPace:
    """Seconds between two reports of a node: more while the controller is busy, less again when it is calm.

    Attributes:
        report_s: these seconds now.
        busy, behind: averages of what `adapt` takes.
        changed, adapted: times of the last change, and of the last call.

    Example:
        >>> pace = ReportPace()
        >>> for second in range(20): pace.adapt(float(second), busy=0.9, behind=0.0)
        >>> 1 < pace.report_s < 10
        True
    """

    def __init__(self) -> None:
        self.report_s = REPORT_S
        self.busy = self.behind = self.changed = self.adapted = 0.0

    @property
    def more_s(self) -> float:
        """By how much a node may be later than usual."""
        return self.report_s - REPORT_S

    def adapt(self, now: float, busy: float, behind: float) -> None:
        """Take how busy the controller was of late.

        Args:
            now: seconds since 1970.
            busy: share of the controller's core in use since the last call.
            behind: seconds that the last report waited to be read.
        """
        part = min(max(now - self.adapted, 0.0) / AVERAGE_S, 1.0) if self.adapted else 0.0
        self.adapted = now
        self.busy += (busy - self.busy) * part
        self.behind += (behind - self.behind) * part
        if now - self.changed < self.report_s:  # not all nodes keep to the last change yet
            return
        if self.behind > LATE_S or self.busy > BUSY:
            factor = RARER
        else:
            factor = OFTENER if self.busy < CALM else 1.0
        report_s = min(max(self.report_s * factor, REPORT_S), MAX_REPORT_S)
        if report_s != self.report_s:
            self.report_s, self.changed = report_s, now

    def state(self) -> list[float]:
        """All of it, as JSON."""
        return [self.report_s, self.busy, self.behind, self.changed, self.adapted]

    @classmethod
    def restored(cls, state: list[float]) -> ReportPace:
        """The pace that had this state; of an empty one, the usual one."""
        pace = cls()
        if state:
            pace.report_s, pace.busy, pace.behind, pace.changed, pace.adapted = state
        return pace
