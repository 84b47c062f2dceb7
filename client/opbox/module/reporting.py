"""Reports a training's metrics to the server, whose page draws their curves.

Reports travel with the steps: they make no request of their own, and nothing waits for a value because of them.
OPBOX_REPORT=0 switches them off.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

from opbox_protocol.commands import ReportMetrics
from opbox_protocol.reports import MAX_NAME, MAX_NAMES

from ..metric import EvalMetric
from ..session_opening import reports_wanted

__all__ = ["MetricReports"]

MIN_S, MAX_S = 0.05, 1.0
"""Seconds between two reports, at the beginning of a training and later."""
POINTS = 100
"""The interval between reports is the elapsed time divided by this: short trainings have curves too."""


class MetricReports:
    """The reports of one call of `fit`.

    Args:
        module: what trains.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self._wanted = reports_wanted()
        self._begin = time.monotonic()
        self._at = -math.inf
        self._held_back: list[ReportMetrics] = []

    def step(self, metric: EvalMetric, epoch: int) -> None:
        """Report the training metric as far as its values have come, if it is time to: a step is about to be sent."""
        if not self._wanted:
            return
        self._record()
        now = time.monotonic()
        if now - self._at < min(MAX_S, max(MIN_S, (now - self._begin) / POINTS)):
            return
        self._at = now
        try:
            values = metric.so_far()
        except Exception:
            return  # a metric of the user's own that cannot be read yet: whoever needs its value hears why
        self.add("Train", values, epoch)
        self._record()

    def add(self, kind: str, values: Iterable[tuple[str, Any]], epoch: int) -> None:
        """Report values under their names in the log, as Train-accuracy; they leave with the next step."""
        if not self._wanted:
            return
        numbers = {f"{kind}-{name}"[:MAX_NAME]: _number(value) for name, value in values if _is_number(value)}
        if numbers:
            first = dict(list(numbers.items())[:MAX_NAMES])
            self._held_back.append({"do": "report", "values": first, "epoch": epoch})

    def _record(self) -> None:
        reports, self._held_back = self._held_back, []
        outputs = self._module.get_outputs() if reports else ()
        session = getattr(outputs[0], "_session", None) if outputs else None
        if session is not None and not session.in_process:
            for report in reports:
                session.record(report)

    def flush(self) -> None:
        """Send the last report, as no further step carries it."""
        if self._held_back:
            self._record()
            self._module._flush()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or getattr(value, "shape", None) == ()


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
