"""This process's sessions: one for the CPU and one for all GPUs, opened at first use.

A program with code of its own has a session on each GPU: on a server such a session has its own process and one device.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping

from . import connection
from .operator.code_detection import will_bring_code
from .session import Session
from .session_scope import running
from .sigterm import end_at_sigterm

__all__ = ["adopt", "close_all", "session_for", "sessions", "when_opened"]

_sessions: dict[str, Session] = {}
_sessions_lock = threading.Lock()
_when_opened: list[Callable[[Session], None]] = []


def session_for(device: str) -> Session:
    """This process's session on a device, opened when it is asked for first, and anew when the engine has ended it.

    In the code of an operator that runs on the engine, it is the engine's own (see `session_scope`).
    """
    local = running()
    if local is not None:
        return local.on(device)
    session = _sessions.get(device)
    if session is not None and not session.lost:
        return session
    with _sessions_lock:
        session = _sessions.get(device)
        if session is None or session.lost:
            session = _sessions[device] = _opened(device)
            for tell in _when_opened:
                tell(session)
    if not session.in_process:
        end_at_sigterm(_end_all_at_once)
    return session


def _opened(device: str) -> Session:
    """A session on a device that has none: for a GPU the one that there is on another, where the engine has it so."""
    transport = connection.transport()
    if device.startswith("gpu") and (transport.in_process or not will_bring_code()):
        for other in _sessions.values():
            if other.device.startswith("gpu") and not other.lost:
                joined = other.on_device(device)
                if joined is not None:
                    return joined
    return Session(transport, device)


def when_opened(tell: Callable[[Session], None]) -> None:
    """Call `tell` with every session opened from now on, before anything else uses it."""
    _when_opened.append(tell)


def sessions() -> Mapping[str, Session]:
    """The open sessions by device."""
    return dict(_sessions)


def adopt(session: Session) -> None:
    """Make a session that was begun anew the one of its devices again; others in its place are closed."""
    with _sessions_lock:
        before = [_sessions.get(view.device) for view in session.views]
        _sessions.update({view.device: view for view in session.views})
    for other in before:
        if other is not None and not other.shares_batches(session):
            other.close()


def close_all() -> None:
    """Close all sessions of this process."""
    with _sessions_lock:
        closing = list(_sessions.values())
        _sessions.clear()
    for session in closing:
        session.close()


def _end_all_at_once() -> None:
    for session in list(_sessions.values()):
        session.end_at_once()


def _in_child() -> None:
    global _sessions_lock
    _sessions_lock = threading.Lock()
    _sessions.clear()


connection.before_disconnect(close_all)
os.register_at_fork(after_in_child=_in_child)
