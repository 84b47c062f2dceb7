"""A fuzz target: a process for code that knows the messages and says anything to the API process's side of them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opbox_protocol.errors import STATUSES, MXNetError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.books import Books
from opbox_service.device_time import DeviceTimes
from opbox_service.sealed_files import SIZE_SEALS, write_sealed
from opbox_service.settings import Settings
from opbox_service.stores import Stores, open_stores
from tests.fuzz.code_peer import COMMANDS, ID, SESSION, CodePeer, message
from tests.fuzz.draws import VALUES, Draws

__all__ = ["Breach", "code_messages"]

HANG_S = 1.0
"""Maximum processor seconds of an input, the process's start and end included."""
STORED_BYTES = 1 << 16
OURS = STATUSES | {200, 202}


class Breach(Exception):
    """What no process for code may bring about."""


class Server:
    """What the API process has beside the process for code: books, stores, other owners."""

    def __init__(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="opbox-fuzz-")
        self.folder = folder  # which is removed with this
        self.settings = Settings(
            state_dir=Path(folder.name),
            max_checkpoint_bytes=STORED_BYTES,
            max_checkpoints=4,
            max_dataset_bytes=STORED_BYTES,
            code_memory_bytes=1 << 30,
            threads=2,
        )
        accounts = Accounts(self.settings)
        self.books = Books(self.settings.model_copy(update={"state_dir": None}), accounts)
        self.stores: Stores = open_stores(self.settings, accounts)

    def check(self, peer: CodePeer) -> None:
        """Raise Breach where anybody but ann has anything, or ann more than may be."""
        owners = {owner for rows in self.books._memory.values() for owner, _ in rows}
        owners |= {owner for owner, _ in peer._device_times.sums()} | set(self.books.history._owners)
        if owners - {"ann"}:
            raise Breach(f"something is counted for {owners}")
        if self.books.memory("ann") > self.settings.code_memory_bytes:
            raise Breach(f"{self.books.memory('ann')} bytes are counted")
        files = [path for path in Path(self.folder.name).rglob("*") if path.is_file()]
        if sum(path.stat().st_size for path in files) > 4 * STORED_BYTES or len(files) > 2000:
            raise Breach(f"{len(files)} files are stored")


@functools.cache
def server() -> Server:
    """The server of all inputs."""
    return Server()


def _unsealed(seals: int) -> int:
    fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
    os.write(fd, b'{"a": 1}' * 64)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _pipe() -> int:
    ours, theirs = os.pipe()
    os.close(theirs)
    return ours


FILES: tuple[Callable[[], int], ...] = (
    lambda: write_sealed("fuzz", [b"x" * 100]),
    lambda: _unsealed(SIZE_SEALS),
    lambda: write_sealed("fuzz", [b""]),
    lambda: write_sealed("fuzz", [bytes(2 * STORED_BYTES)]),
    lambda: _unsealed(0),
    lambda: _unsealed(fcntl.F_SEAL_SHRINK),
    lambda: os.eventfd(1),
    _pipe,
    lambda: socket.socket(socket.AF_UNIX).detach(),
    lambda: os.open("/dev/zero", os.O_RDONLY),
    lambda: os.open("/", os.O_RDONLY),
)


def _right(draws: Draws, id: int) -> list[dict[str, Any]]:
    """Messages that a process for code may send, the answer to call `id` first."""
    stored = {"id": draws.below(3), "owner": "ann", "name": draws.one(("run", "a.b", "../x", "n" * 70))}
    rows = {**stored, "kind": "rows", "do": draws.one(("keep", "missing", "load", "find", "put", "save"))}
    error = {"error": "e", "type": "ShapeError", "node": None, "detail": {}}
    size = len(json.dumps(error))
    plain = {"kind": "answer", "id": id, "header_length": None, "commands": 1, "sessions": 1, "queue": None}
    return [
        {**plain, "status": 200, "size": 2, "segment": None},
        {**plain, "status": 422, "size": size, "segment": None},
        {**plain, "status": 200, "size": 8, "segment": 1 + draws.below(3)},
        {"kind": "drop", "segments": [1, 2], "sessions": 1, "times": [["ann", "cpu", 0.5, 0.5, 2]]},
        {"kind": "account", "ended": [], "memory": [["ann", "cpu", 1 << draws.below(63)]]},
        {"kind": "reported", "rows": [["ann", ID, 1.0, 1, None, {"loss": 0.5}]]},
        {"kind": "uploaded", "owner": "ann", "session": ID, "rows": [["define", "mine", "0" * 64]], "more": 0},
        {**stored, "kind": "save"},
        {**stored, "kind": "load"},
        {**rows, "size": draws.one((1, 0, 7, 1 << 40)), "blocks": ["0" * 64, "x"]},
        {"kind": "ready", "pid": 1},
        {"kind": "failed", "reason": "r"},
        {"kind": "move", "session": ID, "owner": "ann", "device": "cpu", "bytes": 1},
        {"kind": "left", "session": ID},
    ]


def _changed(document: Any, draws: Draws) -> Any:
    """JSON with one place changed."""
    if isinstance(document, dict | list) and document and not draws.sometimes(5):
        copy: Any = dict(document) if isinstance(document, dict) else list(document)
        key = draws.one(list(document) if isinstance(document, dict) else list(range(len(document))))
        copy[key] = _changed(document[key], draws)
        if draws.sometimes(8):
            del copy[key]
        return copy
    kind = draws.below(6)
    if kind == 0:
        return [document] * draws.one((0, 1, 3, 5000))
    if kind == 1:
        return {"a": document, "bob": ID}
    if kind == 2:
        nested = document
        for _ in range(draws.one((1, 40, 300))):
            nested = [nested]
        return nested
    return draws.one(("bob", "b" * 32, *VALUES))


def _message(draws: Draws, id: int) -> bytes:
    if draws.sometimes(12):
        return draws.rest()[:1000]
    header: Any = draws.one(_right(draws, id))
    for _ in range(draws.below(3)):
        header = _changed(header, draws)
    body = draws.one((b"{}", b"", b"[" * 500, b"x" * 40_000, b'{"error": "e"}'))
    if isinstance(header, dict) and header.get("status") == 422:
        body = json.dumps({"error": "e", "type": "ShapeError", "node": None, "detail": {}}).encode()
    if isinstance(header, dict) and header.get("kind") != "answer" and not draws.sometimes(6):
        body = b""
    data = message(json.loads(json.dumps(header, default=str).encode("utf-8", "replace")), body)
    return data[: draws.below(len(data))] if draws.sometimes(12) else data


async def _hostile(draws: Draws) -> None:
    world = server()
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    ended: list[object] = []
    peer = CodePeer(world.settings, ended.append, DeviceTimes(), None, world.books, world.stores)
    await peer.open()
    asked = []
    try:
        for _ in range(1 + draws.below(8)):
            if draws.sometimes(2):
                asked.append(peer.ask(*draws.one((("POST", COMMANDS), ("GET", SESSION), ("GET", "/v1/sessions")))))
            files = [draws.one(FILES)() for _ in range(draws.one((0, 1, 0, 2)))]
            with contextlib.suppress(OSError):  # too long for the socket
                peer.say(_message(draws, peer.calls), *files)
        error = await peer.heard()
        if error is None and peer._error is not None:
            raise Breach("the process has been ended for what it sent, and its next call was answered")
    finally:
        await peer.close()
    for answered in asked:
        if not answered.done():
            raise Breach("a call of a process that has ended was not answered")
        problem = answered.exception()
        if problem is None and answered.result().status not in OURS:
            raise Breach(f"a call was answered {answered.result().status}")
        if problem is not None and not isinstance(problem, MXNetError):
            raise Breach(f"a call ended with {type(problem).__name__}") from problem
    if problems:
        raise Breach(f"{problems[0]['message']}") from problems[0].get("exception")
    world.check(peer)


def code_messages(data: bytes) -> None:
    """Messages of a process for code, right ones, ones with places changed, and any bytes, with any descriptors.

    Raises:
        Breach: another owner notices, a call stays without an answer, an exception or descriptor is left, or it takes
            too long.
    """
    server()
    descriptors, begun = len(os.listdir("/proc/self/fd")), time.process_time()
    asyncio.run(_hostile(Draws(data)))
    seconds = time.process_time() - begun
    if seconds > HANG_S:
        raise Breach(f"{seconds:.1f} s of the processor")
    if len(os.listdir("/proc/self/fd")) > descriptors:
        raise Breach("descriptors were left open")
