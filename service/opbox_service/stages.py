"""Stages: when a call waited and computed, for the spans of a traced request."""

from __future__ import annotations

import time
from typing import TypeAlias

__all__ = ["Stage", "Stages"]

Stage: TypeAlias = "tuple[str, float, float]"
"""A name, and when it began and ended, by time.monotonic: one clock for all processes of a machine."""


class Stages:
    """The stages of a call, from its arrival on: `queue`, `batch` where it waited for a run of a model, `compute`."""

    __slots__ = ("_since", "rows")

    def __init__(self) -> None:
        self.rows: list[Stage] = []
        self._since = time.monotonic()

    def begin(self) -> None:
        """The call has its turn."""
        now = time.monotonic()
        self.rows.append(("queue", self._since, now))
        self._since = now

    def ran(self, since: float, begun: float, ended: float) -> None:
        """Note a run together with other calls: waited for since then, or since the call's turn; begun and ended."""
        self.rows += [("batch", max(since, self._since), begun), ("compute", begun, ended)]

    def end(self) -> list[Stage]:
        """The stages of a call that has its answer; what was no run is computing from its turn on."""
        if not any(name == "compute" for name, _, _ in self.rows):
            self.rows.append(("compute", self._since, time.monotonic()))
        return self.rows
