"""The audit log: who did what, as one JSON object per line. Lines are only appended.

Lines are written by a thread, in the order in which they came, and are in the kernel's hands at once: a server that is
killed loses what it has not come to, a few lines. Refusals that repeat are one line with their number, so that nobody
fills the disk by being refused. A line holds names and numbers: no token, no source, no value of a tensor.
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
LOCKED_S = 2.0
"""Seconds to wait while another server writes the same file."""

_log = Logger("opbox.audit")


class AuditLog:
    """Writes the audit log. Any thread may call it; none waits for the disk.

    Args:
        path: of the file that lines are added to; None to note nothing.
        largest: bytes from which on it is put away as `path`.1, and that as `path`.2.
        files: how many of those stay.

    Raises:
        NotReadyError: the file cannot be written.
    """

    def __init__(
        self, path: Path | None, largest: int = 16 << 20, files: int = 8, *, locked_s: float = LOCKED_S
    ) -> None:
        self._locked_s = locked_s
        self._path = path
        self._largest = largest
        self._files = files
        self._lines: deque[bytes] = deque()
        self._left_out = 0
        self._refusals: dict[tuple[Any, ...], tuple[float, int, dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._busy = False
        self._failed = False
        self._thread = ThreadPoolExecutor(1, "opbox-audit") if path is not None else None
        if path is not None:
            try:
                self._add(b"")
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
            if len(self._lines) >= WAITING:
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
            left_out, self._left_out = self._left_out, 0
        for (owner, *_), (_, number, fields) in over:
            if number:
                self.note("refused", str(owner), **{**fields, "repeated": number})
        if left_out:
            self.note("left out", "", lines=left_out)
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
                lines, self._lines = self._lines, deque()
                if not lines:
                    self._busy = False
                    return
            try:
                self._add(b"".join(lines))
            except OSError as error:
                if not self._failed:
                    _log.error("the audit log was not written", error=error.strerror, lines=len(lines))
                self._failed = True
                with self._lock:
                    if error.errno == errno.ETIMEDOUT:
                        lines.extend(self._lines)
                        self._lines, self._busy = lines, False
                        return
                    self._left_out += len(lines)
            else:
                self._failed = False

    def _add(self, lines: bytes) -> None:
        """Add lines by one write; servers that share the file do so one after the other."""
        assert self._path is not None
        lock = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _take(lock, self._locked_s)
            with contextlib.suppress(FileNotFoundError):
                if lines and self._path.stat().st_size + len(lines) > self._largest:
                    self._rotate()
            fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(fd).st_size
                if lines and size and os.pread(fd, 1, size - 1) != b"\n":
                    lines = b"\n" + lines  # somebody's last line was cut off
                written = 0
                while written < len(lines):
                    written += os.write(fd, lines[written:])
            finally:
                os.close(fd)
        finally:
            os.close(lock)

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


def _line(action: str, owner: str, fields: dict[str, Any]) -> bytes:
    time_of_day = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"time": time_of_day, "action": action, "owner": owner, **fields}
    short = {key: value[:TEXT] if isinstance(value, str) else value for key, value in entry.items()}
    # Names may be any text; a surrogate alone is none that can be written.
    return json.dumps(short, default=str).encode() + b"\n"
