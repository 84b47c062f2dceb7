"""Serves a worker's requests for checkpoints, datasets and graphs, as it has no files; RemoteCheckpoints is its end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import structlog

from opbox_protocol.errors import MXNetError, NotReadyError, UnsupportedError, error_to_json

from ..checkpoint_store import check_available
from ..dataset_store import FileDatasets, NamedDataset
from ..graph_store import MAX_GRAPH_BYTES
from ..sealed_files import Descriptor, check_sealed, pieces_of, write_sealed
from ..store_threads import GoOn
from ..stores import Stores

__all__ = ["OF_CODE", "StoreRequests"]

REQUESTS = 256
"""Maximum number of a worker's requests at a time."""
PENDING_BYTES = 512 << 20
"""Bytes of a worker's blocks that wait to be kept; what comes beyond that is left out."""
DOCUMENT_BYTES = 64 << 20
"""Maximum bytes of a named dataset's description."""

Answer: TypeAlias = "tuple[Any, tuple[int, ...]]"
"""A value, and descriptors."""
Work: TypeAlias = "Callable[[Stores, str, Mapping[str, Any], int | None, int, GoOn], Answer]"
"""Serves a request: the stores, the owner, the request, its file and that file's size, and what stops the work."""

_log = structlog.get_logger("opbox.workers")


def _save_checkpoint(
    stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn
) -> Answer:
    store, generation = check_available(stores.checkpoints), header.get("generation")
    return store.save_file(owner, header["name"], _file(fd, header), size, go_on, generation), ()


def _load_checkpoint(
    stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn
) -> Answer:
    store = check_available(stores.checkpoints)
    if not header.get("takes"):
        return None, (store.open(owner, header["name"]),)
    fd, generation = store.open_to_go_on(owner, header["name"])
    return generation, (fd,)


def _missing(stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn) -> Answer:
    return _datasets(stores).missing(owner, header["blocks"]), ()


def _keep(stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn) -> Answer:
    if fd is not None:
        _datasets(stores).keep_file(owner, fd, size, max(1, header["size"]), go_on)
    return None, ()


def _put(stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn) -> Answer:
    _datasets(stores).put_file(owner, header["name"], _file(fd, header), size, go_on)
    return None, ()


def _load(stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn) -> Answer:
    return None, (_datasets(stores).open(owner, header["name"]),)


def _find(stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn) -> Answer:
    text = json.dumps(_datasets(stores).find(owner, header["name"]).to_json()).encode()
    return None, (write_sealed("opbox-dataset", [text]),)


def _save(stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn) -> Answer:
    text = b"".join(pieces_of(_file(fd, header), 0, min(size, DOCUMENT_BYTES), go_on))
    _datasets(stores).save(owner, header["name"], NamedDataset.from_json(json.loads(text)))
    return None, ()


def _keep_graph(
    stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn
) -> Answer:
    if stores.graphs is not None and fd is not None and size <= MAX_GRAPH_BYTES:
        stores.graphs.save(owner, header["name"], b"".join(pieces_of(fd, 0, size, go_on)))
    return None, ()


def _load_graph(
    stores: Stores, owner: str, header: Mapping[str, Any], fd: int | None, size: int, go_on: GoOn
) -> Answer:
    text = None if stores.graphs is None else stores.graphs.load(owner, header["name"])
    return (None, ()) if text is None else (True, (write_sealed("opbox-graph", [text]),))


def _datasets(stores: Stores) -> FileDatasets:
    if stores.datasets is None:
        raise UnsupportedError("datasets: expected a server with a store of them, got one without")
    return stores.datasets


def _file(fd: int | None, header: Mapping[str, Any]) -> int:
    """The request's file; NotReadyError where this process had no place for its descriptor."""
    if fd is None:
        raise NotReadyError(f"{_subject(header)}: the server has no more files to open: try again in a moment")
    return fd


WORK: Mapping[tuple[str, str], tuple[Work, bool]] = {
    ("save", ""): (_save_checkpoint, True),
    ("load", ""): (_load_checkpoint, False),
    # Whoever asks what there is sees what it sent before to be kept.
    ("rows", "missing"): (_missing, True),
    ("rows", "keep"): (_keep, True),
    ("rows", "put"): (_put, True),
    ("rows", "load"): (_load, False),
    ("rows", "find"): (_find, False),
    ("rows", "save"): (_save, True),
    ("graph", "keep"): (_keep_graph, True),
    ("graph", "load"): (_load_graph, False),
}
"""What serves a request of a kind, by what it is to do; and whether it waits for the owner's writing."""
WITH_FILES = (("save", ""), ("rows", "keep"), ("rows", "put"), ("rows", "save"), ("graph", "keep"))
OF_CODE = frozenset(WORK) - {("rows", "put"), ("rows", "save")}
"""What a process for code asks for; the rest belongs to routes that other workers serve."""


class StoreRequests:
    """Serves one worker.

    Args:
        stores: of the server.
        answer: sends a request's answer with its descriptors, which it closes; then calls a function.
        allowed: what the worker may ask for, of WORK.
        most: how many requests it may wait for at a time, and most_bytes: of files that wait to be saved. Of rows to
            keep, for which it does not wait, what is beyond as many is left out.
    """

    def __init__(
        self,
        stores: Stores,
        answer: Callable[[dict[str, Any], tuple[int, ...], Callable[[], None]], None],
        allowed: frozenset[tuple[str, str]] = frozenset(WORK),
        most: int = REQUESTS,
        most_bytes: int | None = None,
    ) -> None:
        self._stores = stores
        self._answer = answer
        self._allowed = allowed
        self._most = most
        self._most_bytes = most_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked = 0
        self._keeping = 0
        self.files: dict[tuple[int, int], int] = {}
        """Files that wait to be saved: bytes of memory by device and inode."""

    def take(self, header: dict[str, Any], descriptor: Descriptor, owner: str) -> None:
        """Serve a request by a thread.

        Raises:
            ValueError: it is no request of this worker's, its file might change meanwhile, or it is one too many.
        """
        do = header.get("do", "")
        place = header["kind"], do
        if place not in self._allowed:
            raise ValueError(f"unexpected request {' '.join(place)!r:.80}")
        keeps = do == "keep"
        if not keeps and self._asked >= self._most:
            raise ValueError(f"expected at most {self._most} requests for stored files at a time, got more")
        fd, size, inode = None, 0, None
        if descriptor:
            if place not in WITH_FILES:
                raise ValueError(f"{_subject(header)}: expected no descriptor, got one")
            fd = descriptor.take()
            try:
                size, status = check_sealed(fd), os.fstat(fd)
                inode = status.st_dev, status.st_ino
                if inode in self.files:
                    raise ValueError(f"{_subject(header)}: expected a file of its own, got one that is being saved")
                total = sum(self.files.values()) + status.st_blocks * 512
                if keeps and (self._keeping >= self._most or total > PENDING_BYTES):
                    os.close(fd)
                    return
                if self._most_bytes is not None and total > self._most_bytes:
                    raise ValueError(f"expected at most {self._most_bytes} bytes to save at a time, got more")
                self.files[inode] = status.st_blocks * 512
            except BaseException:
                os.close(fd)
                raise
        elif keeps:
            return
        self._keeping += keeps
        self._asked += not keeps
        task = asyncio.get_running_loop().create_task(self._serve(header, owner, fd, size, inode))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, seconds: float) -> None:
        """Wait until what is under way is done, for so many seconds; what is not done then is given up."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=max(0.0, seconds))
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _serve(
        self, header: dict[str, Any], owner: str, fd: int | None, size: int, inode: tuple[int, int] | None
    ) -> None:
        answer: dict[str, Any] = {"id": header["id"], "status": 200, "error": {}}
        fds: tuple[int, ...] = ()
        work, writes = WORK[header["kind"], header.get("do", "")]
        try:
            answer["value"], fds = await self._stores.threads.run(
                owner,
                _subject(header),
                partial(work, self._stores, owner, header, fd, size),
                writes=writes,
                fd=fd,
                discard=_close,
            )
        except asyncio.CancelledError:
            self._sent(header, inode)
            raise
        except Exception as problem:
            if not isinstance(problem, MXNetError):
                _log.error("a request for stored files failed", kind=header["kind"], exc_info=problem)
            answer["status"], answer["error"] = error_to_json(problem)
        sent = partial(self._sent, header, inode)
        if header["id"]:
            self._answer(answer, fds, sent)
        else:
            _close((None, fds))
            sent()

    def _sent(self, header: Mapping[str, Any], inode: tuple[int, int] | None) -> None:
        """A request has been answered, and its answer read."""
        keeps = header.get("do") == "keep"
        self._keeping -= keeps
        self._asked -= not keeps
        if inode is not None:
            del self.files[inode]


def _subject(header: Mapping[str, Any]) -> str:
    kind = {"rows": "dataset", "graph": "graph"}.get(header["kind"], "checkpoint")
    return f"{kind} {header['name'][:64]!r}"


def _close(answer: Answer) -> None:
    for fd in answer[1]:
        os.close(fd)
