"""Copies what a code process prints from a pipe into the server's log, line by line, within a rate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable

__all__ = ["Output"]

BURST, RATE = 1 << 16, 1 << 13
"""Bytes of output to log at once, and per second."""
LINE = 4096
"""Maximum bytes of a logged line; longer lines are split."""
READ, PAUSE_S = 1 << 20, 0.05
"""Bytes that are read at a time, and how long after that: whoever prints without an end neither fills a log nor keeps
the server busy."""


class Output:
    """Reads a code process's output from the server's end of the pipe.

    Args:
        write: gets each line.

    Attributes:
        fd: the other end, until `started`; then -1.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._ours, self.fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._ours, False)
        self._line = b""
        self._allowance = float(BURST)
        self._counted = time.monotonic()
        self._dropped = 0
        self._pause: asyncio.TimerHandle | None = None

    def started(self) -> None:
        """Close the process's end of the pipe, after the process has inherited it."""
        os.close(self.fd)
        self.fd = -1
        self._resume()

    def close(self) -> None:
        """Write what is still there; to be called when the process has ended, or could not be started."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._ours)
        self._take()
        if self._line:
            self._emit(self._line)
        self._report_dropped()
        for fd in (self._ours, self.fd):
            if fd >= 0:
                os.close(fd)

    def _resume(self) -> None:
        self._loop.add_reader(self._ours, self._read)

    def _read(self) -> None:
        self._loop.remove_reader(self._ours)
        if self._take():
            self._pause = self._loop.call_later(PAUSE_S, self._resume)

    def _take(self) -> bool:
        """Read the output that has come, within bounds; return whether more can come."""
        taken = 0
        with contextlib.suppress(BlockingIOError):
            while taken < READ:
                part = os.read(self._ours, 1 << 16)
                if not part:
                    return False
                taken += len(part)
                self._split(part)
        return True

    def _split(self, part: bytes) -> None:
        *lines, self._line = (self._line + part).split(b"\n")
        for line in lines:
            self._emit(line)
        while len(self._line) >= LINE:
            self._emit(self._line[:LINE])
            self._line = self._line[LINE:]

    def _emit(self, line: bytes) -> None:
        now = time.monotonic()
        self._allowance = min(BURST, self._allowance + (now - self._counted) * RATE)
        self._counted = now
        if self._allowance < len(line):
            self._dropped += len(line) + 1
            return
        self._report_dropped()
        for at in range(0, len(line), LINE):
            self._write(line[at : at + LINE].decode("utf-8", "replace"))
        self._allowance -= len(line) + 100  # what the log adds

    def _report_dropped(self) -> None:
        if self._dropped:
            self._write(f"({self._dropped} bytes more, which came too fast to be logged)")
            self._dropped = 0
