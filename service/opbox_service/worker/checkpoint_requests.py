"""Saves and loads checkpoints for a worker, which has no files; RemoteCheckpoints is its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import structlog

from opbox_protocol.errors import MXNetError, error_to_json

from ..checkpoint_store import FileCheckpoints, check_available

__all__ = ["CheckpointRequests"]

STORING = 256
"""Maximum number of checkpoints of one worker in transfer at a time."""
PASSED_S = 10.0
"""Seconds that a descriptor stays open while it is sent to the worker."""

_log = structlog.get_logger("opbox.workers")


class CheckpointRequests:
    """Serves one worker's requests to save and load checkpoints.

    Args:
        store: where checkpoints are; None where there is no place.
        answer: sends a request's answer, with descriptors.
    """

    def __init__(
        self, store: FileCheckpoints | None, answer: Callable[[dict[str, Any], tuple[int, ...]], None]
    ) -> None:
        self._store = store
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, header: dict[str, Any], fd: int | None, owner: Any) -> None:
        """Save the file `fd`, or load a checkpoint, by a thread; ValueError for what is no request, or one too many."""
        kind, id, name = header["kind"], header["id"], header["name"]
        if type(id) is not int or type(name) is not str or type(owner) is not str or len(self._tasks) >= STORING:
            if fd is not None:
                os.close(fd)
            raise ValueError(f"expected a checkpoint to {kind}, got {name!r:.80}")
        task = asyncio.get_running_loop().create_task(self._serve(kind, id, owner, name, fd))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until what is under way is done."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, kind: str, id: int, owner: str, name: str, fd: int | None) -> None:
        status, fds = 200, list[int]()
        error: dict[str, Any] = {}
        try:
            store = check_available(self._store)
            if kind == "load":
                fds.append(await asyncio.to_thread(store.open, owner, name))
            elif fd is not None:
                await asyncio.to_thread(store.save_file, owner, name, fd)
        except Exception as problem:
            if not isinstance(problem, MXNetError):
                _log.error("a checkpoint failed", kind=kind, exc_info=problem)
            status, error = error_to_json(problem)
        if fd is not None:
            os.close(fd)
        if id:
            self._answer({"id": id, "status": status, "error": error}, tuple(fds))
        if fds:
            asyncio.get_running_loop().call_later(PASSED_S, os.close, fds[0])  # it may wait to be sent
