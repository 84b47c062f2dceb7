"""A server that stops finishes what it has accepted and refuses the rest; clients wait for the next one and go on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from opbox.http import HttpTransport
from opbox_protocol.errors import MXNetError, NotReadyError, TransportError
from tests.contract.live import IDENTITY, SLOW, TOKENS, Live, got
from tests.contract.test_access import wait_for

TOKEN = "a-token-of-the-restarts"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
X = np.arange(6, dtype=np.float32)


class Servers:
    """Servers on one port, which a socket of the test's own or SO_REUSEPORT lets them share."""

    def __init__(self, folder: Path, *, activated: bool) -> None:
        self._folder = folder
        self._socket = socket.create_server(("127.0.0.1", 0)) if activated else None
        self.port = self._socket.getsockname()[1] if self._socket is not None else 0
        self.running: list[subprocess.Popen[str]] = []

    def start(self, *options: str, isolation: str = "none", **settings: str) -> subprocess.Popen[str]:
        """A server that is ready, as it says itself."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
        env |= {"OPBOX_TOKEN": TOKEN, "OPBOX_CODE_SESSIONS": "0", "OMP_NUM_THREADS": "1", **settings}
        command = [sys.executable, "-m", "opbox_service.serve", "--isolation", isolation, *options]
        fds = []
        if self._socket is not None:
            fds = [self._socket.fileno()]
            words = f'LISTEN_FDS=1 LISTEN_PID=$$ exec "$@" 3<&{fds[0]}'
            command = ["bash", "-c", words, "bash", *command]
        else:
            command += ["--port", str(self.port)]
        path = self._folder / f"log-{len(self.running)}"
        with path.open("w") as log:
            process = subprocess.Popen(command, env=env, pass_fds=fds, stdout=subprocess.PIPE, stderr=log, text=True)
        self.running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, path.read_text()
        self.port = int(line.rpartition(":")[2])
        return process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if self._socket is not None:
            self._socket.close()


@pytest.fixture
def activated(tmp_path: Path) -> Iterator[Servers]:
    """Servers that are passed a socket, as by systemd."""
    servers = Servers(tmp_path, activated=True)
    yield servers
    servers.close()


@pytest.fixture
def sharing(tmp_path: Path) -> Iterator[Servers]:
    """Servers that share a port by SO_REUSEPORT."""
    servers = Servers(tmp_path, activated=False)
    yield servers
    servers.close()


class Callers:
    """Threads that call again and again until they are told to stop, and what went wrong."""

    def __init__(self, call: Callable[[int], None], number: int = 3) -> None:
        self.calls = 0
        self.errors: list[BaseException] = []
        self._call = call
        self._done = False
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(number)]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int) -> None:
        while not self._done:
            try:
                self._call(number)
                self.calls += 1
                time.sleep(0.01)
            except BaseException as error:
                self.errors.append(error)
                return

    def stop(self) -> None:
        """Wait for them; no call may have failed."""
        self._done = True
        for thread in self._threads:
            thread.join(60)
        assert not self.errors, self.errors


def roll(servers: Servers, *options: str, **how: str) -> None:
    """A server in the place of another, while clients call."""
    first = servers.start(*options, **how)
    clients = [HttpTransport(servers.url, TOKEN) for _ in range(2)]
    plain = httpx.Client(base_url=servers.url, headers=HEADERS, timeout=60)

    def call(number: int) -> None:
        if number < len(clients):
            y = clients[number].call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X + number}).tensors["y_output"]
            np.testing.assert_array_equal(y, X + number)
            return
        body = {"graph": IDENTITY, "inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [7]}]}
        answer = got(plain.post("/v1/forward", json=body))
        if answer.status == 503:  # as any client of HTTP may know
            time.sleep(float(answer.http["retry-after"]) / 4)
            return
        assert (answer.status, answer.tensors["y_output"].tolist()) == (200, [7.0])

    callers = Callers(call)
    second = servers.start(*options, **how)
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 0
    count = callers.calls
    wait_for(lambda: callers.calls > count + 20 or callers.errors)
    callers.stop()
    assert second.poll() is None
    for client in clients:
        client.close()
    plain.close()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_a_rolling_restart_behind_a_passed_socket_loses_no_request(activated: Servers, isolation: str) -> None:
    roll(activated, isolation=isolation)


def test_a_rolling_restart_on_a_shared_port_loses_no_request(sharing: Servers) -> None:
    roll(sharing, "--reuse-port")


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_what_is_accepted_is_finished_and_what_is_new_refused(start: Callable[..., Live], isolation: str) -> None:
    server = start(isolation)
    answers = []
    slow = threading.Thread(
        target=lambda: answers.append(server.call("POST", "/v1/forward", {"graph": SLOW}, {"x": X}))
    )
    session = server.session("bob")
    slow.start()
    wait_for(lambda: server.metric("opbox_requests_in_flight") > 1)
    begun = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: not server.clients["bob"].get("/v2/health/ready").is_success)
    refused = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}, owner="bob")
    assert (refused.status, refused.http["retry-after"], refused.http["connection"]) == (503, "1", "close")
    assert refused.error == "the server is stopping: try again when it, or the one in its place, is ready"
    assert session.run({"do": "free", "ids": []}).status == 503
    assert server.json("PUT", "/v1/graphs", {"graph": IDENTITY}, owner="bob").status == 503
    assert server.call("GET", session.path, owner="bob").status == 200
    assert server.call("DELETE", session.path, owner="bob").status == 200
    slow.join(30)
    assert [(answer.status, answer.tensors["y_output"].tolist()) for answer in answers] == [(200, X.tolist())]
    assert server.process.wait(30) == 0
    assert time.monotonic() - begun < 15


def test_a_stop_takes_no_longer_than_its_grace_period(start: Callable[..., Live]) -> None:
    server = start("process", OPBOX_STOP_GRACE_S="1")
    slow = {**SLOW, "nodes": [SLOW["nodes"][0], {**SLOW["nodes"][1], "attrs": {"seconds": "30"}}]}

    answers = []
    running = threading.Thread(
        target=lambda: answers.append(server.call("POST", "/v1/forward", {"graph": slow}, {"x": X}))
    )
    running.start()
    wait_for(lambda: server.metric("opbox_requests_in_flight") > 1)
    begun = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
    assert time.monotonic() - begun < 10
    running.join(30)
    assert [answer.status for answer in answers] == [503]
    assert answers[0].error == "POST /v1/forward: expected an answer before the server stopped, got none: try again"


def test_a_client_waits_while_the_server_is_away(sharing: Servers) -> None:
    server = sharing.start()
    client = HttpTransport(sharing.url, TOKEN)
    call = Callers(lambda _: client.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}), 1)
    wait_for(lambda: call.calls > 10 or call.errors)
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    time.sleep(1)
    count = call.calls
    sharing.start()
    wait_for(lambda: call.calls > count + 10 or call.errors)
    call.stop()
    client.close()


def test_a_client_does_not_wait_for_ever(sharing: Servers) -> None:
    server = sharing.start()
    client = HttpTransport(sharing.url, TOKEN, patience=0.6)
    client.call("GET", "/v2")
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    begun = time.monotonic()
    with pytest.raises(TransportError, match=r"nothing has listened for \d+ s"):
        client.call("GET", "/v2")
    assert 0.2 < time.monotonic() - begun < 10
    with pytest.raises(TransportError, match=r"nothing has listened for \d+ s"):
        client.call("DELETE", "/v1/sessions/0")
    client.close()


def test_a_refusal_says_when_to_come_again(server: Live) -> None:
    error = NotReadyError("busy")
    assert error.retry_after is None
    client = HttpTransport(server.url, TOKENS["ann"], patience=0)
    with pytest.raises(MXNetError, match="expected one of the routes") as caught:
        client.call("GET", "/nowhere")
    assert caught.value.retry_after is None
    client.close()


def serve(**variables: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    words = 'LISTEN_PID=$$ exec "$@"'
    command = ["sh", "-c", words, "sh", sys.executable, "-m", "opbox_service.serve", "--isolation", "none"]
    return subprocess.run(
        command, env={**env, **variables}, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )


def test_sockets_that_are_none_are_refused() -> None:
    ended = serve(LISTEN_FDS="2")
    assert ended.returncode == 1
    assert ended.stderr.strip() == "opbox serve: LISTEN_FDS: expected one socket, got 2: use one ListenStream"


def test_systemd_is_told_of_start_and_stop(sharing: Servers, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        process = sharing.start(NOTIFY_SOCKET=str(tmp_path / "notify"))
        assert manager.recv(100) == b"READY=1"
        process.send_signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
    assert process.wait(30) == 0
