"""A gateway that speaks TLS, and one before a node that does."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from opbox_protocol import wire
from tests.cluster.gateway_nodes import tokens_setting
from tests.contract.live import TOKENS, Live, got

FILES = Path(__file__).parents[1] / "link" / "tls"
CERTIFICATE, KEY = FILES / "fullchain.pem", FILES / "privkey.pem"
TLS = {"OPBOX_SSL_CERTFILE": str(CERTIFICATE), "OPBOX_SSL_KEYFILE": str(KEY)}
HEADERS = {"Authorization": f"Bearer {TOKENS['ann']}"}
PROGRAM = """
import opbox as mx
x = mx.nd.array([1.0, 2.0])
print((x * 1.5).asnumpy().tolist(), len(mx.nd.ones((300, 1000)).asnumpy()), mx.cpu().session.address)
"""
Start = Callable[..., str]


def begin(nodes: str, **settings: str) -> subprocess.Popen[str]:
    """A gateway's process before nodes, "a=URL"."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPBOX_")}
    env |= {"OPBOX_TOKENS": tokens_setting(), "TEST_NODES": nodes, **settings}
    command = ["opbox_service.cluster.gateway", "--port", "0", "--controller", "tests.cluster.known_nodes:controllers"]
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live("none", tmp_path_factory.mktemp("plain"), OPBOX_NODE="a")
    yield live
    live.stop()


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live("none", tmp_path_factory.mktemp("secure"), OPBOX_NODE="a", **TLS)
    yield live
    live.stop()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a gateway before a node, and returns its URL."""
    processes: list[subprocess.Popen[str]] = []

    def start(node: Live, **settings: str) -> str:
        process = begin(f"a={node.url}", **settings)
        processes.append(process)
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("opbox cluster gateway on "), process.stderr.read()
        return line.split()[-1]

    yield start
    for process in processes:
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


def client(url: str) -> httpx.Client:
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    return httpx.Client(base_url=url, headers=HEADERS, timeout=60, verify=trusted)


def put_and_fetch(through: httpx.Client) -> None:
    """A large body there and back, in a session."""
    id = through.post("/v1/sessions", json={}).json()["id"]
    values = np.random.default_rng(7).random((1 << 20,), np.float32)
    commands = [{"do": "put", "id": 1, "tensor": "x"}, {"do": "fetch", "id": 1, "as": "x"}]
    head, buffers = wire.encode({"seq": 1, "commands": commands}, {"x": values}, "inputs")
    sent = {wire.HEADER_LENGTH: str(len(head))}
    answer = through.post(f"/v1/sessions/{id}/commands", content=b"".join([head, *buffers]), headers=sent)
    assert answer.status_code == 200, answer.text
    assert np.array_equal(got(answer).tensors["x"], values)
    assert through.delete(f"/v1/sessions/{id}").json() == {"deleted": id}


def test_clients_by_tls(plain: Live, start: Start) -> None:
    url = start(plain, **TLS)
    assert url.startswith("https://127.0.0.1:")
    with client(url) as through:
        for _ in range(5):
            assert through.get("/v2/health/live", headers={"Connection": "close"}).json() == {"live": True}
        put_and_fetch(through)
        with through.stream("GET", "/v1/events") as events:
            assert events.status_code == 200
            assert next(events.iter_lines()) is not None
    with pytest.raises(httpx.ConnectError):  # a certificate that the client does not trust
        httpx.get(f"{url}/v2/health/live")


def test_a_program_by_tls(plain: Live, start: Start) -> None:
    url = start(plain, **TLS)
    environment = os.environ | {"OPBOX_URL": url, "OPBOX_TOKEN": TOKENS["ann"], "SSL_CERT_FILE": str(CERTIFICATE)}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"[1.5, 3.0] 300 {url}\n"  # its token goes nowhere without TLS


def test_connections_without_tls_yet_are_counted(plain: Live, start: Start) -> None:
    url = start(plain, OPBOX_MAX_CONNECTIONS="16", OPBOX_REQUEST_HEAD_S="3600", **TLS)
    place = ("127.0.0.1", int(url.rpartition(":")[2]))
    silent = [socket.create_connection(place, timeout=60) for _ in range(40)]
    for sock in silent[:-4]:  # a quarter of the limit may be silent
        assert sock.recv(1) == b""
    with client(url) as through:
        assert through.get("/v2/health/live").status_code == 200
    for sock in silent:
        sock.close()


def test_plain_http_is_not_answered(plain: Live, start: Start) -> None:
    url = start(plain, **TLS)
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{url.replace('https', 'http')}/v2/health/live")


def test_a_node_that_has_tls(secure: Live, start: Start) -> None:
    assert secure.url.startswith("https://")
    url = start(secure, SSL_CERT_FILE=str(CERTIFICATE))
    with client(url) as through:
        assert through.post("/v1/sessions", json={}).json()["url"] == secure.url
        put_and_fetch(through)


def test_a_node_whose_certificate_is_not_trusted(secure: Live, start: Start) -> None:
    with client(start(secure)) as through:
        answer = through.get("/v1/sessions/a-" + "0" * 32)
        assert answer.status_code == 503
        assert "node 'a': expected a certificate that the gateway trusts" in answer.json()["error"]
        assert "SSL_CERT_FILE" in answer.json()["error"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"OPBOX_SSL_CERTFILE": "none.pem"}, "ssl_certfile: expected a file that can be read"),
        ({"OPBOX_SSL_KEYFILE": str(KEY)}, "ssl_certfile: expected the certificate of ssl_keyfile, got none"),
        ({**TLS, "OPBOX_SSL_CERTFILE": str(KEY)}, "ssl_certfile: expected a certificate in PEM form"),
    ],
)
def test_a_certificate_that_does_not_do(settings: dict[str, str], sentence: str) -> None:
    process = begin("", **settings)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 2
    assert f"opbox cluster gateway: {sentence}" in said
    assert "Traceback" not in said
