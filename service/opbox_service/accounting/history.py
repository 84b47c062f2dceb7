"""The last sessions of each owner: whose program they were of, what it reported, and why they ended.

The API process keeps it, so that it outlives a session, its worker, and a move to another worker; not the server.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from opbox_protocol.errors import NotFoundError
from opbox_protocol.reports import MAX_NAMES

__all__ = ["ReportedMetrics", "SessionHistory"]

MAX_ENDED = 30
"""Number of ended sessions to remember per owner."""
MAX_POINTS, MAX_POINTS_ENDED = 600, 150
"""Maximum points of a curve, of open and of ended sessions; beyond it every second point is dropped."""


class ReportedMetrics(NamedTuple):
    """A report of a training: time in seconds since 1970, steps, epoch, values."""

    time: float
    steps: int
    epoch: int | None
    values: Mapping[str, float | None]


class Point(NamedTuple):
    """A point of a curve."""

    time: float
    step: int
    epoch: int | None
    value: float | None


class Series:
    """A curve: a limited number of the reported points, evenly spread, and the latest."""

    def __init__(self) -> None:
        self.count = 0
        self._points: list[Point] = []
        self._stride = 1
        self._latest: Point | None = None

    def add(self, point: Point) -> None:
        """Add the latest point."""
        if self.count % self._stride == 0:
            self._points.append(point)
            self.thin(MAX_POINTS)
        self._latest = point
        self.count += 1

    def thin(self, limit: int) -> None:
        """Leave out every second point until there are at most `limit`."""
        while len(self._points) > limit:
            del self._points[1::2]
            self._stride *= 2

    @property
    def points(self) -> list[Point]:
        """The points, oldest first."""
        last = self._latest
        return self._points if last is None or self._points[-1] is last else [*self._points, last]


@dataclass(slots=True)
class SessionRecord:
    """A session that an owner has or had."""

    id: str
    device: str
    script: str
    host: str
    created: float
    ended: float | None = None
    reason: str = ""
    series: dict[str, Series] = field(default_factory=dict)

    def latest(self) -> dict[str, Point]:
        """The latest point of each curve."""
        return {name: series.points[-1] for name, series in self.series.items()}

    def json(self) -> dict[str, Any]:
        """The session as `GET /v1/history` has it."""
        latest = self.latest()
        return {
            "id": self.id,
            "device": self.device,
            "script": self.script,
            "host": self.host,
            "created": self.created,
            "ended": self.ended,
            "reason": self.reason,
            "steps": max((point.step for point in latest.values()), default=0),
            "latest": {name: point.value for name, point in latest.items()},
        }


class SessionHistory:
    """The last sessions of each owner. An owner never sees another owner's sessions."""

    def __init__(self) -> None:
        self._owners: dict[str, dict[str, SessionRecord]] = {}
        self._ended: dict[str, int] = {}

    def begin(self, owner: str, opened: Mapping[str, Any]) -> None:
        """Record a session, from the answer to its opening."""
        record = SessionRecord(opened["id"], opened["device"], opened["script"], opened["host"], time.time())
        self._owners.setdefault(owner, {})[record.id] = record

    def ended(self, owner: str, id: str, reason: str) -> None:
        """Note why a session has ended, and forget the one that ended first where there are many."""
        records = self._owners.get(owner, {})
        record = records.get(id)
        if record is None or record.ended is not None:
            return
        record.ended, record.reason = time.time(), reason
        for series in record.series.values():
            series.thin(MAX_POINTS_ENDED)
        self._ended[owner] = self.ended_so_far(owner) + 1
        past = [record for record in records.values() if record.ended is not None]
        if len(past) > MAX_ENDED:
            del records[min(past, key=lambda record: record.ended or 0.0).id]

    def report(self, owner: str, id: str, report: ReportedMetrics) -> None:
        """Add a program's reports to its curves; beyond the maximum, new names are ignored."""
        record = self._owners.get(owner, {}).get(id)
        if record is None:
            return
        for name, value in report.values.items():
            if name in record.series or len(record.series) < MAX_NAMES:
                series = record.series.setdefault(name, Series())
                series.add(Point(report.time, report.steps, report.epoch, value))

    def ended_so_far(self, owner: str) -> int:
        """The number of an owner's sessions that have ended: where it has changed, the list has."""
        return self._ended.get(owner, 0)

    def of(self, owner: str) -> list[dict[str, Any]]:
        """An owner's sessions, the newest first."""
        records = self._owners.get(owner, {}).values()
        return [record.json() for record in sorted(records, key=lambda record: -record.created)]

    def watched(self, owner: str, id: str) -> dict[str, Any]:
        """Return the reports of an open session for the event stream: their number and the latest points."""
        record = self._owners.get(owner, {}).get(id)
        if record is None:
            return {"reported": 0, "latest": {}}
        reported = sum(series.count for series in record.series.values())
        return {"reported": reported, "latest": {name: point._asdict() for name, point in record.latest().items()}}

    def metrics(self, owner: str, id: str) -> dict[str, Any]:
        """A session's curves.

        Raises:
            NotFoundError: it is none of the owner's last sessions.
        """
        record = self._owners.get(owner, {}).get(id)
        if record is None:
            raise NotFoundError(
                f"session {id[:64]!r}: expected one of your last sessions, got an id that is not: GET /v1/history "
                "lists them"
            )
        curves = []
        for name, series in record.series.items():
            times, steps, epochs, values = zip(*series.points, strict=True)
            curves.append({"name": name, "times": times, "steps": steps, "epochs": epochs, "values": values})
        return {**record.json(), "curves": curves}
