"""`OPBOX_WORKERS=auto`: a worker process for each owner who has sessions, while memory allows.

A death costs the sessions of one owner. Each such worker has a part of the device's memory: the owner's quota where
there is one, half of what is left otherwise; what nobody has stays with the worker that the others share. Where the
part would be too small, or the machine has too little memory free, the owner's sessions go there too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import psutil
import structlog

from opbox_protocol.errors import MXNetError

from ..accounting.books import Books
from ..carriers import OwnerQuota
from ..memory_shares import device_bytes
from ..settings import Settings
from .worker import Worker

__all__ = ["SHARED", "OwnerWorkers"]

SHARED = 4
"""Share of the device's memory for the worker that owners share."""
SMALLEST = 16
"""Minimum share of the device's memory for an owner's worker, unless the quota is smaller."""
FREE_BYTES = 256 << 20
"""Minimum free bytes on the machine to start another process."""
MAX_OWNER_WORKERS = 64
"""Maximum number of owners' workers at a time."""

_log = structlog.get_logger("opbox.workers")


@dataclass(slots=True)
class _OwnerWorker:
    worker: Worker
    nbytes: int
    starting: asyncio.Task[None]
    used: float


class OwnerWorkers:
    """The pool of owners' workers.

    Args:
        settings: of the server.
        books: the owners' quotas.
        new_worker: a process with this share of the memory that is yet to be started.
        run: runs a coroutine beside.
    """

    def __init__(
        self,
        settings: Settings,
        books: Books,
        new_worker: Callable[[float], Worker],
        run: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._settings = settings
        self._books = books
        self._new_worker = new_worker
        self._run = run
        self._whole = device_bytes(settings)
        self._entries: dict[str, _OwnerWorker] = {}
        self._ending: list[_OwnerWorker] = []

    @property
    def workers(self) -> list[Worker]:
        """The owners' workers, those that are ending included."""
        return [entry.worker for entry in self._all()]

    def of(self, owner: str) -> Worker | None:
        """The owner's worker, if it has one that takes calls."""
        entry = self._entries.get(owner)
        if entry is None or not entry.worker.ready:
            return None
        entry.used = time.monotonic()
        return entry.worker

    async def open(self, owner: str) -> Worker | None:
        """The worker of an owner who opens a session, started if need be; None where there is no room for one."""
        entry = self._entries.get(owner)
        if entry is None:
            nbytes = self._part(owner)
            if not nbytes:
                return None
            worker = self._new_worker(nbytes / self._whole)
            entry = self._entries[owner] = _OwnerWorker(worker, nbytes, self._run(worker.start()), time.monotonic())
        try:
            await asyncio.shield(entry.starting)
        except MXNetError as error:
            _log.error("an owner's worker did not start", owner=owner, reason=error.message)
            return None
        return self.of(owner)

    def quota(self, owner: str, worker: Worker) -> OwnerQuota | None:
        """Return the owner's quota in a worker: in the owner's own, no more than that worker has."""
        quota, entry = self._books.quota(owner, worker), self._entries.get(owner)
        if entry is None or entry.worker is not worker:
            return quota
        account = self._books.accounts.of(owner)
        if quota is not None and quota.memory_bytes:
            rest = quota.memory_bytes - max(quota.elsewhere.values(), default=0)
            if rest <= entry.nbytes:
                return quota
        beside = quota.beside if quota is not None else {}
        return OwnerQuota(account.sessions, account.session_bytes, entry.nbytes, beside=beside)

    def remove(self, worker: Worker) -> bool:
        """A process has ended; whether it was one of these."""
        for owner, entry in self._entries.items():
            if entry.worker is worker:
                del self._entries[owner]
                return True
        for entry in self._ending:
            if entry.worker is worker:
                self._ending.remove(entry)
                return True
        return False

    def end_idle(self, opening: Callable[[str], int]) -> None:
        """End the workers that have had no session and no call for a while.

        Args:
            opening: how many sessions an owner is about to have.
        """
        now = time.monotonic()
        for owner, entry in list(self._entries.items()):
            worker = entry.worker
            if worker.sessions or worker.busy or opening(owner) or not entry.starting.done():
                entry.used = now
            elif now - entry.used >= self._settings.worker_idle_s:
                # Its memory is nobody else's before it has ended.
                self._ending.append(self._entries.pop(owner))
                self._run(worker.stop(self._settings.stop_grace_s))

    def _all(self) -> list[_OwnerWorker]:
        return [*self._entries.values(), *self._ending]

    def _part(self, owner: str) -> int:
        """Device memory for a worker of the owner's; 0 where there is no room for one."""
        left = self._whole - self._whole // SHARED - sum(entry.nbytes for entry in self._all())
        quota = self._books.accounts.of(owner).memory_bytes
        part = quota or left // 2
        fits = part <= left and (quota or part >= self._whole // SMALLEST)
        if not fits or len(self._all()) >= MAX_OWNER_WORKERS or psutil.virtual_memory().available < FREE_BYTES:
            return 0
        return part
