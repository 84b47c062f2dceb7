"""All sessions of an engine: made, found by their owner, ended by hand or by time."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from cachetools import FIFOCache

from opbox_protocol.errors import BadRequestError, ForbiddenError, GoneError, NotFoundError, QuotaError

from ..accounting.accounts import too_many_sessions
from ..allocator import FreedMemory
from ..carriers import OwnerQuota
from ..checkpoint_store import CheckpointStore
from ..commands.table_image import TableImage
from ..dataset_store import DatasetStore
from ..device_time import DeviceTimes
from ..memory_shares import HOST
from ..owner_terms import SCOPES, UPLOADS, Scope
from ..quota import Ledger
from ..session_ids import new_id
from ..settings import Settings
from ..stateless.graph_cache import GraphCache
from .code_policy import CodePolicy
from .moving import MovedError, SessionHeader
from .session import ReportedValues, ServerSession
from .session_devices import check_devices

__all__ = ["Sessions", "ended_by_admin", "no_such"]

REMEMBERED = 10_000
"""Number of ended sessions whose end is remembered, to tell their owners why."""
LATE_S = 2.0
"""Seconds between two checks of all sessions."""


def no_such(id: str) -> NotFoundError:
    """The error for an administrator who names a session that does not exist."""
    return NotFoundError(f"session {id[:64]!r}: expected one of GET /v1/admin/sessions, got an id that is none")


def not_yours(id: str, *, to_end: bool = False) -> NotFoundError:
    """Return the error for an id that is no session's, or another owner's.

    Args:
        id: as named.
        to_end: whether it was to be ended, so that a new one is of no use.
    """
    remedy = "GET /v1/sessions lists yours" if to_end else "make a new session, from a checkpoint if there is one"
    ends = "a session ends when it idles and when the server restarts"
    return NotFoundError(f"session {id[:64]!r}: expected one of yours, got an id that is not ({ends}): {remedy}")


def ended_by_admin(id: str) -> str:
    """The sentence for the owner of a session that an administrator has ended."""
    return f"session {id} was ended by an administrator of the server: make a new one"


class Sessions:
    """The sessions of one engine.

    Ids are random and bound to an owner: for anybody else there is no such session.
    """

    def __init__(
        self,
        settings: Settings,
        graphs: GraphCache,
        code_policy: CodePolicy,
        device_times: DeviceTimes,
        ledger: Ledger,
        checkpoints: CheckpointStore | None = None,
        datasets: DatasetStore | None = None,
    ) -> None:
        self._settings = settings
        self._code_policy = code_policy
        self._graphs = graphs
        self._device_times = device_times
        self._sessions: dict[str, ServerSession] = {}
        self._ledger = ledger
        self._checkpoints = checkpoints
        self._datasets = datasets
        self._gone: FIFOCache[str, tuple[str, str]] = FIFOCache(REMEMBERED)
        self._left: FIFOCache[str, str] = FIFOCache(REMEMBERED)
        self._ended: deque[tuple[str, str, str]] = deque(maxlen=REMEMBERED)
        self._last_reports: list[tuple[str, str, ReportedValues]] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._sweeper: threading.Thread | None = None
        self._freed = FreedMemory()
        self._looked = time.monotonic()
        self._patient_until = 0.0

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self,
        owner: str,
        *,
        device: str | None = None,
        devices: Sequence[str] | None = None,
        ttl_s: float | None = None,
        seed: int = 0,
        code: bool | None = None,
        scopes: frozenset[Scope] = SCOPES,
        quota: OwnerQuota | None = None,
        script: str = "",
        host: str = "",
    ) -> ServerSession:
        """A new session of `owner`.

        Args:
            owner: whose it is.
            device: by default the settings'.
            devices: several, in its place.
            ttl_s: seconds that it is kept unused; by default the settings'.
            seed: of its random source.
            code: whether it may bring code.
            scopes: what the token that asks for it may.
            quota: of the owner; None for the settings'.
            script, host: the program that asks for it, and its machine.

        Raises:
            BadRequestError: a time to live out of range; devices that no session has together; several devices in a
                process for code.
            ForbiddenError: it is to take code, and its token may not bring any.
            UnsupportedError: no such device.
            QuotaError: the owner has too many.
        """
        settings = self._settings
        _check_code(code, scopes)
        if device is not None and devices is not None:
            raise BadRequestError("device: expected either device or devices, got both")
        names = check_devices([settings.device if device is None else device] if devices is None else devices, settings)
        ttl_s = settings.session_ttl_s if ttl_s is None else ttl_s
        if not 0 < ttl_s <= settings.max_ttl_s:
            raise BadRequestError(f"ttl_s: expected seconds above 0 and up to {settings.max_ttl_s:g}, got {ttl_s!r}")
        movable = self._code_policy.move is not None and code is not False and bool(scopes & UPLOADS)
        id = new_id(settings.node)
        return self._new(id, owner, names, seed, float(ttl_s), quota, script, host, movable=movable)

    def adopt(self, owner: str, header: SessionHeader, image: TableImage, quota: OwnerQuota | None) -> ServerSession:
        """Continue a session of another process (`moving`).

        Raises:
            MXNetError: there is no room for it here; nothing has changed then.
        """
        devices = check_devices([header.device], self._settings)
        session = self._new(header.id, owner, devices, 0, header.ttl_s, quota, header.script, header.host)
        try:
            session.take_over(header, image)
        except BaseException:
            with self._lock:
                del self._sessions[session.id]
            session.close("it could not be moved")
            raise
        return session

    def leave(self, id: str) -> None:
        """Drop a session that has moved to another process; further calls are redirected there."""
        with self._lock:
            session = self._sessions.pop(id, None)
            if session is not None:
                self._left[id] = session.owner
                self._last_reports += [(session.owner, id, report) for report in session.take_reports()]
        if session is not None:
            session.leave()

    def moving(self, id: str) -> ServerSession | None:
        """The session of this id, if it rests to be moved."""
        session = self._sessions.get(id)
        return session if session is not None and session.moving else None

    def _new(
        self,
        id: str,
        owner: str,
        devices: Sequence[str],
        seed: int,
        ttl_s: float,
        quota: OwnerQuota | None,
        script: str,
        host: str,
        *,
        movable: bool = False,
    ) -> ServerSession:
        settings = self._settings
        with self._lock:
            count = sum(1 for session in self._sessions.values() if session.owner == owner)
            limit = settings.max_sessions if quota is None else quota.sessions
            if count >= limit:
                raise QuotaError(too_many_sessions(limit))
            session = ServerSession(
                id,
                owner,
                devices,
                seed,
                ttl_s,
                self._graphs,
                settings,
                self._code_policy,
                self._device_times,
                lambda name: self._ledger.of(owner, name),
                self._ledger.of(owner, HOST),
                self._checkpoints,
                settings.max_session_bytes if quota is None else quota.session_bytes,
                self._let_go,
                script,
                host,
                movable=movable,
                datasets=self._datasets,
            )
            self._sessions[id] = session
        self._start_sweeping()
        return session

    def get(self, owner: str, id: str, *, to_end: bool = False) -> ServerSession:
        """The owner's session; NotFoundError, or GoneError when it has ended. `to_end`: as of `not_yours`."""
        session = self._sessions.get(id)
        if session is not None and session.owner == owner:
            if session.moving:
                raise MovedError
            return session
        if self._left.get(id) == owner:
            raise MovedError
        ended = self._gone.get(id)
        if ended is not None and ended[0] == owner:
            raise GoneError(ended[1])
        raise not_yours(id, to_end=to_end)

    def find(self, owner: str, id: str) -> ServerSession | None:
        """Return the owner's session, or None."""
        session = self._sessions.get(id)
        return session if session is not None and session.owner == owner else None

    def of(self, owner: str) -> list[ServerSession]:
        """The owner's sessions, oldest first."""
        return [session for session in list(self._sessions.values()) if session.owner == owner]

    def all(self) -> list[ServerSession]:
        """Everybody's sessions, oldest first."""
        return list(self._sessions.values())

    def take_ended(self) -> list[tuple[str, str, str]]:
        """The sessions that ended since the last time: id, owner and why."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def take_reports(self) -> list[tuple[str, str, ReportedValues]]:
        """Return the programs' reports since the last call, with owner and id of each session."""
        reports, self._last_reports = self._last_reports, []
        for session in self.all():
            reports += [(session.owner, session.id, report) for report in session.take_reports()]
        return reports

    def memory(self) -> list[tuple[str, str, int]]:
        """Owner, device and bytes of all its sessions there."""
        sums: Counter[tuple[str, str]] = Counter()
        for session in self.all():
            for device, nbytes in session.bytes_by_device.items():
                sums[session.owner, device] += nbytes
        return [(owner, device, nbytes) for (owner, device), nbytes in sums.items()]

    def delete(self, owner: str, id: str) -> None:
        """End a session."""
        self._end(self.get(owner, id, to_end=True), f"session {id} was deleted: make a new one")

    def end(self, id: str) -> str:
        """End a session of any owner, for an administrator, and return its owner.

        Raises:
            NotFoundError: there is no such session.
            GoneError: it has ended already.
        """
        session = self._sessions.get(id)
        if id in self._left or (session is not None and session.moving):
            raise MovedError
        if session is None and id in self._gone:
            raise GoneError(self._gone[id][1])
        if session is None:
            raise no_such(id)
        self._end(session, ended_by_admin(id))
        return session.owner

    def sweep(self, now: float | None = None) -> None:
        """End the sessions that have outlived their time to live, and batches that wait for an earlier one in vain.

        Args:
            now: by time.monotonic; None for the clock's.
        """
        now = time.monotonic() if now is None else now
        held_up, self._looked = now - self._looked, now
        if held_up > LATE_S:  # the process was stopped, or its machine paused: nobody could use a session meanwhile
            self._patient_until = now + self._settings.deadline_s
            for session in list(self._sessions.values()):
                session.used = min(session.used + held_up, now)
        for session in list(self._sessions.values()):
            if session.idle(now):
                self._end(session, f"session {session.id} expired after {session.ttl_s:g} s unused: make a new one")
            elif now >= self._patient_until:
                session.expire_waiting(now, self._settings.deadline_s)

    def save_at_stop(self) -> None:
        """Save the checkpoints of those sessions that asked for some: the server is about to stop."""
        for session in list(self._sessions.values()):
            session.save_at_stop()

    def close(self) -> None:
        """End all sessions."""
        self._stop.set()
        self.save_at_stop()
        for session in list(self._sessions.values()):
            self._end(session, "the server has stopped: make a new session when it is back")
        self._freed.return_all()
        if self._sweeper is not None and self._sweeper is not threading.current_thread():
            self._sweeper.join(5)

    def _end(self, session: ServerSession, reason: str) -> None:
        with self._lock:
            self._last_reports += [(session.owner, session.id, report) for report in session.take_reports()]
            self._sessions.pop(session.id, None)
            self._gone[session.id] = (session.owner, reason)
            self._ended.append((session.id, session.owner, reason))
        session.close(reason)

    def _let_go(self, nbytes: int) -> None:
        """Called when a session has freed its memory, with the number of bytes."""
        self._freed.add(nbytes)
        self._freed.return_in_time()  # others are promised that memory by now

    def return_later(self, nbytes: int, holder: Any) -> None:
        """A call's `holder` keeps so many bytes: return them to the system soon after it is gone, by another thread."""
        self._freed.add_with(nbytes, holder)
        self._start_sweeping()

    def _start_sweeping(self) -> None:
        with self._lock:
            if self._sweeper is None and not self._stop.is_set():
                self._looked = time.monotonic()
                self._sweeper = threading.Thread(target=self._keep_sweeping, name="opbox-sweeper", daemon=True)
                self._sweeper.start()

    def _keep_sweeping(self) -> None:
        while not self._stop.wait(0.5):
            self.sweep()
            dropped = self._graphs.sweep()
            if dropped:
                self._freed.add(dropped)
            self._freed.return_in_time()


def _check_code(code: bool | None, scopes: frozenset[Scope]) -> None:
    """ForbiddenError when code is asked for and the token may bring none."""
    if code and not scopes & UPLOADS:
        listed = ", ".join(sorted(scopes)) or "none"
        raise ForbiddenError(
            "code: expected a token with the scope 'upload-python' or 'upload-cuda', "
            f"got one with {listed}: use another"
        )
