"""A worker process that is stopped (SIGSTOP) or hangs: who waits for it, and what takes its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.contract.live import Got, Live, Session, symbol, var
from tests.faults.test_faults import wait_until

SILENT_S = "7"
X = np.arange(4, dtype=np.float32)
PUT, FETCH = {"do": "put", "id": 1, "tensor": "x"}, {"do": "fetch", "id": 1, "as": "x"}


@pytest.fixture
def stopped() -> Iterator[Callable[[int], None]]:
    """Stop a process until the test ends."""
    pids: list[int] = []

    def stop(pid: int) -> None:
        pids.append(pid)
        os.kill(pid, signal.SIGSTOP)

    yield stop
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


def session_with_an_array(server: Live, owner: str = "ann") -> Session:
    session = server.session(owner)
    assert session.run(PUT, x=X).status == 200
    return session


def listed(server: Live, path: str, owner: str) -> list[str]:
    answer = server.json("GET", path, owner=owner)
    assert answer.status == 200, answer.header
    return [row["id"] for row in answer.header["sessions"]]


def ready(server: Live) -> Got:
    return server.json("GET", "/v2/health/ready")


def call_meanwhile(session: Session) -> tuple[threading.Thread, list[Got]]:
    answers: list[Got] = []
    waits = threading.Thread(target=lambda: answers.append(session.run(FETCH)))
    waits.start()
    return waits, answers


def test_one_stopped_worker_of_two_is_replaced_and_stops_nobody_else(
    start: Callable[..., Live], stopped: Callable[[int], None]
) -> None:
    server = start("process", OPBOX_WORKERS="2", OPBOX_WORKER_SILENT_S=SILENT_S)
    sessions = [session_with_an_array(server) for _ in range(2)]
    worker = server.workers()[0]
    stopped(worker)
    waits, answers = zip(*(call_meanwhile(session) for session in sessions), strict=True)
    # Lists wait no longer than for a worker's part; what the other worker has they show.
    seen = [listed(server, path, owner) for path, owner in (("/v1/sessions", "ann"), ("/v1/admin/sessions", "boss"))]
    assert server.json("GET", "/v1/devices").status == 200
    wait_until(lambda: ready(server).status == 503)
    said = ready(server)
    if said.status == 503:  # else it has been replaced meanwhile
        assert "a worker process has not answered for" in said.error
        assert server.session().run(PUT, x=X).status == 200, "new sessions begin elsewhere"
    wait_until(lambda: worker not in server.workers() and len(server.workers()) == 2)
    for thread in waits:
        thread.join(60)
    by_status = {answer[0].status: (answer[0], session) for answer, session in zip(answers, sessions, strict=True)}
    assert set(by_status) == {200, 503}, answers
    refusal, gone = by_status[503]
    assert refusal.header["type"] == "WorkerDiedError"
    assert f"ended (it did not answer for {SILENT_S} s: it was stopped or hung)" in refusal.error
    later = gone.run(FETCH)
    assert (later.status, later.header["type"]) == (410, "GoneError")
    _, safe = by_status[200]
    np.testing.assert_array_equal(safe.run(FETCH).tensors["x"], X)
    assert seen == [[safe.id], [safe.id]]
    wait_until(lambda: ready(server).status == 200)
    assert server.metric("opbox_worker_restarts_total") == 1
    log = Path(server.log.name).read_text()
    assert "a worker process does not answer; ending it" in log
    assert "a list is without what some workers have" in log


def test_a_worker_that_computes_is_never_taken_for_one_that_hangs(start: Callable[..., Live]) -> None:
    # One call in C keeps the interpreter for longer than a worker may be silent, so that no thread can say anything;
    # and the processors have more to do than that.
    server = start("process", OPBOX_WORKER_SILENT_S="5")
    graph = symbol(var("x"), ("_test_holding", "y", {"seconds": "12"}, [0]))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        answer = server.call("POST", "/v1/forward", {"graph": graph}, {"x": X})
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert answer.status == 200, answer.header
    assert server.metric("opbox_worker_restarts_total") == 0


def test_a_stopped_process_for_code_ends_with_its_session(
    start: Callable[..., Live], stopped: Callable[[int], None]
) -> None:
    server = start("process", OPBOX_WORKER_SILENT_S="5")
    answer = server.call("POST", "/v1/sessions", {"code": True}, owner="py")
    session = Session(server, answer.header["id"], "py")
    assert session.run(PUT, x=X).status == 200
    (process,) = server.code_workers()
    stopped(process)
    refusal = session.run(FETCH)
    assert (refusal.status, refusal.header["type"]) == (503, "WorkerDiedError")
    assert "the session's process ended (it did not answer for 5 s" in refusal.error
    assert session.run(FETCH).status == 410
    assert session_with_an_array(server, "py").run(FETCH).status == 200
