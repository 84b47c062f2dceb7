"""Requests to stores: no owner waits for another's disk, and none holds up the server's end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from opbox_protocol.errors import DeadlineError, NotReadyError
from opbox_service.accounting.accounts import Accounts
from opbox_service.checkpoint_store import FileCheckpoints
from opbox_service.owner_locks import OwnerLocks
from opbox_service.sealed_files import Descriptor, write_sealed
from opbox_service.settings import Settings
from opbox_service.store_threads import GoOn, StoreThreads
from opbox_service.stores import Stores
from opbox_service.worker.store_requests import StoreRequests

GENEROUS_S = 60.0


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, GENEROUS_S))


def stuck(until: threading.Event) -> Callable[[GoOn], None]:
    """Work that a broken disk does not let end; no test can have such a disk."""
    return lambda go_on: until.wait(GENEROUS_S) and None


def test_an_owner_whose_disk_is_stuck_delays_nobody_else() -> None:
    async def work() -> None:
        threads, until = StoreThreads(threads=2), threading.Event()
        waiting = [asyncio.create_task(threads.run("ann", "x", stuck(until), writes=True)) for _ in range(5)]
        await asyncio.sleep(0)
        assert await threads.run("bob", "x", lambda go_on: "bob's", writes=True) == "bob's"
        assert not any(task.done() for task in waiting)
        until.set()
        await asyncio.gather(*waiting)

    run(work())


def test_an_owners_requests_run_in_their_order_and_reading_waits_for_no_writing() -> None:
    async def work() -> None:
        threads, until, order = StoreThreads(), threading.Event(), list[int]()
        first = asyncio.create_task(threads.run("ann", "x", stuck(until), writes=True))
        later = [
            asyncio.create_task(threads.run("ann", "x", lambda go_on, i=i: order.append(i), writes=True))  # type: ignore[misc]  # a default is no type
            for i in range(3)
        ]
        await asyncio.sleep(0)
        assert await threads.run("ann", "x", lambda go_on: "read", writes=False) == "read"
        assert order == []
        until.set()
        await asyncio.gather(first, *later)
        assert order == [0, 1, 2]

    run(work())


def test_what_takes_too_long_ends_and_what_comes_of_it_later_is_discarded() -> None:
    async def work() -> None:
        threads, until, discarded = StoreThreads(seconds=0.05), threading.Event(), threading.Event()
        ours, theirs = os.pipe()

        def late(go_on: GoOn) -> str:
            until.wait(GENEROUS_S)
            with pytest.raises(DeadlineError):
                go_on()
            return "late"

        with pytest.raises(DeadlineError, match=r"checkpoint 'x': expected the disk within 0.05 s, got no answer"):
            await threads.run(
                "ann", "checkpoint 'x'", late, writes=True, fd=theirs, discard=lambda text: discarded.set()
            )
        os.fstat(theirs)  # the thread has it still
        unused = os.dup(ours)
        with pytest.raises(DeadlineError):  # it waits for the first, in vain
            await threads.run("ann", "x", lambda go_on: None, writes=True, fd=unused)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(unused)
        until.set()
        while not discarded.is_set():
            await asyncio.sleep(0.01)
        assert os.read(ours, 1) == b"", "the descriptor is closed behind the work"
        os.close(ours)

    run(work())


class StuckStore(FileCheckpoints):
    """A store on a disk that does not answer; no test can have one."""

    until = threading.Event()

    def save_file(
        self,
        owner: str,
        name: str,
        fd: int,
        size: int,
        go_on: GoOn = lambda: None,
        generation: int | None = None,
    ) -> int:
        """See FileCheckpoints."""
        while not self.until.wait(0.01):
            go_on()
        return 0


def test_the_servers_end_waits_for_what_is_saved_no_longer_than_its_grace(tmp_path: Path) -> None:
    async def work() -> None:
        settings = Settings(state_dir=tmp_path)
        answers: list[dict[str, Any]] = []
        stores = Stores(StuckStore(settings, Accounts(settings)))
        requests = StoreRequests(stores, lambda answer, fds, done: (answers.append(answer), done()))  # type: ignore[func-returns-value]
        fd = write_sealed("x", [b"values"])
        with Descriptor(fd) as descriptor:
            requests.take({"kind": "save", "id": 1, "owner": "ann", "name": "run"}, descriptor, "ann")
        begun = time.monotonic()
        await requests.finish(0.1)
        assert time.monotonic() - begun < GENEROUS_S / 2
        assert answers == []
        while Path(f"/proc/self/fd/{fd}").exists():  # the thread ends at its next look
            await asyncio.sleep(0.01)

    run(work())


def test_a_system_without_threads_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def work() -> None:
        threads = StoreThreads()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(NotReadyError, match="no thread left"):
                await threads.run("ann", "x", lambda go_on: None, writes=True)
        assert await threads.run("ann", "x", lambda go_on: "again", writes=True) == "again"

    run(work())


def test_owners_have_locks_of_their_own() -> None:
    locks = OwnerLocks()
    with locks.of("ann"), locks.of("ann"):
        other = threading.Thread(target=lambda: locks.of("bob").__enter__(), daemon=True)
        other.start()
        other.join(GENEROUS_S)
        assert not other.is_alive()
