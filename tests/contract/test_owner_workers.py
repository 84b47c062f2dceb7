"""`OPBOX_WORKERS=auto`: a worker process for each owner, so that a death costs one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from opbox import connection
from opbox.http import HttpTransport
from opbox_service.worker.owner_workers import FREE_BYTES
from tests.contract.live import IDENTITY, TOKENS, Live, Session
from tests.contract.recovering import counted_through_a_kill
from tests.contract.test_workers import put, wait_for

X = np.arange(300_000, dtype=np.float32)
FETCH = {"do": "fetch", "id": 1, "as": "x"}
MIB = 1 << 20


@pytest.fixture
def embedded_again() -> Iterator[None]:
    yield
    connection.use(None)


def added(server: Live, work: Callable[[], Session]) -> tuple[Session, set[int]]:
    """A session, and the worker processes that came with it, once the machine has memory for one."""
    until = time.monotonic() + 60
    while psutil.virtual_memory().available < FREE_BYTES + 128 * MIB:
        assert time.monotonic() < until, "no owner gets a worker, as this machine has too little memory free"
        time.sleep(0.1)
    before = set(server.workers())
    session = work()
    return session, set(server.workers()) - before


@pytest.mark.usefixtures("embedded_again")
def test_a_death_costs_one_owner(start: Callable[..., Live], tmp_path: Path) -> None:
    server = start("process", OPBOX_WORKERS="auto", OPBOX_STATE_DIR=str(tmp_path / "state"), OPBOX_WORKER_IDLE_S="1")
    (shared,) = server.workers()
    ann, (anns,) = added(server, lambda: server.session("ann"))
    bob, (bobs,) = added(server, lambda: server.session("bob"))
    second, none = added(server, lambda: server.session("ann"))
    assert none == set(), "an owner's sessions share one"
    for session in (ann, bob, second):
        assert session.run(put(1), x=X).status == 200
    # Calls without a session run there too, their bodies where they were received.
    for _ in range(4):
        assert server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}).status == 200

    # A loop of the client's own goes on from its checkpoint when its worker dies, and says how many steps are lost.
    connection.use(HttpTransport(server.url, TOKENS["ann"]))
    assert counted_through_a_kill(7, anns) == 5

    for session in (ann, second):
        gone = session.run(FETCH)
        assert (gone.status, "killed by SIGKILL" in gone.error) == (410, True)
    answer = bob.run(FETCH)
    assert answer.status == 200
    np.testing.assert_array_equal(answer.tensors["x"], X)
    assert {shared, bobs} < set(server.workers())
    assert server.metric("opbox_worker_restarts_total") == 1

    # Without sessions, a worker ends; what became of its sessions is known all the same.
    assert bob.delete().status == 200
    wait_for(lambda: bobs not in server.workers(), 60)
    gone = bob.run(FETCH)
    assert (gone.status, "was deleted" in gone.error) == (410, True)
    assert server.metric("opbox_worker_restarts_total") == 1


def test_owners_share_where_memory_is_scarce(start: Callable[..., Live]) -> None:
    server = start(
        "process", OPBOX_WORKERS="auto", OPBOX_MAX_DEVICE_BYTES=str(400 * MIB), OPBOX_MAX_OWNER_BYTES=str(200 * MIB)
    )
    (shared,) = server.workers()
    ann, (_,) = added(server, lambda: server.session("ann"))
    bob, none = added(server, lambda: server.session("bob"))
    assert none == set(), "the shared worker has 100 MiB, ann's 200: there is no room for 200 more"
    zeros = {"do": "zeros", "ids": [1], "shape": [150, MIB], "dtype": "int8"}
    assert ann.run(zeros).status == 200
    refused = bob.run(zeros)
    assert (refused.status, refused.error.partition(":")[0]) == (429, "memory of all sessions")
    assert bob.run({**zeros, "shape": [50, MIB]}).status == 200
    assert shared in server.workers()
