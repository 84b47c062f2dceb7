"""Worker processes: their death, their replacement, what they leave behind; and stopping."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from opbox import token_store
from tests.contract.live import FATAL, IDENTITY, SLOW, Got, Live

X = np.arange(300_000, dtype=np.float32)


def put(id: int) -> dict:
    return {"do": "put", "id": id, "tensor": "x"}


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.02)


def shared_memory(pid: int) -> set[str]:
    """The shared buffers that a process holds open, and files in /dev/shm of ours."""
    fds = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if fd.isdigit())
    return {target for target in fds if "memfd:opbox" in target}


def test_a_worker_killed_in_mid_step_is_told_and_replaced(start: Callable[..., Live]) -> None:
    server = start("process")
    (worker,) = server.workers()
    session = server.session()
    bystander = server.session("bob")
    assert session.run(put(1), x=X).status == 200
    bind = {"do": "bind", "id": 2, "graph": SLOW, "args": {"x": 1}, "outputs": [3]}
    answers: list[Got] = []
    running = threading.Thread(
        target=lambda: answers.append(session.run(bind, {"do": "forward", "executor": 2}, put(4), x=X))
    )
    running.start()
    time.sleep(0.5)
    os.kill(worker, signal.SIGKILL)
    running.join(20)
    (refusal,) = answers
    assert (refusal.status, refusal.header["type"]) == (503, "WorkerDiedError")
    assert "ended (killed by SIGKILL)" in refusal.error
    for gone in (session, bystander):
        answer = gone.run(put(9), x=X)
        assert (answer.status, answer.header["type"]) == (410, "GoneError")
        assert "worker process" in answer.error
    assert server.call("GET", session.path, owner="bob").status == 404
    wait_for(lambda: server.clients["ann"].get("/v2/health/ready").status_code == 200)
    fresh = server.session()
    assert fresh.run(put(1), {"do": "fetch", "id": 1, "as": "y"}, x=X).status == 200
    (other,) = server.workers()
    assert other != worker
    assert server.metric("opbox_worker_restarts_total") == 1


def test_a_crash_inside_an_operator_ends_only_its_worker(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_WORKERS="2")
    sessions = [server.session() for _ in range(2)]
    for session in sessions:
        assert session.run(put(1), x=X).status == 200
    answer = sessions[0].run(
        {"do": "bind", "id": 2, "graph": FATAL, "args": {"x": 1}}, {"do": "forward", "executor": 2}
    )
    assert (answer.status, answer.header["type"]) == (503, "WorkerDiedError")
    untouched = sessions[1].run({"do": "fetch", "id": 1, "as": "x"})
    assert untouched.status == 200
    np.testing.assert_array_equal(untouched.tensors["x"], X)
    wait_for(lambda: len(server.workers()) == 2)


def test_crashes_leave_no_buffers_and_no_files(start: Callable[..., Live]) -> None:
    server = start("process")
    before = set(os.listdir("/dev/shm"))
    for _ in range(3):
        wait_for(lambda: server.clients["ann"].get("/v2/health/ready").status_code == 200)
        assert server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}).status == 200
        assert server.call("POST", "/v1/forward", {"graph": FATAL}, {"x": X}).status == 503
    wait_for(lambda: server.clients["ann"].get("/v2/health/ready").status_code == 200)
    assert server.metric("opbox_buffer_bytes") == 0
    assert shared_memory(server.process.pid) == set()
    assert {name for name in os.listdir("/dev/shm") if "opbox" in name} <= before


def test_workers_end_with_the_server_even_when_it_is_killed(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_WORKERS="2", OPBOX_STOP_GRACE_S="1")
    workers = server.workers()
    assert len(workers) == 2
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def test_workers_get_no_tokens(start: Callable[..., Live]) -> None:
    server = start("process")
    (worker,) = server.workers()
    assert b"OPBOX_TOKEN" not in Path(f"/proc/{worker}/environ").read_bytes()


def test_stopping_finishes_what_is_in_flight(start: Callable[..., Live]) -> None:
    for isolation in ("none", "process"):
        server = start(isolation)
        answers: list[Got] = []

        def call(server: Live = server, answers: list[Got] = answers) -> None:
            answers.append(server.call("POST", "/v1/forward", {"graph": SLOW}, {"x": X}))

        running = threading.Thread(target=call)
        running.start()
        time.sleep(0.6)
        server.process.send_signal(signal.SIGTERM)
        running.join(20)
        assert [answer.status for answer in answers] == [200]
        assert server.process.wait(20) == 0


def test_it_is_not_ready_once_asked_to_stop(start: Callable[..., Live]) -> None:
    server = start("none")
    probe = server.clients["bob"]
    assert probe.get("/v2/health/ready").status_code == 200
    running = threading.Thread(
        target=lambda: server.call("POST", "/v1/forward", {"graph": SLOW}, {"x": X[:10]}, owner="ann")
    )
    running.start()
    time.sleep(0.4)
    server.process.send_signal(signal.SIGTERM)
    # An open connection may still ask once, or is closed before that.
    with contextlib.suppress(httpx.TransportError):
        assert probe.get("/v2/health/ready").status_code == 503
    running.join(20)
    assert server.process.wait(20) == 0


def test_a_token_is_made_printed_and_found_by_a_client_of_the_same_user(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start("none", OPBOX_TOKENS="")
    kind, _, token = server.announced.partition(": ")
    assert kind == "token"
    assert len(token) > 30
    (file,) = list(server.folder.glob("server-*.json"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setenv("OPBOX_RUNTIME_DIR", str(server.folder))
    assert token_store.read(server.url) == token
    assert token_store.read(server.url.replace("127.0.0.1", "localhost")) == token
    assert token_store.read("http://example.org:" + server.url.rpartition(":")[2]) is None
    client = server.clients["ann"]
    assert client.get("/v2", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    assert server.stop() == 0
    assert not file.exists()


def test_wrong_options_are_told_in_a_line() -> None:
    command = [sys.executable, "-m", "opbox_service.serve"]
    for options, words in (
        (["--port", "70000"], "port"),
        (["--host", "203.0.113.7", "--port", "0"], "cannot listen"),
        (["--workers", "0"], "workers"),
    ):
        ended = subprocess.run([*command, *options], capture_output=True, text=True, timeout=60)
        assert ended.returncode != 0
        assert words in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_worker_loads_while_it_has_nothing_to_do_what_few_operators_want(start: Callable[..., Live]) -> None:
    """Else the first call of `random_pdf_poisson` or of a Fourier transform waits for it, on a busy machine seconds."""
    server = start("process")
    (worker,) = server.workers()
    maps = Path(f"/proc/{worker}/maps")
    for module in ("scipy/special", "scipy/linalg", "scipy/fft"):
        wait_for(lambda module=module: module in maps.read_text())
