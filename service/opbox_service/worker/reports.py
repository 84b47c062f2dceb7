"""Checks a worker's report of its sessions before it is booked: a worker that runs code may report anything."""

from __future__ import annotations

import asyncio
import json
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..accounting.books import Books
from ..accounting.history import ReportedMetrics
from ..logs import EXCEPTION_BYTES, Exceptions

if TYPE_CHECKING:
    from .worker import Worker

__all__ = ["Reports", "check_count", "check_problem"]

UPLOADS, UPLOADS_S = 1000, 60.0
"""Maximum number of uploads to record one by one per worker, and the seconds it applies to."""
TEXT = 512
"""Maximum number of characters of a name in a report."""


class Reports:
    """Books the memory and the uploads that a worker reports.

    A worker of one owner's (`Worker.whose`) reports for nobody else, whatever it says.

    Args:
        worker: who reports.
        books: where it is booked.
    """

    def __init__(self, worker: Worker, books: Books) -> None:
        self._worker = worker
        self._books = books
        self._memory: dict[tuple[str, str], int] = {}
        self._uploads = (0, 0.0)

    def take_memory(self, rows: list[Any]) -> None:
        """Book rows of owner, device and bytes; ValueError when they are none."""
        whose = self._worker.whose
        for owner, device, nbytes in rows:
            place = (check_text(owner), check_text(device)) if whose is None else whose
            self._memory[place] = check_count(nbytes)
            if not nbytes:
                del self._memory[place]
        if rows and not self._worker.ended:
            self._books.take_memory(self._worker, [(*place, nbytes) for place, nbytes in self._memory.items()])

    def take_uploads(self, header: dict[str, Any]) -> None:
        """Book code that a session was sent, up to a rate; ValueError when the message is none."""
        number, since = self._uploads
        now = asyncio.get_running_loop().time()
        if now - since > UPLOADS_S:
            number, since = 0, now
        self._uploads = number + len(header["rows"]), since
        owner = check_text(header["owner"]) if self._worker.whose is None else self._worker.whose[0]
        rows = [[check_text(text) for text in row] for row in header["rows"]]
        more = check_count(header["more"])
        if number > UPLOADS:
            rows, more = [], more + len(rows)
        self._books.uploaded(owner, check_text(header["session"]), rows, more)

    def take_values(self, rows: list[Any]) -> None:
        """Keep what trainings report, of the sessions that are known; ValueError when the rows are none."""
        for owner, session, at, steps, epoch, values in rows:
            if type(values) is not dict or not all(map(_is_value, (at, *values.values()))):
                raise ValueError(f"expected values by name, got {values!r:.100}")
            self._books.history.report(
                check_text(owner) if self._worker.whose is None else self._worker.whose[0],
                check_text(session),
                ReportedMetrics(
                    at,
                    check_count(steps),
                    None if epoch is None else check_count(epoch),
                    {check_text(name): value for name, value in values.items()},
                ),
            )


def _is_value(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and isfinite(value))


def check_count(value: Any) -> int:
    """Check a number from a worker; raise ValueError for another value."""
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a number, got {value!r}")
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
    if type(value) is not str or len(value) > TEXT:
        raise ValueError(f"expected a text, got {value!r:.100}")
    return value
