"""Processes that are stopped for longer than every period, as a virtual machine's pause or a laptop's sleep does.

The monotonic clock cannot jump back, and a suspended Linux does not count in it; a stopped process, and a guest whose
host was paused, find it far ahead when they go on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from tests.contract.live import Live, Session, symbol, var
from tests.faults.test_faults import wait_until, works

X = np.zeros(4, np.float32)
TTL_S, DEADLINE_S, PAUSED_S = 3.0, 4.0, 7.0
SLOW = symbol(var("x"), ("_test_slow", "y", {"seconds": "0.1"}, [0]))
STEPS = 10


def stop(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def go_on(pids: list[int]) -> None:
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """The processes do nothing for PAUSED_S and in the block before that."""
    stop(pids)
    try:
        yield
        time.sleep(PAUSED_S)
    finally:
        go_on(pids)


def counting(server: Live, owner: str, ttl_s: float = TTL_S) -> Session:
    """A session whose steps add 1 to array 1, each in 0.1 s."""
    session = server.session(owner, ttl_s=ttl_s)
    puts = [{"do": "put", "id": 1, "tensor": "x"}, {"do": "put", "id": 2, "tensor": "g"}]
    bind = {"do": "bind", "id": 3, "graph": SLOW, "args": {"x": 1}, "outputs": [4]}
    assert session.run(*puts, bind, x=X, g=X - 1).status == 200
    return session


def accepted_steps(session: Session) -> None:
    """STEPS steps that the server has accepted and not yet made."""
    update = {"do": "update", "op": "sgd_update", "attrs": {"lr": "1"}, "calls": [{"inputs": [1, 2]}]}
    for _ in range(STEPS):
        answer = session.run({"do": "forward", "executor": 3}, update, wait=False)
        assert answer.status == 202, answer.header


def check_steps(session: Session) -> None:
    fetched = session.run({"do": "fetch", "id": 1, "as": "x"})
    assert fetched.status == 200, fetched.header
    np.testing.assert_array_equal(fetched.tensors["x"], X + STEPS)


@pytest.fixture
def server(start: Callable[..., Live], isolation: str) -> Live:
    return start(isolation, OPBOX_DEADLINE_S=str(DEADLINE_S), OPBOX_CODE_DEADLINE_S="5")


@pytest.mark.parametrize(("isolation", "owner"), [("none", "ann"), ("process", "ann"), ("process", "py")])
def test_a_server_that_was_paused_has_lost_nothing(server: Live, owner: str) -> None:
    session = counting(server, owner)
    accepted_steps(session)
    process = psutil.Process(server.process.pid)
    with stopped([process.pid, *(child.pid for child in process.children(recursive=True))]):
        pass
    check_steps(session)
    assert works(server)
    time.sleep(1)  # the sweeper has looked again
    check_steps(session)


@pytest.mark.parametrize("isolation", ["process"])
def test_a_worker_that_was_paused_has_lost_nothing(server: Live) -> None:
    session = counting(server, "ann")
    accepted_steps(session)
    answers: list[Any] = []
    with stopped(server.workers()):
        waits = threading.Thread(target=lambda: answers.append(session.run({"do": "fetch", "id": 1, "as": "x"})))
        waits.start()
    waits.join(30)
    # Who waited was told when his time was over.
    assert (answers[0].status, answers[0].header["type"]) == (504, "DeadlineError"), answers[0].header
    check_steps(session)
    assert server.metric("opbox_worker_restarts_total") == 0


@pytest.mark.parametrize("isolation", ["process"])
def test_an_api_process_that_was_paused_has_lost_nothing(server: Live) -> None:
    session = counting(server, "ann", ttl_s=60)
    accepted_steps(session)
    with stopped([server.process.pid]):
        pass
    wait_until(lambda: works(server))
    # The worker went on, and told every second how it is: that the messages came at once is no fault of it.
    check_steps(session)
    assert server.metric("opbox_worker_restarts_total") == 0
