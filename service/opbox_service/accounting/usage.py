"""The usage ledger: what each owner used on each day, in SQLite.

Figures are added up in memory by whoever counts them, and written by a thread of the ledger's own once every few
seconds: a server that is killed loses at most those, and a write that fails is tried again with the next. Several
servers may share the file, as at a rolling restart: each adds what it has counted. Days are of UTC.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from opbox_protocol.errors import NotReadyError

from ..device_time import DeviceTime
from ..logs import Logger

__all__ = ["FLUSH_S", "SHOWN_DAYS", "DayUsage", "UsageLedger", "check_ledger", "seconds_to_tomorrow", "today"]

FLUSH_S = 2.0
"""Seconds between two writes; a killed server loses at most this much."""
SHOWN_DAYS = 31
"""Number of recent days to keep in memory and to answer; the file goes back further."""
_LOCKED_S = 2.0
"""Seconds to wait while another server writes the same file."""
_LARGEST = (1 << 63) - 1

_log = Logger("opbox.usage")


@dataclass(slots=True)
class DayUsage:
    """Usage of one owner on one day.

    Attributes:
        worker_seconds, queue_seconds: that calls ran, and waited for their turn.
        runs: batches of commands, and calls without a session.
        requests, refused: that were answered; and those of them that a quota refused.
        received_bytes, sent_bytes: of bodies.
        sessions: that were made.
        peak_bytes: of device memory, the most at a time, in all workers together.
        storage_bytes: of checkpoints and datasets, the most at a time.
    """

    worker_seconds: float = 0.0
    queue_seconds: float = 0.0
    runs: int = 0
    requests: int = 0
    refused: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    sessions: int = 0
    peak_bytes: int = 0
    storage_bytes: int = 0

    def add(self, other: DayUsage) -> None:
        """Add another's figures to these."""
        for name in _FIELDS:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, max(mine, theirs) if name in _MAXIMA else mine + theirs)

    def json(self) -> dict[str, Any]:
        """The figures by name."""
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in asdict(self).items()}


_FIELDS = tuple(field.name for field in fields(DayUsage))
_MAXIMA = ("peak_bytes", "storage_bytes")
_TYPES = {field.name: "REAL" if field.name.endswith("_seconds") else "INTEGER" for field in fields(DayUsage)}
_TABLE = (
    "CREATE TABLE IF NOT EXISTS usage (day TEXT NOT NULL, owner TEXT NOT NULL, "
    + ", ".join(f"{name} {kind} NOT NULL DEFAULT 0" for name, kind in _TYPES.items())
    + ", PRIMARY KEY (day, owner)) WITHOUT ROWID"
)
_ADD = (
    f"INSERT INTO usage (day, owner, {', '.join(_FIELDS)}) VALUES (?, ?{', ?' * len(_FIELDS)}) "
    "ON CONFLICT (day, owner) DO UPDATE SET "
    + ", ".join(
        f"{name} = max({name}, excluded.{name})" if name in _MAXIMA else f"{name} = {name} + excluded.{name}"
        for name in _FIELDS
    )
)
_READ = f"SELECT day, owner, {', '.join(_FIELDS)} FROM usage WHERE day >= ?"


class UsageLedger:
    """The usage ledger. Any thread may add and read figures; neither waits for the disk.

    Args:
        path: the database; None to count in memory only.
        keep_days: how far it goes back.
        storage: bytes of an owner's checkpoints and datasets, asked by the ledger's thread; None where there are none.
        now: seconds since 1970, for tests.

    Raises:
        NotReadyError: the file cannot be opened, or is no ledger.
    """

    def __init__(
        self,
        path: Path | None,
        keep_days: int = 400,
        storage: Callable[[str], int] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._keep_days = keep_days
        self._storage = storage
        self._now = now
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str], DayUsage] = {}
        self._writing: Mapping[tuple[str, str], DayUsage] = {}
        self._times: dict[tuple[str, str], DeviceTime] = {}
        self._thread = ThreadPoolExecutor(1, "opbox-usage")
        self._flushing: Future[None] | None = None
        self._failed = False
        self._storage_problem = ""
        self._trimmed = ""
        try:
            self._database = _opened(self._path)  # only the ledger's thread uses it from here on
            self._stored = self._read(_first_day(self._now()))
        except sqlite3.Error as error:
            raise NotReadyError(
                f"state_dir: {self._path}: expected a usage ledger that can be read and written, got none ({error}): "
                "move the file away, or name another directory"
            ) from None

    # -- counting -----------------------------------------------------------------------------------------------

    def count(self, owner: str, **figures: float) -> None:
        """Count these figures of an owner's today, by their names in DayUsage.

        Example:
            >>> ledger.count("ann", requests=1, sent_bytes=4096)
        """
        key = (today(self._now()), owner)
        with self._lock:
            usage = self._pending.get(key)
            if usage is None:
                usage = self._pending[key] = DayUsage()
            for name, value in figures.items():
                if name in _MAXIMA:
                    setattr(usage, name, max(getattr(usage, name), value))
                else:
                    setattr(usage, name, getattr(usage, name) + value)

    def count_request(self, owner: str, refused: bool, received: int, sent: int) -> None:
        """Count a request of an owner's, and the bytes of its body and its answer; `count` costs twice as much."""
        key = (today(self._now()), owner)
        with self._lock:
            usage = self._pending.get(key)
            if usage is None:
                usage = self._pending[key] = DayUsage()
            usage.requests += 1
            usage.refused += refused
            usage.received_bytes += received
            usage.sent_bytes += sent

    def take_times(self, sums: Mapping[tuple[str, str], DeviceTime]) -> None:
        """Count what was added to these sums, by owner and device, since they were last taken."""
        for key, total in sums.items():
            last = self._times.get(key) or DeviceTime()
            now = DeviceTime(total.queue_s, total.compute_s, total.runs)
            if now.runs != last.runs or now.compute_s != last.compute_s:
                self._times[key] = now
                self.count(
                    key[0],
                    worker_seconds=now.compute_s - last.compute_s,
                    queue_seconds=now.queue_s - last.queue_s,
                    runs=now.runs - last.runs,
                )

    # -- asking -------------------------------------------------------------------------------------------------

    def worker_seconds(self, owner: str) -> float:
        """Return the seconds that the owner has used today."""
        key = (today(self._now()), owner)
        with self._lock:
            parts = (self._stored.get(key), self._writing.get(key), self._pending.get(key))
            return sum(part.worker_seconds for part in parts if part is not None)

    def days(self, owner: str | None = None) -> dict[str, dict[str, DayUsage]]:
        """The last SHOWN_DAYS days of one owner, or of all: usage by owner and day, the newest day first."""
        first = _first_day(self._now())
        listed: dict[str, dict[str, DayUsage]] = {}
        with self._lock:
            # Nothing is added to the first two; whoever counts does not wait until all are added up.
            pending = {key: replace(usage) for key, usage in self._pending.items()}
            parts = (self._stored, self._writing, pending)
        for part in parts:
            for (day, name), usage in part.items():
                if day >= first and owner in (None, name):
                    listed.setdefault(name, {}).setdefault(day, DayUsage()).add(usage)
        return {name: dict(sorted(of_day.items(), reverse=True)) for name, of_day in sorted(listed.items())}

    # -- the file -----------------------------------------------------------------------------------------------

    def flush(self) -> Future[None]:
        """Write what was counted, by the ledger's thread; while a write is under way, the future of that one."""
        if self._flushing is None or self._flushing.done():
            self._flushing = self._thread.submit(self._write)
        return self._flushing

    def close(self) -> None:
        """Write what is left and close the file."""
        self._thread.submit(self._write)
        self._thread.submit(self._database.close)
        self._thread.shutdown(wait=True)

    def _write(self) -> None:
        with self._lock:
            self._writing, self._pending = self._pending, {}
            rows = dict(self._writing)
        day = today(self._now())
        try:
            self._add_storage(rows, day)
            if rows:
                self._write_rows(rows, day)
        except Exception as error:
            self._say(error, "the usage ledger was not written; it is tried again")
            with self._lock:
                for key, usage in rows.items():
                    self._pending.setdefault(key, DayUsage()).add(usage)
                self._writing = {}
            return
        try:
            stored = self._read_again(min((day, *(of for of, _ in rows))))
        except Exception as error:  # the rows are in the file, and must not be added again
            self._say(error, "the usage ledger was not read; it is tried again")
            stored = dict(self._stored)
            for key, usage in rows.items():
                stored[key] = replace(stored.get(key, DayUsage()))
                stored[key].add(usage)
        else:
            self._failed = False
        with self._lock:
            self._stored = stored
            self._writing = {}

    def _say(self, error: Exception, problem: str) -> None:
        """Log a problem, unless it is one that lasts."""
        if not self._failed:
            _log.error(problem, error=str(error) or type(error).__name__, exc_info=error)
        self._failed = True

    def _add_storage(self, rows: dict[tuple[str, str], DayUsage], day: str) -> None:
        """Add what these owners' checkpoints take."""
        if self._storage is None:
            return
        for owner in {name for _, name in rows}:
            try:
                nbytes = self._storage(owner)
            except OSError:
                continue
            except Exception as error:
                if repr(error) != self._storage_problem:
                    _log.error("what checkpoints take was not counted", owner=owner, error=repr(error), exc_info=error)
                self._storage_problem = repr(error)
                continue
            usage = rows.setdefault((day, owner), DayUsage())
            usage.storage_bytes = max(usage.storage_bytes, nbytes)

    def _write_rows(self, rows: Mapping[tuple[str, str], DayUsage], day: str) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            database.executemany(_ADD, (_row(key, usage) for key, usage in rows.items()))
            if self._trimmed != day:
                oldest = today(self._now() - 86_400 * self._keep_days)
                database.execute("DELETE FROM usage WHERE day < ?", (oldest,))
            database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise
        self._trimmed = day

    def _read_again(self, since: str) -> dict[tuple[str, str], DayUsage]:
        """The days in memory, those from `since` on as the file has them: another server may have added to it."""
        first = _first_day(self._now())
        stored = {key: usage for key, usage in self._stored.items() if first <= key[0] < since}
        return stored | self._read(since)

    def _read(self, since: str) -> dict[tuple[str, str], DayUsage]:
        rows: Iterable[tuple[Any, ...]] = self._database.execute(_READ, (since,))
        return {(row[0], row[1]): DayUsage(*row[2:]) for row in rows if _is_usage(row)}


def check_ledger(path: Path) -> None:
    """Raise sqlite3.Error where a file is no ledger that a server can open, read as a whole, and write."""
    with contextlib.closing(_opened(path)) as database:
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(str(verdict))
        for _ in database.execute(_READ, ("",)):
            pass
        database.execute(f"EXPLAIN {_ADD}", _row(("", ""), DayUsage()))


def _opened(path: Path | None) -> sqlite3.Connection:
    database = sqlite3.connect(
        ":memory:" if path is None else path, timeout=_LOCKED_S, isolation_level=None, check_same_thread=False
    )
    try:
        # A write that ends with the process is whole or not there; one that ends with the machine may be lost.
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.execute(_TABLE)
        columns = {row[1] for row in database.execute("PRAGMA table_info(usage)")}
        for name in _FIELDS:
            if name not in columns:
                database.execute(f"ALTER TABLE usage ADD COLUMN {name} {_TYPES[name]} NOT NULL DEFAULT 0")
    except BaseException:
        database.close()
        raise
    return database


def _is_usage(row: tuple[Any, ...]) -> bool:
    """Return whether a row has a day, an owner, and figures: a file that others have written to may have anything."""
    return all(type(name) is str for name in row[:2]) and all(
        type(figure) in (int, float) and 0 <= figure < math.inf for figure in row[2:]
    )


def today(now: float) -> str:
    """The day, of UTC, as in 2030-01-31."""
    return _day(int(now // 86_400))


@lru_cache(maxsize=4)
def _day(number: int) -> str:
    return datetime.fromtimestamp(number * 86_400, UTC).date().isoformat()


def seconds_to_tomorrow(now: float) -> float:
    """Return the seconds until the next day of UTC."""
    midnight = datetime.combine(datetime.fromtimestamp(now, UTC).date() + timedelta(days=1), datetime.min.time(), UTC)
    return midnight.timestamp() - now


def _first_day(now: float) -> str:
    return today(now - 86_400 * (SHOWN_DAYS - 1))


def _row(key: tuple[str, str], usage: DayUsage) -> tuple[Any, ...]:
    values = (getattr(usage, name) for name in _FIELDS)
    return (*key, *(value if isinstance(value, float) else min(value, _LARGEST) for value in values))
