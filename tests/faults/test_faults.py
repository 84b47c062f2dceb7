"""Processes die, disks fill, clients vanish: who is concerned is told, everybody else goes on, nothing stays behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from opbox_protocol import wire
from tests.contract.live import FC, IDENTITY, TOKENS, Live, symbol, var

X = np.ones(16, np.float32)
SLOW_STEPS = symbol(var("x"), *(("_test_slow", f"y{i}", {"seconds": "0.1"}, [i]) for i in range(50)))
INPUTS = {"x": np.ones((8, 16), np.float32), "w": np.ones((4, 16), np.float32), "b": np.zeros(4, np.float32)}
PATIENCE_S = 30.0


def wait_until(condition: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def works(server: Live) -> bool:
    return server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}, owner="bob").status == 200


def test_a_worker_killed_in_mid_step(start: Callable[..., Live]) -> None:
    server = start("process")
    session = server.session()
    put = session.run({"do": "put", "id": 1, "tensor": "x"}, x=X)
    assert put.status == 200
    answers: list[Any] = []
    long = threading.Thread(
        target=lambda: answers.append(server.call("POST", "/v1/forward", {"graph": SLOW_STEPS}, {"x": X}))
    )
    long.start()
    time.sleep(0.5)
    for pid in server.workers():
        os.kill(pid, signal.SIGKILL)
    long.join(PATIENCE_S)
    assert (answers[0].status, answers[0].header["type"]) == (503, "WorkerDiedError")
    assert session.run({"do": "fetch", "id": 1, "as": "x"}).status == 410
    wait_until(lambda: works(server))
    assert server.metric("opbox_worker_restarts_total") >= 1


def test_a_process_for_code_killed_in_mid_step(start: Callable[..., Live]) -> None:
    server = start("process")
    session = server.session("py", code=True)
    bind = {"do": "bind", "id": 2, "graph": SLOW_STEPS, "args": {"x": 1}, "outputs": [3]}
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, bind, x=X).status == 200
    answers: list[Any] = []
    long = threading.Thread(target=lambda: answers.append(session.run({"do": "forward", "executor": 2})))
    long.start()
    time.sleep(0.5)
    for pid in server.code_workers():
        os.kill(pid, signal.SIGKILL)
    long.join(PATIENCE_S)
    assert (answers[0].status, answers[0].header["type"]) == (503, "WorkerDiedError")
    gone = session.run({"do": "fetch", "id": 1, "as": "x"})
    assert (gone.status, "process ended" in gone.error) == (410, True), gone.error
    assert works(server)
    fresh = server.session("py")
    assert fresh.run({"do": "put", "id": 1, "tensor": "x"}, x=X).status == 200


def test_the_server_killed_in_mid_step_leaves_no_worker(start: Callable[..., Live]) -> None:
    server = start("process")
    workers = [psutil.Process(pid) for pid in server.workers()]

    def call() -> None:
        with contextlib.suppress(httpx.HTTPError):
            server.call("POST", "/v1/forward", {"graph": SLOW_STEPS}, {"x": X})

    caller = threading.Thread(target=call)
    caller.start()
    time.sleep(0.5)
    server.process.kill()
    caller.join(PATIENCE_S)
    _, alive = psutil.wait_procs(workers, PATIENCE_S)
    assert not alive


def descriptors(server: Live) -> int:
    return sum(psutil.Process(pid).num_fds() for pid in (server.process.pid, *server.workers()))


def connection(server: Live) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_clients_that_vanish(start: Callable[..., Live], isolation: str) -> None:
    server = start(isolation)
    big = np.ones(1_000_000, np.float32)
    head, buffers = wire.encode({"graph": IDENTITY}, {"x": big}, "inputs")
    body = b"".join([head, *buffers])
    lines = [
        "POST /v1/forward HTTP/1.1",
        f"Host: {server.url.removeprefix('http://')}",
        f"Authorization: Bearer {TOKENS['ann']}",
        f"{wire.HEADER_LENGTH}: {len(head)}",
        f"Content-Length: {len(body)}",
    ]
    request = "\r\n".join([*lines, "", ""]).encode() + body
    assert works(server)
    before = 0
    for number in range(30):
        if number == 8:  # idle buffers, which are used again, have descriptors
            before = descriptors(server)
        with connection(server) as sock:  # in mid-upload
            sock.sendall(request[: len(request) // 2])
        with connection(server) as sock:  # in mid-download
            sock.sendall(request)
            assert sock.recv(1000)
        with connection(server) as sock:  # before the answer
            sock.sendall(request)
    wait_until(lambda: server.metric("opbox_buffer_bytes") == 0)
    assert works(server)
    assert descriptors(server) <= before + 16
    session = server.session()
    zeros = {"do": "zeros", "ids": [1], "shape": [64, 1 << 20], "dtype": "int8"}
    assert session.run(zeros).status == 200
    fetch = b'{"commands":[{"do":"fetch","id":1,"as":"x"}]}'
    head = [f"POST {session.path}/commands HTTP/1.1", *lines[1:3], "Accept: application/octet-stream"]
    for _ in range(6):  # in mid-download of what no socket holds
        with connection(server) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.sendall("\r\n".join([*head, f"Content-Length: {len(fetch)}", "", ""]).encode() + fetch)
            assert sock.recv(1000)
    session.delete()
    for number in range(6):
        for path, further in (("/v1/events", ""), ("/openapi.json", "Accept-Encoding: gzip\r\n")):
            with connection(server) as sock:
                sock.sendall(f"GET {path} HTTP/1.1\r\n{lines[1]}\r\n{lines[2]}\r\n{further}\r\n".encode())
                if number % 2:
                    assert sock.recv(100)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closes by a reset
    time.sleep(1.5)  # an event is written every second
    assert works(server)
    log = Path(server.log.name).read_text()
    assert not re.search("Traceback|exception|Error", log), log[-3000:]


def test_a_full_disk(start: Callable[..., Live]) -> None:
    """Nothing that a server does for a call needs a file: it goes on where none can be written, and stops when told."""
    server = start("process", OPBOX_LOG_REQUESTS="true")
    for pid in (server.process.pid, *server.workers()):
        subprocess.run(["prlimit", f"--pid={pid}", "--fsize=0"], check=True)
    session = server.session()
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=X).status == 200
    assert np.array_equal(session.run({"do": "fetch", "id": 1, "as": "x"}).tensors["x"], X)
    assert works(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(2 * PATIENCE_S) in (0, 120), "120: Python could not flush the stream of the log"
    server.process.returncode = 0


def limit_files(server: Live, nbytes: str) -> None:
    """Let the API process write so many bytes to a file; it has the ledger, the log and the checkpoints."""
    subprocess.run(["prlimit", f"--pid={server.process.pid}", f"--fsize={nbytes}:unlimited"], check=True)


def test_a_full_state_directory(start: Callable[..., Live], tmp_path: Path) -> None:
    """A checkpoint that has no room is an error, the last one stays; figures and lines wait until there is some."""
    state = tmp_path / "state"
    server = start("process", OPBOX_STATE_DIR=str(state))
    session = server.session()
    save = {"do": "checkpoint", "name": "run", "arrays": {"x": 1}, "step": 1}
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, save, x=X).status == 200
    limit_files(server, "0")
    second = {**save, "arrays": {"x": 2}, "step": 2}
    full = session.run({"do": "put", "id": 2, "tensor": "x"}, second, x=2 * X)
    assert (full.status, full.header["type"], "the last one stays" in full.error) == (507, "StorageError", True)
    for _ in range(5):
        assert works(server)
    assert server.json("POST", "/v1/infer_shape", {}, owner="monitor").status == 403
    time.sleep(3)  # a ledger's write comes every two seconds
    assert works(server)
    limit_files(server, "unlimited")
    fresh = server.session()
    restored = fresh.run({"do": "restore", "name": "run"}, {"do": "fetch", "id": 1, "as": "x"})
    assert restored.status == 200, restored.header
    assert np.array_equal(restored.tensors["x"], X)
    assert session.run(second).status == 200
    assert server.stop() == 0
    with contextlib.closing(sqlite3.connect(state / "usage.sqlite")) as database:
        requests, runs = database.execute("SELECT sum(requests), sum(runs) FROM usage WHERE owner = 'bob'").fetchone()
    assert (requests, runs) == (6, 6), "no figure was lost"
    actions = [json.loads(line)["action"] for line in (state / "audit.log").read_text().splitlines()]
    assert actions[-1] == "server.stopped"


CLOCK = """
import sys, threading, time
import numpy as np
shift = [0.0]
real = time.time
time.time = lambda: real() + shift[0]
from opbox_service.engine import Engine
from opbox_service.settings import Settings
engine = Engine(Settings(session_ttl_s=600))
id = engine.call("POST", "/v1/sessions", {})[0]["id"]
path = f"/v1/sessions/{id}/commands"
for jump in (10**9, -2 * 10**9, 10**6):
    shift[0] += jump
    time.sleep(1.2)  # the sweep of old sessions comes twice a second
    put = {"do": "put", "id": abs(jump), "tensor": "x"}
    engine.call("POST", path, {"commands": [put]}, {"x": np.ones(3, np.float32)})
    assert engine.call("GET", f"/v1/sessions/{id}")[0]["idle_s"] < 60
engine.close()
"""


def test_clocks_that_jump() -> None:
    subprocess.run([sys.executable, "-c", CLOCK], check=True, timeout=120)


def test_without_shared_memory_files() -> None:
    """Buffers are anonymous: no file of /dev/shm is made or needed."""
    root = Path(__file__).resolve().parents[2] / "service" / "opbox_service"
    for path in root.rglob("*.py"):
        text = path.read_text()
        assert "multiprocessing.shared_memory" not in text, path
        assert "shm_open" not in text, path


STEPS = int(os.environ.get("OPBOX_SOAK", "300"))
"""Training steps, and a tenth of the forwards: `make soak` runs 20,000."""
GROWTH = 48 << 20


def resident(server: Live) -> int:
    return sum(psutil.Process(pid).memory_info().rss for pid in (server.process.pid, *server.workers()))


@pytest.mark.timeout(0)
def test_long_use_leaves_memory_and_descriptors_as_they_were(start: Callable[..., Live]) -> None:
    server = start("process")
    session = server.session()
    loss = json.loads(json.dumps(FC))
    loss["nodes"].append({"op": "MakeLoss", "name": "loss", "attrs": {}, "inputs": [[3, 0, 0]]})
    loss["heads"] = [[4, 0, 0]]
    names = list(INPUTS)
    puts = [{"do": "put", "id": i + 1 + k, "tensor": name} for k in (0, 3) for i, name in enumerate(names)]
    bind = {"do": "bind", "id": 7, "graph": loss, "outputs": [8]}
    bind |= {"args": {n: i + 1 for i, n in enumerate(names)}, "grads": {n: i + 4 for i, n in enumerate(names)}}
    assert session.run(*puts, bind, **INPUTS).status == 200
    step = [
        {"do": "forward", "executor": 7, "is_train": True},
        {"do": "backward", "executor": 7, "head_grads": []},
        {"do": "update", "op": "sgd_update", "attrs": {"lr": "0.001"}, "calls": [{"inputs": [3, 6]}]},
    ]
    warm = min(STEPS // 3, 2000)
    before = files = 0
    for number in range(STEPS):
        if number == warm:
            before, files = resident(server), descriptors(server)
        assert session.run(*step).status == 200
        for _ in range(10):
            assert server.call("POST", "/v1/forward", {"graph": FC}, INPUTS).status == 200
    bias = session.run({"do": "fetch", "id": 3, "as": "b"}).tensors["b"]
    # Every acknowledged step is in the values: the gradient of the bias is the batch's 8 rows of ones.
    assert np.allclose(bias, -0.001 * 8 * STEPS, rtol=1e-3)
    grown, opened = resident(server) - before, descriptors(server) - files
    print(f"{STEPS} steps, {10 * STEPS} forwards: {before >> 10} kB {grown >> 10:+}, {opened:+} descriptors")
    assert grown < GROWTH
    assert opened <= 4
