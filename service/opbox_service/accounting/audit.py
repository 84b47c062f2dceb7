"""The audit log: who did what, as one JSON object per line. Lines are only appended.

Lines are written by a thread, in the order in which they came, and are in the kernel's hands at once: a server that is
killed loses what it has not come to, a few lines. On a full disk a line is written whole or not at all; the others wait
until there is space, and their number is in a file beside the log, so that it outlives the server. Refusals that repeat
are one line with their number, so that nobody fills the disk by being refused. A line holds names and numbers: no
token, no source, no value of a tensor.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opbox_protocol.errors import NotReadyError

from ..logs import Logger

__all__ = ["AuditLog"]

REPEATED_S = 10.0
"""Seconds during which equal refusals share one line."""
KINDS = 1000
"""Maximum number of different refusals that are counted separately at a time."""
WAITING = 10_000
"""Maximum number of lines that wait for the disk; further lines are only counted."""
TEXT = 300
"""Maximum number of characters of a value in a line."""
DIGITS = 19
"""Digits of the number of unwritten lines: always as many, since on a full disk bytes can be replaced and not added."""
LOCKED_S = 2.0
"""Seconds to wait while another server writes the same file."""

_log = Logger("opbox.audit")


class AuditLog:
    """Writes the audit log. Any thread may call it; none waits for the disk.

    Args:
        path: of the file that lines are added to; None to note nothing.
        largest: bytes from which on it is put away as `path`.1, and that as `path`.2.
        files: how many of those stay.
        locked_s: seconds to wait while another server writes the file.
        waiting: number of lines that wait for the disk at most.

    Attributes:
        problem: why lines cannot be written now; empty where they can be.

    Raises:
        NotReadyError: the file cannot be written.
    """

    def __init__(
        self,
        path: Path | None,
        largest: int = 16 << 20,
        files: int = 8,
        *,
        locked_s: float = LOCKED_S,
        waiting: int = WAITING,
    ) -> None:
        self._locked_s = locked_s
        self._waiting = waiting
        self._path = path
        self._largest = largest
        self._files = files
        self._lines: deque[bytes] = deque()
        self._left_out = 0
        self._reported = 0
        self._unwritten = 0
        self.problem = ""
        self._refusals: dict[tuple[Any, ...], tuple[float, int, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._busy = False
        self._thread = ThreadPoolExecutor(1, "opbox-audit") if path is not None else None
        if path is not None:
            try:
                self._add(deque())
                with self._locked() as lock:
                    self._left_out = self._unwritten = _count_in(lock)
            except OSError as error:
                raise NotReadyError(
                    f"state_dir: {path}: expected an audit log that can be written, got none ({error.strerror}): name "
                    "another directory"
                ) from None

    def note(self, action: str, owner: str, **fields: Any) -> None:
        """Add a line.

        Example:
            >>> audit.note("session.made", "ann", session=id, device="cpu", code=False)
        """
        if self._thread is None:
            return
        line = _line(action, owner, fields)
        with self._lock:
            if len(self._lines) >= self._waiting:
                self._left_out += 1
                return
            self._lines.append(line)
        self._begin()

    def refusal(self, owner: str, **fields: Any) -> None:
        """Add a line on a refused request, unless its like has one of the last REPEATED_S seconds; then count it."""
        key = (owner, fields.get("status"), fields.get("route"), fields.get("type"))
        now = time.monotonic()
        with self._lock:
            since, number, _ = self._refusals.get(key, (now, -1, {}))
            if number < 0 and len(self._refusals) >= KINDS:
                self._left_out += 1
                return
            self._refusals[key] = (since, number + 1, fields)
        if number < 0:
            self.note("refused", owner, **fields)

    def tick(self) -> None:
        """Add a line on refusals that were repeated, and write again what failed; called now and then."""
        now = time.monotonic()
        with self._lock:
            over = [(key, entry) for key, entry in self._refusals.items() if now - entry[0] >= REPEATED_S]
            for key, _ in over:
                del self._refusals[key]
        for (owner, *_), (_, number, fields) in over:
            if number:
                self.note("refused", str(owner), **{**fields, "repeated": number})
        with self._lock:
            if self._left_out and len(self._lines) < self._waiting:
                self._lines.append(_line("left out", "", {"lines": self._left_out}))
                self._reported += self._left_out
                self._left_out = 0
        self._begin()

    def close(self, last: str = "") -> None:
        """Write what is left, repeated refusals too, and `last`, an action, behind all."""
        with self._lock:
            self._refusals = {key: (float("-inf"), *entry[1:]) for key, entry in self._refusals.items()}
        self.tick()
        if last:
            self.note(last, "")
        if self._thread is not None:
            self._thread.shutdown(wait=True)
            self._write()  # what could not be written before
            if self._lines:
                _log.error("the audit log lost lines", error=self.problem, lines=len(self._lines))

    def _begin(self) -> None:
        """Start to write the lines that wait, unless a write is under way."""
        with self._lock:
            if self._thread is None or self._busy or not self._lines:
                return
            self._busy = True
        try:
            self._thread.submit(self._write)
        except RuntimeError:  # it has been closed, or the system has no thread left: the next line tries again
            with self._lock:
                self._busy = False

    def _write(self) -> None:
        while True:
            with self._lock:
                lines, reported = deque(self._lines), self._reported
                if not lines:
                    self._busy = False
                    return
            number, problem = len(lines), ""
            try:
                self._add(lines)
            except OSError as error:
                problem = error.strerror or str(error)
            if problem and not self.problem:
                _log.error("the audit log cannot be written; its lines wait", error=problem)
            elif self.problem and not problem:
                _log.info("the audit log is written again")
            self.problem = problem
            with self._lock:
                for _ in range(number - len(lines)):
                    self._lines.popleft()
                if problem:
                    self._busy = False
                    return
                self._reported -= reported

    def _add(self, lines: deque[bytes]) -> None:
        """Add lines to the file, and remove from `lines` what is there.

        Raises:
            OSError: not all of them could be written; the file ends with a whole line.
        """
        assert self._path is not None
        with self._locked() as lock:
            text = b"".join(lines)
            try:
                with contextlib.suppress(FileNotFoundError):
                    if lines and self._path.stat().st_size + len(text) > self._largest:
                        self._rotate()
                fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    _append(fd, lines)
                finally:
                    os.close(fd)
            finally:
                self._count(lock, len(lines))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file that servers which share a log lock to write to it; OSError when another has it for too long."""
        assert self._path is not None
        lock = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _take(lock, self._locked_s)
            yield lock
        finally:
            os.close(lock)

    def _count(self, lock: int, waiting: int) -> None:
        """Note in the lock's file how many lines of this server are not in the log, besides those of other servers."""
        with self._lock:
            # A line that reports others may be among those that wait.
            unwritten = waiting + self._left_out + (self._reported if waiting else 0)
        with contextlib.suppress(OSError):
            total = max(0, _count_in(lock) - self._unwritten + unwritten)
            os.pwrite(lock, b"%0*d\n" % (DIGITS, total), 0)
            self._unwritten = unwritten

    def _rotate(self) -> None:
        assert self._path is not None
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files + 1))]
        for newer, older in reversed(list(itertools.pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)


def _take(lock: int, patience_s: float) -> None:
    """Lock the file; OSError when another server has had it locked for so long."""
    end = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise OSError(errno.ETIMEDOUT, f"another server has had it locked for {patience_s:g} s") from None
        time.sleep(0.01)


def _append(fd: int, lines: deque[bytes]) -> None:
    """Add lines to a file, and remove from `lines` what is there; OSError where that is not all."""
    size = os.fstat(fd).st_size
    # Somebody's last line was cut off.
    begin = b"\n" if lines and size and os.pread(fd, 1, size - 1) != b"\n" else b""
    text, written = begin + b"".join(lines), 0
    try:
        while written < len(text):
            written += os.write(fd, text[written:])
    finally:
        whole = text.rfind(b"\n", 0, written) + 1
        if whole < written:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size + whole)
        rest = whole - len(begin)
        while lines and rest >= len(lines[0]):
            rest -= len(lines.popleft())


def _count_in(lock: int) -> int:
    """The number that the lock's file has; 0 where it has none yet."""
    text = os.pread(lock, DIGITS, 0)
    return int(text) if text.isdigit() else 0


def _line(action: str, owner: str, fields: dict[str, Any]) -> bytes:
    time_of_day = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"time": time_of_day, "action": action, "owner": owner, **fields}
    short = {key: value[:TEXT] if isinstance(value, str) else value for key, value in entry.items()}
    # Names may be any text; a surrogate alone is none that can be written.
    return json.dumps(short, default=str).encode() + b"\n"
