"""Runs a device's self-check in processes of its own: one that a kernel ends is followed by one that starts behind it.

The time is bounded: a compute that runs for too long ends its process and counts as wrong, and so much as is known when
the whole time is up is the verdict, until a later start goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from opbox_ops.trust import ANY_TYPE

from ..exit_status import ending_of
from .record import Record

__all__ = ["HANG_S", "Outcome", "check", "locked"]

HANG_S = 30.0
"""Seconds that a compute may take, its compilation included."""
MAX_FRUITLESS = 2
"""Processes in a row that may end before they check anything."""
_LAST_LINES = 20


@dataclass(frozen=True)
class Outcome:
    """How a check ended.

    Attributes:
        problem: why it is not finished; empty if it is.
        seconds: that it took.
    """

    problem: str
    seconds: float


@contextlib.contextmanager
def locked(record: Record, until: float) -> Iterator[bool]:
    """The block in which no other process checks for this record; False if another still does when the time is up.

    Args:
        record: its file's folder has the lock's file; where none can be made, nobody is locked out.
        until: by time.monotonic.
    """
    try:
        record.path.parent.mkdir(parents=True, exist_ok=True)
        file = record.path.with_suffix(".lock").open("w")
    except OSError:
        yield True
        return
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    yield False
                    return
                time.sleep(0.05)
        yield True


def check(
    device: str,
    record: Record,
    limit_s: float,
    hang_s: float = HANG_S,
    tell: Callable[[str, str], None] = lambda unit, reason: None,
) -> Outcome:
    """Check what a record lacks, and note it there.

    Args:
        device: "gpu:0".
        record: what is known; it is written to disk as the check goes on.
        limit_s, hang_s: seconds for all, and for one compute.
        tell: called with each unit of the check when it is done, and what was wrong; empty if nothing was.
    """
    start = time.monotonic()
    until = start + limit_s
    record.begin()
    fruitless, problem = 0, ""
    while not record.finished and not problem:
        run = _CheckProcess(device, record, hang_s, tell)
        reason = run.follow(until)
        if record.finished:
            break
        fruitless = 0 if run.found_out else fruitless + 1
        if time.monotonic() >= until:
            problem = f"the time of {limit_s:g} s was up"
        elif fruitless >= MAX_FRUITLESS:
            said = f": {run.last_line}" if run.last_line else ""
            problem = f"its process {reason} before it checked anything{said}"
    return Outcome(problem, time.monotonic() - start)


class _CheckProcess:
    """One process of a check.

    Attributes:
        found_out: whether it added to the record.
        last_line: of what it wrote to standard error.
    """

    def __init__(self, device: str, record: Record, hang_s: float, tell: Callable[[str, str], None]) -> None:
        self._record, self._hang_s, self._tell = record, hang_s, tell
        self.found_out = False
        self.last_line = ""
        self._running: list[Any] = []
        self._since: float | None = None
        self._failure = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        environment = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_TOKEN")}
        # An algorithm that is measured meanwhile would take over between two runs whose bits are compared.
        environment["OPBOX_CUDNN_TUNE"] = "off"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "opbox_service.selfcheck.child", device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment,
        )
        readers = (self._read, self._read_errors)
        self._threads = [threading.Thread(target=work, name="opbox-selfcheck", daemon=True) for work in readers]
        for thread in self._threads:
            thread.start()
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            known = {"units": sorted(record.units), "lost": record.lost}
            self._process.stdin.write(f"{json.dumps(known)}\n")
            self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.last_line = line.strip() or self.last_line

    def follow(self, until: float) -> str:
        """Note what the process finds out, to its end or the time's; returns how it ended."""
        try:
            return self._follow(until)
        finally:
            self._process.kill()
            self._process.wait()
            for thread in self._threads:
                thread.join()
            for stream in (self._process.stdout, self._process.stderr):
                if stream is not None:
                    stream.close()

    def _follow(self, until: float) -> str:
        while True:
            hangs = None if self._since is None else self._since + self._hang_s
            patience = min(until, hangs if hangs is not None else until) - time.monotonic()
            try:
                line = self._lines.get(timeout=max(0.0, patience))
            except queue.Empty:
                if hangs is not None and time.monotonic() >= hangs:
                    self._lose(f"it did not end within {self._hang_s:g} s")
                    return "was ended"
                if time.monotonic() >= until:
                    self._record.add(stopped=1)
                    return "was ended"
                continue
            if line is None:
                how = ending_of(self._process.wait())
                if self._running:
                    self._lose(self._failure or f"its process ended ({how})")
                return f"ended ({how})"
            self._take(line)

    def _take(self, line: str) -> None:
        finding = json.loads(line)
        if "started" in finding:
            self._record.add(**finding)
        elif "running" in finding:
            self._running, self._since = finding["running"], time.monotonic()
            self._record.add(**finding)
        elif "failed" in finding:
            self._failure = finding["failed"]
        elif "unit" in finding:
            self._running, self._since = [], None
            self.found_out = True
            self._record.add(**finding)
            self._tell(finding["unit"], "; ".join(reason for *_, reason in finding["answers"] if reason))
        elif "finished" in finding:
            self.found_out = True
            self._record.add(**finding)

    def _lose(self, reason: str) -> None:
        """What ran is not to run again."""
        self.found_out = True
        names = sorted({name for name, _ in self._running})
        self._record.add(lost=[[name, ANY_TYPE] for name in names], reason=reason)
        self._tell(", ".join(names), reason)
        self._running, self._since = [], None
