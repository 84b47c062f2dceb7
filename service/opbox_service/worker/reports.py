"""Checks a worker's report of its sessions before it is booked: a worker that runs code may report anything."""

from __future__ import annotations

import asyncio
import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from opbox_protocol.reports import MAX_NAMES

from ..accounting.books import Books
from ..accounting.history import ReportedMetrics
from ..device_time import DeviceTimes, checked_rows
from ..logs import EXCEPTION_BYTES, Exceptions
from .incoming import MAX_COUNT, MAX_TEXT

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["Reports", "check_count", "check_problem"]

UPLOADS, UPLOADS_S = 1000, 60.0
"""Maximum number of uploads to record one by one per worker, and the seconds it applies to."""


class Reports:
    """Books what a worker reports of its sessions.

    A worker of one session (`Worker.whose`) reports of nothing else, and no more than can be true.

    Args:
        worker: who reports.
        books: where it is booked.
        device_times: counts how long its calls waited and ran.
    """

    def __init__(self, worker: Worker, books: Books, device_times: DeviceTimes) -> None:
        self._worker = worker
        self._books = books
        self._device_times = device_times
        self._memory: dict[tuple[str, str], int] = {}
        self._uploads = (0, 0.0)
        self._begun = asyncio.get_running_loop().time()
        self._booked = (0.0, 0.0, 0)

    def take_memory(self, rows: list[Any]) -> None:
        """Book rows of owner, device and bytes; ValueError when they are none, or of another owner."""
        whose = self._worker.whose
        for row in rows:
            owner, device, nbytes = row
            place = check_text(owner), check_text(device)
            if whose is not None and place != whose:
                raise ValueError(f"account: expected the memory of {whose}, got that of {place!r:.200}")
            self._memory[place] = min(check_count(nbytes), self._worker.most_bytes(device))
            if not nbytes:
                del self._memory[place]
        if rows and not self._worker.ended:
            self._books.take_memory(self._worker, [(*place, nbytes) for place, nbytes in self._memory.items()])

    def take_times(self, rows: list[Any]) -> None:
        """Count how long calls waited and ran; ValueError when the rows are none.

        One session's calls have run no longer than its worker's threads, and waited no longer than all that there may
        be at a time.
        """
        whose = self._worker.whose
        if whose is None:
            self._device_times.add_rows(rows)
            return
        settings = self._worker.settings
        since_s = asyncio.get_running_loop().time() - self._begun
        for _, _, queue_s, compute_s, runs in checked_rows(rows):
            waited, ran, count = self._booked
            queue_s = max(0.0, min(queue_s, since_s * settings.max_in_flight_per_owner - waited))
            compute_s = max(0.0, min(compute_s, since_s * settings.threads - ran))
            runs = max(0, min(runs, self._worker.calls + settings.max_waiting - count))
            self._booked = waited + queue_s, ran + compute_s, count + runs
            self._device_times.add(*whose, queue_s, compute_s, runs)

    def take_uploads(self, header: dict[str, Any]) -> None:
        """Book code that a session was sent, up to a rate; ValueError when the message is none."""
        number, since = self._uploads
        now = asyncio.get_running_loop().time()
        if now - since > UPLOADS_S:
            number, since = 0, now
        self._uploads = number + len(header["rows"]), since
        owner, session = self._checked_session(header["owner"], header["session"])
        rows = []
        for command, name, sha256 in header["rows"]:
            rows.append([check_text(command), check_text(name), check_text(sha256)])
        more = check_count(header["more"])
        if number > UPLOADS:
            rows, more = [], more + len(rows)
        self._books.uploaded(owner, session, rows, more)

    def take_values(self, rows: list[Any]) -> None:
        """Keep what trainings report, of the sessions that are known; ValueError when the rows are none."""
        for owner, session, at, steps, epoch, values in rows:
            if type(values) is not dict or len(values) > MAX_NAMES or not all(map(_is_value, values.values())):
                raise ValueError(f"expected values by name, got {values!r:.100}")
            if not _is_number(at):
                raise ValueError(f"expected a time, got {at!r:.100}")
            self._books.history.report(
                *self._checked_session(owner, session),
                ReportedMetrics(
                    at,
                    check_count(steps),
                    None if epoch is None else check_count(epoch),
                    {check_text(name): value for name, value in values.items()},
                ),
            )

    def _checked_session(self, owner: Any, session: Any) -> tuple[str, str]:
        """An owner and a session of theirs; ValueError for others than the worker's."""
        place = check_text(owner), check_text(session)
        whose = self._worker.whose
        if whose is not None and place != (whose[0], self._worker.only_session):
            raise ValueError(f"expected a report of this process's session, got one of {session!r:.80}")
        return place


def _is_value(value: Any) -> bool:
    return value is None or _is_number(value)


def _is_number(value: Any) -> bool:
    return (type(value) is float and isfinite(value)) or (type(value) is int and abs(value) <= MAX_COUNT)


def check_count(value: Any) -> int:
    """Check a number from a worker; raise ValueError for another value."""
    if type(value) is not int or not 0 <= value <= MAX_COUNT:
        raise ValueError(f"expected a number, got {value!r:.100}")
    return value


def check_problem(value: Any) -> Exceptions:
    """An exception that a worker sent, for the log; ValueError when it is none, or a long one."""
    if type(value) is not list or any(type(row) is not dict for row in value):
        raise ValueError(f"expected an exception, got {value!r:.100}")
    if len(json.dumps(value)) > EXCEPTION_BYTES:
        raise ValueError(f"expected an exception in {EXCEPTION_BYTES} bytes, got more")
    return value


def check_text(value: Any) -> str:
    """Check a short text from a worker; raise ValueError for another value."""
    if type(value) is not str or len(value) > MAX_TEXT:
        raise ValueError(f"expected a text, got {value!r:.100}")
    return value
