"""Shares the machine's memory among sessions with code, and ends processes that use too much.

A session's arrays are admitted before they are made. What its code allocates by itself is seen when its process has
it, so their processes are measured too, and the larger of both figures counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from ..accounting.books import Books
from ..memory_shares import HOST, code_bytes
from ..settings import Settings
from .code_worker import CodeWorker
from .processes import Usage, all_processes, usage_of
from .scratch_dirs import size_of

__all__ = ["PROCESS_BYTES", "CodeMemory"]

PROCESS_BYTES = 80 << 20
"""Bytes of a process before its session holds anything."""
CLAIMED = 4
"""One part in so many of the limit is the most that one owner's processes claim beyond what they are measured to have.

An honest session's arrays have their memory when they are first written to. Code may claim anything.
"""


class CodeMemory:
    """Measures and limits the memory of all processes with code.

    Args:
        settings: of the server.
        books: know what sessions were admitted.
        alive: all code workers, those without a session too.
        workers: those that have a session.
    """

    def __init__(
        self,
        settings: Settings,
        books: Books,
        alive: Collection[CodeWorker],
        workers: Callable[[], Collection[CodeWorker]],
    ) -> None:
        self._settings = settings
        self._books = books
        self._alive = alive
        self._workers = workers
        self._measured_bytes: dict[CodeWorker, int] = {}

    def limit(self) -> int:
        """Bytes that all sessions with code may have together."""
        return code_bytes(self._settings, self._books.memory_beside(self._alive, HOST))

    def left(self, *, without: CodeWorker | None = None) -> int:
        """Bytes of the limit that no session has; those of the worker `without` count as left."""
        limit, measured = self.limit(), 0
        claimed_by_owner: Counter[str] = Counter()
        for worker in self._workers():
            if worker is not without:
                known = max(self._measured_bytes.get(worker, 0), PROCESS_BYTES)
                claim = PROCESS_BYTES + self._books.memory_of(worker, HOST)
                measured += known
                claimed_by_owner[_owner_of(worker)] += max(0, claim - known)
        return limit - measured - sum(min(claim, limit // CLAIMED) for claim in claimed_by_owner.values())

    async def judge(self) -> None:
        """Measure every session's process, and end those that use more than they may, alone or together."""
        watched = [worker for worker in self._workers() if worker.watched]
        sent = {worker: worker.sent_files() for worker in watched}
        usages = await asyncio.to_thread(self._usages, sent) if watched else []
        for worker, usage, files in usages:
            worker.judge(usage, files)
        self._measured_bytes = {worker: usage.memory for worker, usage, _ in usages if worker.watched}
        self._judge_together()

    def _judge_together(self) -> None:
        """End the largest process of the owner who uses most, where all processes together exceed the limit."""
        limit, measured = self.limit(), self._measured_bytes
        if sum(measured.values()) <= limit:
            return
        bytes_of_owner: Counter[str] = Counter()
        for worker, nbytes in measured.items():
            bytes_of_owner[_owner_of(worker)] += nbytes
        (owner, _), *_ = bytes_of_owner.most_common(1)
        largest = max((worker for worker in measured if _owner_of(worker) == owner), key=measured.__getitem__)
        largest.end_for_others(limit)

    def _usages(
        self, sent: Mapping[CodeWorker, Mapping[tuple[int, int], int]]
    ) -> list[tuple[CodeWorker, Usage, tuple[int, int]]]:
        """Return what workers' processes use, with what they have sent, and the bytes and number of their files."""
        settings, processes = self._settings, list(all_processes())
        usages = []
        for worker, files in sent.items():
            own = [process for process in processes if process.belongs_to(worker.pid, worker.user)]
            with contextlib.suppress(OSError):  # it has just ended
                device = os.stat(worker.folder).st_dev
                usage = usage_of(own, settings.code_memory_bytes, device, files)
                usages.append((worker, usage, size_of(worker.folder, settings.code_files)))
        return usages


def _owner_of(worker: CodeWorker) -> str:
    return worker.whose[0] if worker.whose is not None else ""
