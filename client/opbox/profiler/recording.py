"""The profile that this process records: the events of its engine's sessions and of its own marks.

An engine notes times on its own clock. When a session begins to record, its clock is read once, so that its events can
be shown beside those of this process, on another machine too.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from opbox_protocol.commands import RecordProfile
from opbox_protocol.errors import MXNetError

from .. import connection, device_sessions
from ..session import Session
from .statistics import Statistics

__all__ = ["RECORDING", "THREADS", "Recording", "TraceEvent", "now_us", "write_at_exit"]

TraceEvent: TypeAlias = dict[str, Any]
"""An event of the trace format of Chrome (https://chromium.googlesource.com/catapult, Trace Event Format)."""
TAKEN = 8192
"""Number of events to request at a time."""
CATEGORIES = {"symbolic": "operator", "imperative": "operator", "api": "command"}

THREADS = tuple(CATEGORIES)
"""The threads of a device in the trace, by number."""


def now_us() -> float:
    """Microseconds of this process's clock, since 1970."""
    return time.time_ns() / 1000


@dataclass
class Recording:
    """Settings of a recording.

    Attributes:
        kinds: what engines are to time.
        filename: where the trace goes.
        aggregate: whether statistics are kept.
        running, paused: the state.
        started: whether it has run since its last final dump.
        events: of the trace, in the order in which they came.
        devices: their names by number: the processes of the trace.
        statistics: see `Statistics`.
    """

    kinds: frozenset[str] = frozenset({"symbolic", "imperative", "api"})
    filename: str = "profile.json"
    aggregate: bool = False
    running: bool = False
    paused: bool = False
    started: bool = False
    events: list[TraceEvent] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    _offsets: dict[Session, float] = field(default_factory=dict)
    _dropped: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.RLock()

    @property
    def active(self) -> bool:
        """Whether events are recorded now."""
        return self.running and not self.paused

    def note(self, event: TraceEvent) -> None:
        """Add an event of this process's."""
        self.events.append(event)

    def apply(self) -> None:
        """Tell every open session what to time from here on; its events so far come in."""
        with self._lock:
            for session in device_sessions.sessions().values():
                self._tell(session)

    def begin(self, session: Session) -> None:
        """Record a new session if others are recorded."""
        if self.active:
            with self._lock:
                self._tell(session)

    def collect(self) -> None:
        """Take in what the sessions have noted so far."""
        with self._lock:
            for session in list(self._offsets):
                self._take(session, None)

    def leave(self) -> None:
        """The same before the sessions are closed."""
        self.collect()
        self._offsets.clear()

    def forget(self) -> None:
        """Drop the events that were recorded, not the statistics."""
        self.events, self.started, self._dropped = [], False, 0

    def _tell(self, session: Session) -> None:
        kinds = sorted(self.kinds) if self.active else []
        if not kinds and session not in self._offsets:
            return
        self._take(session, kinds)
        if not kinds:
            self._offsets.pop(session, None)

    @staticmethod
    def _offset(session: Session) -> float:
        """Microseconds between the engine's clock and this process's; the first question waits for what is recorded."""
        question: RecordProfile = {"do": "profile"}
        session.ask(question)
        before = now_us()
        answer = session.ask(question)
        return (before + now_us()) / 2 - float(answer["clock_ns"]) / 1000

    def _take(self, session: Session, kinds: list[str] | None) -> None:
        """Take a session's events; the first request tells it what to time."""
        while not session.lost:
            command: RecordProfile = {"do": "profile", "record": kinds, "take": TAKEN}
            try:
                answer = session.ask(command)
                if session not in self._offsets:
                    self._offsets[session] = self._offset(session)
            except MXNetError as error:
                self._offsets.pop(session, None)
                if kinds:
                    raise
                warnings.warn(f"profiler: the times of {session.device} are lost: {error}", stacklevel=2)
                return
            self._add(session.device, self._offsets[session], answer)
            self._warn(answer["dropped"])
            kinds = None
            if not answer["left"]:
                return
        self._offsets.pop(session, None)

    def _add(self, device: str, offset: float, answer: dict[str, Any]) -> None:
        name = device.replace(":", "/") if ":" in device else f"{device}/0"
        if name not in self.devices:
            self.devices.append(name)
        pid = self.devices.index(name)
        for number, began, duration in answer["events"]:
            kind, title, operator = answer["titles"][number]
            category, label = CATEGORIES[kind], operator or title
            arguments = {"node": title, "operator": operator} if kind == "symbolic" else {}
            self.events.append(
                {
                    "name": label,
                    "cat": category,
                    "ph": "X",
                    "ts": began / 1000 + offset,
                    "dur": duration / 1000,
                    "pid": pid,
                    "tid": THREADS.index(kind),
                    "args": arguments,
                }
            )
            if self.aggregate:
                self.statistics.add(category, label, duration / 1e6)

    def _warn(self, dropped: int) -> None:
        if dropped > self._dropped:
            self._dropped = dropped
            warnings.warn(
                f"profiler: the engine had no place for {dropped} events: call dump(finished=False), or pause and "
                "resume, every few hundred steps",
                stacklevel=2,
            )


RECORDING = Recording()
"""The recording of this process."""


def write_at_exit(write: Callable[[], None]) -> None:
    """Call `write` at exit if something is being recorded, as MXNet does."""

    def at_exit() -> None:
        if RECORDING.started and RECORDING.events:
            write()

    atexit.register(at_exit)


device_sessions.when_opened(RECORDING.begin)
connection.before_disconnect(RECORDING.leave)
