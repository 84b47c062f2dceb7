"""Graphs of owners in the store that servers share, by their hash: what was sent to one server, the others have too.

graphs/
  0f3c…/                 an owner, by the hash of the name
    5b1e….json           a graph as it was sent, named by the SHA-256 of its content

Nothing depends on a graph that is there: a server that does not get it asks the client for it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from typing import BinaryIO, Protocol

import structlog

from opbox_protocol.errors import MXNetError

from .call_threads import CallThreads
from .owner_files import FolderFiles, OwnerFiles
from .settings import Settings
from .stored_objects import StoredObjects

__all__ = ["MAX_GRAPH_BYTES", "BackgroundGraphs", "FileGraphs", "GraphStore", "graphs_of"]

MAX_GRAPH_BYTES = 8 << 20
"""Maximum bytes of a graph to store: 30,000 nodes."""
MAX_GRAPHS, MAX_BYTES = 256, 64 << 20
"""The most graphs of an owner, and bytes of them."""
AGE_S = 7 * 86400.0
"""Seconds after which a graph goes; a client that still uses it sends it once more."""
AWAY_S = 10.0
"""Seconds for which a store that was not reached is not asked again."""
PENDING = 64
"""Maximum number of graphs that wait to be stored."""

_log = structlog.get_logger("opbox.engine")


class GraphStore(Protocol):
    """Interface of a store of graphs: the store itself, or a way to it. No method raises an error for a store's."""

    def save(self, owner: str, key: str, text: bytes) -> None:
        """Store a graph, perhaps later, perhaps not at all."""

    def load(self, owner: str, key: str) -> bytes | None:
        """What is stored under a graph's hash, which nobody has checked; None where there is nothing, or no store."""


class FileGraphs:
    """A GraphStore of files, which is at work when it is called.

    Args:
        files: the place for them.
        most: graphs of an owner.
        most_bytes: of an owner's graphs.
        age_s: seconds after which a graph goes.
    """

    def __init__(
        self, files: OwnerFiles, *, most: int = MAX_GRAPHS, most_bytes: int = MAX_BYTES, age_s: float = AGE_S
    ) -> None:
        self._files = files
        self._most = most
        self._most_bytes = most_bytes
        self._age_s = age_s
        self._away_until = 0.0

    def save(self, owner: str, key: str, text: bytes) -> None:
        """See GraphStore."""
        if not re.fullmatch(r"[0-9a-f]{64}", key) or len(text) > MAX_GRAPH_BYTES or self._is_away:
            return

        def write(file: BinaryIO) -> None:
            file.write(text)

        try:
            now = time.time()
            rows = sorted(self._files.listed(owner), key=lambda row: -row[2])
            recent = [name for name, _, changed in rows if now - changed < self._age_s / 2]
            if f"{key}.json" in recent:
                return
            self._files.write(owner, f"{key}.json", write)
            count, total = 1, len(text)
            for name, size, changed in rows:
                if name == f"{key}.json":
                    continue
                count, total = count + 1, total + size
                if count > self._most or total > self._most_bytes or now - changed > self._age_s:
                    self._files.remove(owner, name)
        except (OSError, MXNetError) as error:
            self._note_away(error)

    def load(self, owner: str, key: str) -> bytes | None:
        """See GraphStore."""
        if not re.fullmatch(r"[0-9a-f]{64}", key) or self._is_away:
            return None
        try:
            with open(self._files.open(owner, f"{key}.json"), "rb") as file:
                text = file.read(MAX_GRAPH_BYTES + 1) if os.fstat(file.fileno()).st_size <= MAX_GRAPH_BYTES else b""
        except FileNotFoundError:
            return None
        except (OSError, MXNetError) as error:
            self._note_away(error)
            return None
        return text or None

    @property
    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until

    def _note_away(self, error: Exception) -> None:
        self._away_until = time.monotonic() + AWAY_S
        _log.warning("graphs are not shared with other servers: the store is not reached", reason=str(error)[:300])


class BackgroundGraphs:
    """A GraphStore that stores by a thread of its own, so that no call waits for that.

    Args:
        store: where to.
    """

    def __init__(self, store: GraphStore) -> None:
        self._store = store
        self._threads = CallThreads(1, "opbox-graphs")
        self._pending = threading.BoundedSemaphore(PENDING)

    def save(self, owner: str, key: str, text: bytes) -> None:
        """See GraphStore."""
        if not self._pending.acquire(blocking=False):
            return

        def work() -> None:
            try:
                self._store.save(owner, key, text)
            finally:
                self._pending.release()

        with contextlib.suppress(RuntimeError):  # the system has no thread left
            self._threads.submit(work)

    def load(self, owner: str, key: str) -> bytes | None:
        """See GraphStore."""
        return self._store.load(owner, key)


def graphs_of(settings: Settings) -> FileGraphs | None:
    """The graphs in the store that servers share; None where there is none."""
    if settings.objects_url is not None:
        return FileGraphs(StoredObjects(f"{settings.objects_url}/graphs"))
    if settings.store_url is not None and settings.store_dir is not None:
        return FileGraphs(FolderFiles(settings.store_dir / "graphs"))
    return None
