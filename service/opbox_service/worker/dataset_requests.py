"""Serves a worker's requests for datasets, as it has no files; RemoteDatasets is its end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from opbox_protocol.errors import MXNetError, UnsupportedError, error_to_json

from ..dataset_store import FileDatasets, NamedDataset
from .checkpoint_requests import PASSED_S, STORING

__all__ = ["DatasetRequests"]

PENDING_BYTES = 512 << 20
"""Bytes of a worker's blocks that wait to be written; what comes beyond that is left out."""

_log = structlog.get_logger("opbox.workers")


class DatasetRequests:
    """Serves one worker.

    Args:
        store: the files; None where there are none.
        answer: sends a request's answer, with descriptors.
    """

    def __init__(self, store: FileDatasets | None, answer: Callable[[dict[str, Any], tuple[int, ...]], None]) -> None:
        self._store = store
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeping: set[asyncio.Task[None]] = set()
        self._pending = 0

    def take(self, header: dict[str, Any], fd: int | None, owner: Any) -> None:
        """Serve a request by a thread; ValueError for what is none, or one too many."""
        id, do, name = header["id"], header["do"], header["name"]
        if type(id) is not int or type(name) is not str or type(owner) is not str or len(self._tasks) >= STORING:
            if fd is not None:
                os.close(fd)
            raise ValueError(f"expected a request for datasets, got {do!r:.20} {name!r:.80}")
        size = os.fstat(fd).st_size if fd is not None else 0
        if do == "keep" and self._pending + size > PENDING_BYTES and fd is not None:
            os.close(fd)
            return
        self._pending += size
        # Whoever asks what there is sees what it sent before to be kept.
        before = tuple(self._keeping) if do == "missing" else ()
        task = asyncio.get_running_loop().create_task(self._serve(header, owner, fd, size, before))
        for tasks in (self._tasks, self._keeping) if do == "keep" else (self._tasks,):
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def finish(self) -> None:
        """Wait until what is under way is done."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(
        self, header: dict[str, Any], owner: str, fd: int | None, size: int, before: Sequence[asyncio.Task[None]]
    ) -> None:
        await asyncio.gather(*before, return_exceptions=True)
        answer: dict[str, Any] = {"id": header["id"], "status": 200, "error": {}}
        fds: tuple[int, ...] = ()
        try:
            if self._store is None:
                raise UnsupportedError("datasets: expected a server with a store of them, got one without")
            answer["value"], fds = await asyncio.to_thread(_run, self._store, header, owner, fd, size)
        except Exception as problem:
            if not isinstance(problem, MXNetError):
                _log.error("a request for datasets failed", do=header["do"], exc_info=problem)
            answer["status"], answer["error"] = error_to_json(problem)
        self._pending -= size
        if fd is not None:
            os.close(fd)
        if header["id"]:
            self._answer(answer, fds)
        if fds:
            asyncio.get_running_loop().call_later(PASSED_S, os.close, fds[0])  # it may wait to be sent


def _run(
    store: FileDatasets, header: dict[str, Any], owner: str, fd: int | None, size: int
) -> tuple[Any, tuple[int, ...]]:
    """The value of an answer, and the descriptors that go with it."""
    do, name = header["do"], header["name"]
    if do == "missing":
        return store.missing(owner, [str(block) for block in header["blocks"]]), ()
    if do == "load":
        return None, (store.open(owner, name),)
    if do == "find":
        text = json.dumps(store.find(owner, name).to_json()).encode()
        out = os.memfd_create("opbox-dataset", os.MFD_CLOEXEC)
        os.write(out, text)
        return None, (out,)
    assert fd is not None
    if do == "keep":
        store.keep_file(owner, fd, max(1, int(header["size"])))
    elif do == "put":
        store.put(owner, name, _bytes(fd, size))
    elif do == "save":
        store.save(owner, name, NamedDataset.from_json(json.loads(_bytes(fd, size))))
    else:
        raise ValueError(f"unexpected request {do!r}")
    return None, ()


def _bytes(fd: int, size: int) -> bytes:
    return os.pread(fd, size, 0)
