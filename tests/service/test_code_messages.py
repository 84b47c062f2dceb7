"""What a process that runs a session's code may say to the API process, and what becomes of one that says more."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import json
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from opbox_protocol.errors import MXNetError
from opbox_service.accounting.accounts import Accounts
from opbox_service.accounting.books import Books
from opbox_service.device_time import DeviceTimes
from opbox_service.sealed_files import ALL_SEALS, SIZE_SEALS, check_sealed, write_sealed
from opbox_service.settings import Settings
from opbox_service.stores import open_stores
from opbox_service.worker.code_memory import CLAIMED, PROCESS_BYTES, CodeMemory
from opbox_service.worker.processes import all_processes, usage_of
from tests.fuzz.code_peer import ID, CodePeer, answer, message

GENEROUS_S = 60.0
Work = Callable[[CodePeer], Awaitable[None]]


def settings_of(folder: Path) -> Settings:
    return Settings(
        state_dir=folder, max_checkpoint_bytes=1 << 20, max_sessions=4, code_memory_bytes=1 << 30, threads=2
    )


def run(folder: Path, work: Work) -> Books:
    """Do it with a session of ann's; the books afterwards."""
    settings = settings_of(folder)
    accounts = Accounts(settings)
    books = Books(settings.model_copy(update={"state_dir": None}), accounts)
    stores = open_stores(settings, accounts)  # its descriptor says that the folder is in use
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))

    async def main() -> None:
        peer = CodePeer(settings, lambda worker: None, DeviceTimes(), None, books, stores)
        await peer.open()
        try:
            await work(peer)
        finally:
            await peer.close()

    asyncio.run(asyncio.wait_for(main(), GENEROUS_S))
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before, "every descriptor that came has been closed"
    return books


# -- what is no message of its: each ends the process ---------------------------------------------------------------

SAVE = {"kind": "save", "id": 1, "owner": "ann", "name": "run"}
KEEP = {"kind": "rows", "do": "keep", "id": 0, "owner": "ann", "name": "", "size": 10}
ACCOUNT: dict[str, Any] = {"kind": "account", "ended": [], "memory": []}
DROP: dict[str, Any] = {"kind": "drop", "segments": [], "sessions": 1, "times": []}
REPORTED: dict[str, Any] = {"kind": "reported", "rows": [["ann", ID, 1.0, 1, None, {"loss": 0.5}]]}
UPLOADED = {"kind": "uploaded", "owner": "ann", "session": ID, "rows": [["define", "mine", "0" * 64]], "more": 0}
BREACHES: dict[str, tuple[bytes, str]] = {
    "no bytes of JSON": (b"\xff\xff\xff\x7f{}", "expected 2147483647 bytes of JSON"),
    "no JSON": (b"\5\0\0\0junk!", "Expecting value"),
    "no object": (message([1]), "expected an object"),
    "an unknown kind": (message({"kind": "no such"}), "unexpected message 'no such'"),
    "a kind of no text": (message({"kind": ["save"]}), "unexpected message"),
    "a kind of other workers": (message({"kind": "left", "session": ID}), "unexpected message 'left'"),
    "a move": (
        message({"kind": "move", "session": ID, "owner": "ann", "device": "cpu", "bytes": 1}),
        "unexpected message 'move'",
    ),
    "ready again": (message({"kind": "ready", "pid": 1}), "unexpected message 'ready'"),
    "failed late": (message({"kind": "failed", "reason": "r"}), "unexpected message 'failed'"),
    "a field too many": (message({**SAVE, "more": 1}), "expected no further fields"),
    "a field too few": (message({"kind": "save", "id": 1, "owner": "ann"}), "expected name"),
    "nested too deep": (message({**ACCOUNT, "ended": json.loads("[" * 90 + "]" * 90)}) + b" " * 4000, "further|fewer"),
    "too many values": (message({**DROP, "segments": [1] * 21_000}), "at most 20000 values"),
    "too large": (message({**SAVE, "name": "n" * 5000}), "at most 4096 bytes"),
    "bytes behind it": (message(SAVE, b"more"), "expected fewer bytes behind"),
    "another session's report": (
        message({**REPORTED, "rows": [["ann", "b" * 32, 1.0, 1, None, {}]]}),
        "this process's session",
    ),
    "another owner's report": (
        message({**REPORTED, "rows": [["bob", ID, 1.0, 1, None, {}]]}),
        "this process's session",
    ),
    "another session's upload": (message({**UPLOADED, "session": "b" * 32}), "this process's session"),
    "another owner's memory": (message({**ACCOUNT, "memory": [["bob", "cpu", 1]]}), "expected the memory of"),
    "another device's memory": (message({**ACCOUNT, "memory": [["ann", "gpu:0", 1]]}), "expected the memory of"),
    "memory below 0": (message({**ACCOUNT, "memory": [["ann", "cpu", -1]]}), "expected a number"),
    "memory of a text": (message({**ACCOUNT, "memory": [["ann", "cpu", "1"]]}), "expected a number"),
    "memory of no number": (message({**ACCOUNT, "memory": [["ann", "cpu", float("nan")]]}), "expected a number"),
    "memory of 2**63": (message({**ACCOUNT, "memory": [["ann", "cpu", 1 << 63]]}), "expected a number"),
    "a time of no number": (message({**DROP, "times": [["ann", "cpu", float("nan"), 0, 1]]}), "expected seconds"),
    "a value of no number": (
        message({**REPORTED, "rows": [["ann", ID, 1.0, 1, None, {"loss": float("inf")}]]}),
        "expected values",
    ),
    "a dataset of others' routes": (message({**KEEP, "do": "save", "name": "x"}), "unexpected request 'rows save'"),
    "an unknown request": (message({**KEEP, "do": "no such"}), "unexpected request"),
    "an answer to no call": (answer(77), "got one to none"),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_what_is_no_message_ends_the_process_with_one_sentence(tmp_path: Path, breach: str) -> None:
    data, words = BREACHES[breach]

    async def work(peer: CodePeer) -> None:
        asked = peer.ask()
        peer.say(data)
        error = await peer.heard()
        assert error is not None
        assert "the session's own code wrote on the connection of its process (" in error.message
        assert any(word in error.message for word in words.split("|")), error.message
        assert error.message.endswith("its process was ended; make a new session")
        assert len(error.message) < 500
        with pytest.raises(MXNetError, match="wrote on the connection"):
            await asked
        assert peer.epitaph.startswith(f"session {ID} is gone: ")

    books = run(tmp_path, work)
    assert books.memory("ann") == books.memory("bob") == 0


def other_files() -> dict[str, Callable[[], int]]:
    def pipe() -> int:
        ours, theirs = os.pipe()
        os.close(theirs)
        return ours

    def unsealed(seals: int = 0) -> int:
        fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    return {
        "eventfd": lambda: os.eventfd(1),
        "pipe": pipe,
        "socket": lambda: socket.socket(socket.AF_UNIX).detach(),
        "/dev/zero": lambda: os.open("/dev/zero", os.O_RDONLY),
        "folder": lambda: os.open("/", os.O_RDONLY),
        "file": lambda: os.open(__file__, os.O_RDONLY),
        "memory that may shrink": unsealed,
        "memory that may change": lambda: unsealed(fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW),
    }


@pytest.mark.parametrize("file", other_files())
@pytest.mark.parametrize("header", [SAVE, KEEP], ids=["save", "keep"])
def test_a_file_that_is_no_sealed_memory_ends_the_process(tmp_path: Path, file: str, header: dict[str, Any]) -> None:
    async def work(peer: CodePeer) -> None:
        peer.say(message(header), other_files()[file]())
        error = await peer.heard()
        assert error is not None
        assert "expected a file in memory that is sealed" in error.message.replace("a sealed file", "a file")[:400] or (
            "expected a sealed file in memory" in error.message
        )

    run(tmp_path, work)
    assert not list((tmp_path / "checkpoints").rglob("*.checkpoint"))


@pytest.mark.parametrize("file", [*other_files(), "sealed against writing"])
def test_an_answer_in_what_is_no_shared_buffer_ends_the_process(tmp_path: Path, file: str) -> None:
    async def work(peer: CodePeer) -> None:
        asked = peer.ask()
        if file == "sealed against writing":  # which cannot be mapped to be written to, and no buffer is so
            fd = write_sealed("x", [bytes(4096)])
        else:
            fd = other_files()[file]()
        peer.say(answer(peer.calls, b"", segment=1, size=8192), fd)
        error = await peer.heard()
        assert error is not None
        with pytest.raises(MXNetError, match="wrote on the connection"):
            await asked

    run(tmp_path, work)


STATUSES = (0, 100, 101, 199, 201, 204, 299, 302, 401, 421, 418, 599, 99999)


@pytest.mark.parametrize("status", STATUSES)
def test_a_status_that_the_route_has_not_is_no_answer(tmp_path: Path, status: int) -> None:
    async def work(peer: CodePeer) -> None:
        asked = peer.ask()
        body = b'{"error": "e", "type": "MXNetError"}'
        peer.say(answer(peer.calls, body, status=status))
        with pytest.raises(MXNetError, match=f"wrote on the connection.*{status}"):
            await asked

    run(tmp_path, work)


WRONG_ANSWERS: dict[str, dict[str, Any]] = {
    "a status of text": {"status": "200"},
    "a status below 0": {"status": -1},
    "a header beyond its end": {"header_length": 3},
    "bytes where JSON was asked for": {"header_length": 2},
    "a buffer that never came": {"segment": 5},
    "a buffer of text": {"segment": "5"},
    "commands of no number": {"commands": 1.5},
    "a queue of no number": {"queue": [1, float("nan")]},
    "a queue of three": {"queue": [1, 2, 3]},
    "an exception with success": {"problem": [{"exc_type": "E"}]},
    "a header field": {"headers": [["x-mine", "1\r\nset-cookie: a=b"]]},
    "an error that is none": {"status": 422},
    "a page": {"content_type": "text/html"},
}


@pytest.mark.parametrize("wrong", WRONG_ANSWERS)
def test_a_wrong_answer_ends_the_process(tmp_path: Path, wrong: str) -> None:
    async def work(peer: CodePeer) -> None:
        asked = peer.ask()
        peer.say(answer(peer.calls, **WRONG_ANSWERS[wrong]))
        with pytest.raises(MXNetError, match="wrote on the connection"):
            await asked

    run(tmp_path, work)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 5000 + b"]" * 5000,
        b'{"error": "e", "type": "T", "detail": {"x": [' + b"[]," * 30_000 + b"[]]}}",
        b'{"error": 5, "type": "MXNetError"}',
        b'{"error": "e"}',
        b'{"error": "e", "type": "AuthenticationError"}',
        b"[]",
        b"",
    ],
    ids=["depth", "values", "number", "no type", "tokens", "list", "nothing"],
)
def test_an_error_that_is_none_is_not_passed_on(tmp_path: Path, body: bytes) -> None:
    async def work(peer: CodePeer) -> None:
        asked = peer.ask()
        if len(body) > 1 << 15:
            fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
            os.write(fd, body)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SIZE_SEALS)
            peer.say(answer(peer.calls, b"", status=422, segment=1, size=len(body)), fd)
        else:
            peer.say(answer(peer.calls, body, status=422))
        with pytest.raises(MXNetError, match="wrote on the connection"):
            await asked

    run(tmp_path, work)


# -- what an honest process says ------------------------------------------------------------------------------------


def test_honest_messages_are_taken_in_what_can_be_true(tmp_path: Path) -> None:
    async def work(peer: CodePeer) -> None:
        peer._books.history.begin("ann", {"id": ID, "device": "cpu", "script": "", "host": ""})
        asked = peer.ask()
        body = b'{"error": "e", "type": "ShapeError", "node": null, "detail": {"a": 1}, "secret": 2}'
        peer.say(answer(peer.calls, body, status=422, commands=1 << 50, queue=[1 << 40, 1e12]))
        response = await asked
        error = {"error": "e", "type": "ShapeError", "node": None, "detail": {"a": 1}}
        assert (response.status, json.loads(response.body)) == (422, error)
        assert (response.commands, response.queue) == (peer.settings.max_commands, None)
        for further in (ACCOUNT, UPLOADED, REPORTED, DROP):
            peer.say(message(further))
        peer.say(message({**ACCOUNT, "memory": [["ann", "cpu", 1 << 50]]}))
        assert await peer.heard() is None
        assert peer._books.memory("ann") == peer.settings.code_memory_bytes
        assert peer._books.history.watched("ann", ID)["reported"] == 1
        await peer.ask_times()
        peer.say(message({**DROP, "times": [["ann", "cpu", 1e9, 1e9, 1 << 40], ["bob", "cpu", 1e9, 1e9, 1]]}))
        assert await peer.heard() is None
        assert set(peer._device_times.sums()) == {("ann", "cpu")}
        time = peer._device_times.sums()["ann", "cpu"]
        assert time.compute_s < GENEROUS_S * peer.settings.threads
        assert time.runs <= peer.calls + peer.settings.max_waiting

    run(tmp_path, work)


def test_claimed_memory_leaves_other_sessions_theirs(tmp_path: Path) -> None:
    async def work(peer: CodePeer) -> None:
        memory = CodeMemory(peer.settings, peer._books, [peer], lambda: [peer])
        limit = memory.limit()
        peer.say(message({**ACCOUNT, "memory": [["ann", "cpu", 1 << 50]]}))
        assert await peer.heard() is None
        assert memory.left() >= limit * (CLAIMED - 1) // CLAIMED - PROCESS_BYTES
        assert memory.left(without=peer) == limit

    run(tmp_path, work)


def test_memory_that_was_sent_and_closed_counts(tmp_path: Path) -> None:
    async def work(peer: CodePeer) -> None:
        asked = peer.ask()
        fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
        os.write(fd, bytes(1 << 20))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SIZE_SEALS)
        peer.say(answer(peer.calls, b"", segment=1, size=2), fd)
        (await asked).release()
        assert list(peer.sent_files().values()) == [1 << 20]
        processes = [process for process in all_processes() if process.pid == peer.pid]
        before, after = (usage_of(processes, 1 << 30, -1, sent).memory for sent in (None, peer.sent_files()))
        assert after >= before + (1 << 20)
        peer.say(message({**DROP, "segments": [1]}))
        assert await peer.heard() is None
        assert peer.sent_files() == {}

    run(tmp_path, work)


def test_reports_without_end_end_the_process(tmp_path: Path) -> None:
    async def work(peer: CodePeer) -> None:
        asked = peer.ask()
        peer.peer.setblocking(False)
        while not asked.done():
            with contextlib.suppress(BlockingIOError):
                peer.say(message(ACCOUNT))
            await asyncio.sleep(0)
        with pytest.raises(MXNetError, match="account: expected fewer messages"):
            await asked

    run(tmp_path, work)


def test_a_checkpoint_is_saved_from_a_sealed_file_and_within_the_quota(tmp_path: Path) -> None:
    async def work(peer: CodePeer) -> None:
        peer.say(message(SAVE), write_sealed("x", [b"values"]))
        peer.say(message({**SAVE, "id": 2, "name": "large"}), write_sealed("x", [bytes(2 << 20)]))
        assert await peer.heard() is None
        await peer._requests.finish(GENEROUS_S)

    run(tmp_path, work)
    (file,) = (tmp_path / "checkpoints").rglob("*.checkpoint")
    assert (file.name, file.read_bytes()) == ("run.checkpoint", b"values")


def test_a_descriptor_too_many_is_closed(tmp_path: Path) -> None:
    async def work(peer: CodePeer) -> None:
        peer.say(message(ACCOUNT), os.eventfd(1), os.eventfd(1), os.eventfd(1))
        peer.say(message(ACCOUNT), os.eventfd(1))
        assert await peer.heard() is None

    run(tmp_path, work)


def test_an_empty_message_is_the_end_of_the_connection(tmp_path: Path) -> None:
    async def work(peer: CodePeer) -> None:
        asked = peer.ask()
        peer.say(b"", os.eventfd(1))
        with pytest.raises(MXNetError, match="the session's process ended"):
            await asked

    run(tmp_path, work)


def test_a_sealed_file_cannot_be_changed_or_cut() -> None:
    fd = write_sealed("x", [b"abc", b"", memoryview(b"def")])
    try:
        assert check_sealed(fd) == 6
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == ALL_SEALS
        for change in (lambda: os.write(fd, b"x"), lambda: os.ftruncate(fd, 3), lambda: os.ftruncate(fd, 9)):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(fd)
