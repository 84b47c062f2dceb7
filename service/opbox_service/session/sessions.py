"""All sessions of an engine: made, found by their owner, ended by hand or by time."""

from __future__ import annotations

import ctypes
import gc
import secrets
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from opbox_protocol.errors import (
    BadRequestError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    QuotaError,
    UnsupportedError,
)

from ..settings import SCOPES, UPLOADS, Scope, Settings
from .custody import FREE, Custody
from .graphs import GraphCache
from .session import Session

__all__ = ["Sessions", "return_memory"]

REMEMBERED = 10_000
"""Ended sessions whose owners still learn what became of them."""


class Sessions:
    """The sessions of one engine.

    Ids are random and bound to an owner: for anybody else there is no such session.
    """

    def __init__(self, settings: Settings, graphs: GraphCache, custody: Custody = FREE) -> None:
        self._settings = settings
        self._custody = custody
        self._graphs = graphs
        self._sessions: dict[str, Session] = {}
        self._gone: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._sweeper: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def create(self, owner: str, header: Mapping[str, Any], scopes: frozenset[Scope] = SCOPES) -> Session:
        """A new session of `owner`.

        Raises:
            BadRequestError: a field is unknown, or of the wrong kind.
            ForbiddenError: it is to take code, and its token may not bring any.
            UnsupportedError: no such device.
            QuotaError: the owner has too many.
        """
        told = self._settings
        unknown = sorted(set(header) - {"device", "ttl_s", "seed", "code", "inputs", "parameters"})
        if unknown:
            raise BadRequestError(f"unknown field {unknown[0]!r}: expected device, ttl_s, seed, code")
        check_code(header.get("code"), scopes)
        device, ttl_s, seed = header.get("device", told.device), header.get("ttl_s"), header.get("seed", 0)
        check_device(device, told)
        if ttl_s is None:
            ttl_s = told.session_ttl_s
        if isinstance(ttl_s, bool) or not isinstance(ttl_s, int | float) or not 0 < ttl_s <= told.max_ttl_s:
            raise BadRequestError(f"ttl_s: expected seconds above 0 and up to {told.max_ttl_s:g}, got {ttl_s!r}")
        check_seed(seed)
        with self._lock:
            count = sum(1 for session in self._sessions.values() if session.owner == owner)
            if count >= told.max_sessions:
                raise QuotaError(f"sessions: expected at most {told.max_sessions} of an owner: delete one first")
            id = secrets.token_hex(16)
            session = Session(id, owner, device, seed, float(ttl_s), self._graphs, told, self._custody)
            self._sessions[id] = session
        self._start_sweeping()
        return session

    def get(self, owner: str, id: str) -> Session:
        """The owner's session; NotFoundError, or GoneError when it has ended."""
        session = self._sessions.get(id)
        if session is not None and session.owner == owner:
            return session
        ended = self._gone.get(id)
        if ended is not None and ended[0] == owner:
            raise GoneError(ended[1])
        raise NotFoundError(f"session {id[:64]!r}: expected one of yours, got an id that is not: make a new session")

    def of(self, owner: str) -> list[Session]:
        """The owner's sessions, oldest first."""
        return [session for session in list(self._sessions.values()) if session.owner == owner]

    def delete(self, owner: str, id: str) -> None:
        """End a session."""
        self._end(self.get(owner, id), f"session {id} was deleted: make a new one")

    def sweep(self) -> None:
        """End the sessions that nobody has used for their time to live, and batches that wait for what never comes."""
        now = time.monotonic()
        for session in list(self._sessions.values()):
            if session.idle(now):
                self._end(session, f"session {session.id} expired after {session.ttl_s:g} s unused: make a new one")
            else:
                session.expire_waiting(now, self._settings.deadline_s)

    def close(self) -> None:
        """End all of them."""
        self._stop.set()
        for session in list(self._sessions.values()):
            self._end(session, "the server has stopped: make a new session when it is back")
        if self._sweeper is not None and self._sweeper is not threading.current_thread():
            self._sweeper.join(5)

    def _end(self, session: Session, reason: str) -> None:
        with self._lock:
            self._sessions.pop(session.id, None)
            self._gone[session.id] = (session.owner, reason)
            while len(self._gone) > REMEMBERED:
                self._gone.popitem(last=False)
        session.close(reason)
        return_memory()

    def _start_sweeping(self) -> None:
        with self._lock:
            if self._sweeper is None and not self._stop.is_set():
                self._sweeper = threading.Thread(target=self._keep_sweeping, name="opbox-sweeper", daemon=True)
                self._sweeper.start()

    def _keep_sweeping(self) -> None:
        while not self._stop.wait(0.5):
            self.sweep()


def check_device(device: Any, settings: Settings) -> None:
    """BadRequestError, or UnsupportedError when this server does not offer the device."""
    if not isinstance(device, str):
        raise BadRequestError(f"device: expected a name such as 'cpu' or 'gpu', got {device!r}")
    if settings.devices and device not in settings.devices:
        raise UnsupportedError(f"device {device[:40]!r}: expected one of {', '.join(settings.devices)}")


def check_code(code: Any, scopes: frozenset[Scope]) -> None:
    """BadRequestError, or ForbiddenError when code is asked for and the token may bring none."""
    if code is not None and type(code) is not bool:
        raise BadRequestError(f"code: expected true or false, got {code!r}")
    if code and not scopes & UPLOADS:
        held = ", ".join(sorted(scopes)) or "none"
        raise ForbiddenError(
            f"code: expected a token with the scope 'upload-python' or 'upload-cuda', got one with {held}: use another"
        )


def check_seed(seed: Any) -> None:
    """BadRequestError for what is no seed."""
    if type(seed) is not int or not 0 <= seed < 1 << 64:
        raise BadRequestError(f"seed: expected an integer from 0 to 2**64 - 1, got {seed!r}")


def return_memory() -> None:
    """Give freed memory back to the system; glibc keeps it for reuse otherwise."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
