"""The books of one server: its owners' accounts, what they use, and the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from opbox_protocol.errors import NotReadyError, QuotaError

from ..carriers import OwnerQuota
from ..device_time import DeviceTime
from ..logs import Logger
from ..memory_shares import HOST
from ..owner_terms import LARGER_QUOTA
from ..settings import Settings
from .accounts import Accounts, too_many_sessions
from .audit import AuditLog
from .history import SessionHistory
from .share_file import ShareFile
from .usage import FLUSH_S, UsageLedger, seconds_to_tomorrow

__all__ = ["Books"]

LEDGER, LOG = "usage.sqlite", "audit.log"
TICK_S = 1.0
AT_ONCE = 32
"""Number of owners to describe before other requests get the event loop."""
SHARE_RETRY_S = 1
"""Seconds after which shares of quotas may be others."""
OTHER_SERVERS = "other servers have the rest of your quota: call the cluster's gateway, or try again in a second"
"""What an error advises when this server's share of a quota is used up."""

_log = Logger("opbox.books")


class Books:
    """The server's accounts, usage and audit log, used by the API process's event loop.

    Args:
        settings: the quotas of everybody, and the directory for ledger and log.
        accounts: those of owners with terms of their own.
        storage: bytes of an owner's checkpoints and datasets; None where there are none.

    Raises:
        NotReadyError: ledger or log cannot be written.

    Attributes:
        accounts, usage, audit, history, shares: see their classes.
        in_flight: requests being answered, by owner.
        sessions_of: how many sessions an owner has now; the pool of workers knows.
    """

    def __init__(
        self,
        settings: Settings,
        accounts: Accounts,
        storage: Callable[[str], int] | None = None,
        *,
        tick_s: float = TICK_S,
    ) -> None:
        self._tick_s = tick_s
        folder = settings.state_dir
        if folder is not None:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise NotReadyError(f"state_dir: cannot make {folder}: {error.strerror}") from None
        self.accounts = accounts
        self.usage = UsageLedger(folder / LEDGER if folder is not None else None, settings.usage_days, storage)
        if settings.audit_required and folder is None:
            raise NotReadyError(
                "audit_required: expected a state_dir for the audit log, got none: set OPBOX_STATE_DIR, or leave out "
                "OPBOX_AUDIT_REQUIRED"
            )
        self._audit_required = settings.audit_required
        self.audit = AuditLog(folder / LOG if folder is not None else None, settings.audit_bytes, settings.audit_files)
        self.history = SessionHistory()
        self.shares = ShareFile(settings.quota_shares_file)
        self.in_flight: Counter[str] = Counter()
        self.sessions_of: Callable[[str], int] = lambda owner: 0
        self._memory: dict[object, dict[tuple[str, str], int]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._problem = ""

    # -- quotas -------------------------------------------------------------------------------------------------

    def check_in_flight(self, owner: str) -> None:
        """QuotaError when the owner has as many requests as may be at a time."""
        limit = self.accounts.of(owner).in_flight
        before = self.in_flight.get(owner, 0)
        if before >= limit:
            raise QuotaError(
                f"requests: expected at most {limit} of an owner at a time: wait for one to end",
                detail={"calls_before": before},
            )

    def check_time(self, owner: str) -> None:
        """QuotaError when the owner has used up today's seconds of workers' time; it says when a new day begins."""
        limit, share = self.accounts.of(owner).worker_seconds, self.shares.of(owner).worker_seconds
        if not limit and share is None:
            return
        used = self.usage.worker_seconds(owner)
        if share is not None and used >= share and (not limit or share < limit):
            raise QuotaError(
                f"worker seconds: expected at most {share:g} of yours on this server today, got {used:.1f}: "
                f"{OTHER_SERVERS}",
                detail={"retry_after_s": SHARE_RETRY_S},
            )
        if limit and used >= limit:
            wait_s = math.ceil(seconds_to_tomorrow(time.time()))
            raise QuotaError(
                f"worker seconds: expected at most {limit:g} of an owner in a day, got {used:.1f}: try again after "
                f"midnight UTC, in {wait_s} s, or {LARGER_QUOTA}",
                detail={"retry_after_s": wait_s},
            )

    def quota(self, owner: str, worker: object = None) -> OwnerQuota | None:
        """Return the owner's quota in a worker, beside its use of others; None where the settings say it all."""
        account, share = self.accounts.of(owner), self.shares.of(owner).memory_bytes
        beside = self._gpus_beside(worker)
        memory_bytes = account.memory_bytes
        if share is not None:
            memory_bytes = max(1, min(share, memory_bytes or share))  # 0 would be no limit
        if account is self.accounts.usual and not memory_bytes and not beside:
            return None
        elsewhere: Counter[str] = Counter()
        if memory_bytes:
            for place, rows in self._memory.items():
                for (name, device), nbytes in rows.items():
                    if name == owner and place is not worker:
                        elsewhere[device] += nbytes
        quota = OwnerQuota(account.sessions, account.session_bytes, memory_bytes, dict(elsewhere))
        return quota._replace(beside=beside) if beside else quota

    def _gpus_beside(self, worker: object) -> dict[str, int]:
        """Return the bytes of GPUs that sessions in other workers use; each worker has a host memory of its own."""
        sums: dict[str, int] = {}
        for place, rows in self._memory.items():
            if place is not worker:
                for (_, device), nbytes in rows.items():
                    if device != HOST:
                        sums[device] = sums.get(device, 0) + nbytes
        return sums

    # -- what is used -------------------------------------------------------------------------------------------

    def check_sessions(self, owner: str, opening: int = 0) -> None:
        """Find out whether an owner may have another session, with so many that are being opened.

        Raises:
            QuotaError: the owner has all allowed ones.
            NotReadyError: the audit log is required, and cannot be written.
        """
        if self._audit_required and self.audit.problem:
            raise NotReadyError(
                f"sessions: expected an audit log that can be written, got none ({self.audit.problem}): try again "
                "later, or tell the server's administrator"
            )
        limit, share = self.accounts.of(owner).sessions, self.shares.of(owner).sessions
        sessions = self.sessions_of(owner) + opening
        if sessions >= limit:
            raise QuotaError(too_many_sessions(limit))
        if share is not None and sessions >= share:
            raise QuotaError(
                f"sessions: expected at most {share} of yours on this server, got one more: {OTHER_SERVERS}",
                detail={"retry_after_s": SHARE_RETRY_S},
            )

    def take_memory(self, worker: object, rows: Sequence[tuple[str, str, int]]) -> None:
        """Record what a worker's sessions have: owner, device, bytes. Owners that are not listed have none."""
        before = self._memory.get(worker, {})
        now = {(owner, device): nbytes for owner, device, nbytes in rows if nbytes}
        if now:
            self._memory[worker] = now
        else:
            self._memory.pop(worker, None)
        for owner, device in now:
            if now[owner, device] > before.get((owner, device), 0):
                self.usage.count(owner, peak_bytes=self.memory(owner))

    def memory(self, owner: str) -> int:
        """Bytes of device memory that all sessions of an owner have."""
        return sum(n for rows in self._memory.values() for (name, _), n in rows.items() if name == owner)

    def memory_of(self, worker: object, device: str) -> int:
        """Bytes of a device that all sessions of a worker have."""
        return sum(nbytes for (_, where), nbytes in self._memory.get(worker, {}).items() if where == device)

    def memory_beside(self, workers: Collection[object], device: str) -> int:
        """Bytes of a device that all sessions have in other workers than these."""
        return sum(
            nbytes
            for worker, rows in self._memory.items()
            if worker not in workers
            for (_, where), nbytes in rows.items()
            if where == device
        )

    def forget(self, worker: object) -> None:
        """Forget the memory of a worker that has ended."""
        self._memory.pop(worker, None)

    # -- what happens -------------------------------------------------------------------------------------------

    def session_made(self, owner: str, opened: Mapping[str, Any], *, code: bool) -> None:
        """Count a session that an owner has opened, and was answered so."""
        self.usage.count(owner, sessions=1)
        self.audit.note("session.made", owner, session=opened["id"], device=opened["device"], code=code)
        self.history.begin(owner, opened)

    def session_moved(self, owner: str, session: str) -> None:
        """Record that an owner's session got a process of its own, because code arrived."""
        self.audit.note("session.moved", owner, session=session, code=True)

    def session_ended(self, owner: str, session: str, reason: str) -> None:
        """Count a session of an owner's that has ended."""
        self.audit.note("session.ended", owner, session=session, reason=reason)
        self.history.ended(owner, session, reason)

    def uploaded(self, owner: str, session: str, rows: Sequence[Sequence[str]], more: int = 0) -> None:
        """A session was sent code: the command, the name of operator or kernel, the sha256; `more` are not listed."""
        for command, name, sha256 in rows:
            self.audit.note("code.uploaded", owner, session=session, command=command, name=name, sha256=sha256)
        if more:
            self.audit.note("code.uploaded", owner, session=session, more=more)

    def tokens_read(self, tokens: int, wrong: str) -> None:
        """Record that the files of tokens were read again, and what was wrong with them, if anything was."""
        if wrong:
            self.audit.note("accounts.refused", "", error=wrong)
        else:
            self.audit.note("accounts.read", "", tokens=tokens, owners=len(self.accounts.names))

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self, times: Callable[[], Mapping[tuple[str, str], DeviceTime]]) -> None:
        """Begin to write; the sums of device time are taken from `times`."""
        self._loop = asyncio.get_running_loop()
        self.audit.note("server.started", "")
        self._ticking = asyncio.create_task(self._tick(times))

    async def stop(self, times: Callable[[], Mapping[tuple[str, str], DeviceTime]]) -> None:
        """Write what is left, and end."""
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        self._do(lambda: self.usage.take_times(times()))
        ends = await asyncio.gather(
            asyncio.to_thread(self.usage.close),
            asyncio.to_thread(self.audit.close, "server.stopped"),
            return_exceptions=True,
        )
        for error in ends:
            if error is not None:
                _log.error("the books were not closed", error=repr(error), exc_info=error)

    async def _tick(self, times: Callable[[], Mapping[tuple[str, str], DeviceTime]]) -> None:
        flushed = time.monotonic()
        while True:
            await asyncio.sleep(self._tick_s)
            self._do(lambda: self.usage.take_times(times()))
            self._do(self.audit.tick)
            if time.monotonic() - flushed >= FLUSH_S - self._tick_s / 2:
                flushed = time.monotonic()
                self._do(self.usage.flush)

    def _do(self, work: Callable[[], object]) -> None:
        """Do a part of a tick's work: what fails is tried again at the next tick, and logged once."""
        try:
            work()
        except Exception as error:
            if repr(error) != self._problem:
                _log.error(
                    "the books were not brought up to date; it is tried again", error=repr(error), exc_info=error
                )
            self._problem = repr(error)

    def json_of(self, owners: Iterable[str]) -> dict[str, dict[str, Any]]:
        """`json` of these owners, for another thread: the loop makes it, which has its turn in between."""
        if self._loop is None:
            return {owner: self.json(owner) for owner in owners}
        return asyncio.run_coroutine_threadsafe(self._json_of(list(owners)), self._loop).result()

    async def _json_of(self, owners: Sequence[str]) -> dict[str, dict[str, Any]]:
        listed = {}
        for number, owner in enumerate(owners, 1):
            listed[owner] = self.json(owner)
            if not number % AT_ONCE:
                await asyncio.sleep(0)
        return listed

    def json(self, owner: str) -> dict[str, Any]:
        """An owner's quotas, and what it has now."""
        return {
            "owner": owner,
            "quotas": self.accounts.of(owner).quotas(),
            "now": {
                "sessions": self.sessions_of(owner),
                "in_flight": self.in_flight[owner],
                "memory_bytes": self.memory(owner),
                "worker_seconds": round(self.usage.worker_seconds(owner), 3),
            },
        }
