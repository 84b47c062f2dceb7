"""A server that speaks TLS itself."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
import uvloop

from opbox_service.api.connections import Connections
from opbox_service.api.http_protocol import HttpProtocol
from opbox_service.api.tls_listener import TlsListener
from opbox_service.settings import Settings
from tests.contract.live import TOKENS, Live

FILES = Path(__file__).parents[1] / "link" / "tls"
CERTIFICATE, KEY = FILES / "fullchain.pem", FILES / "privkey.pem"
PROGRAM = """
import opbox as mx
x = mx.nd.array([1.0, 2.0])
for _ in range(20):
    x = x * 1.5
print(x.shape, len(mx.nd.ones((300, 1000)).asnumpy()))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(
        "process", tmp_path_factory.mktemp("tls"), OPBOX_SSL_CERTFILE=str(CERTIFICATE), OPBOX_SSL_KEYFILE=str(KEY)
    )
    yield live
    assert live.stop() == 0


def test_calls_by_tls(server: Live) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    with httpx.Client(verify=trusted, headers={"Authorization": f"Bearer {TOKENS['ann']}"}) as client:
        for _ in range(20):  # a fast client's first message comes with its connection
            assert client.get(f"{server.url}/v2/health/ready", headers={"Connection": "close"}).json() == {
                "ready": True
            }


@pytest.mark.parametrize("words", [("-m", "opbox.cli", "status"), ("-c", PROGRAM)], ids=["status", "arrays"])
def test_programs_by_tls(server: Live, words: tuple[str, ...]) -> None:
    environment = os.environ | {
        "OPBOX_URL": server.url,
        "OPBOX_TOKEN": TOKENS["ann"],
        "SSL_CERT_FILE": str(CERTIFICATE),
    }
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    if words[0] == "-c":
        assert ended.stdout == "(2,) 300\n"


def test_connections_without_tls_yet_are_counted(tmp_path: Path) -> None:
    limits = {"OPBOX_MAX_CONNECTIONS": "16", "OPBOX_REQUEST_HEAD_S": "3600"}
    live = Live("none", tmp_path, OPBOX_SSL_CERTFILE=str(CERTIFICATE), OPBOX_SSL_KEYFILE=str(KEY), **limits)
    host, _, port = live.url.removeprefix("https://").rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=60) for _ in range(40)]
    for sock in silent[:-4]:  # a quarter of the limit may be silent
        assert sock.recv(1) == b""
    trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
    assert httpx.get(f"{live.url}/v2/health/live", verify=trusted).status_code == 200
    for sock in silent:
        sock.close()
    assert live.stop() == 0


def test_a_connection_that_speaks_no_tls_leaves_its_place() -> None:
    async def connect() -> tuple[int, bytes, int]:
        connections = Connections(Settings.model_construct(request_head_s=60.0))
        app = uvicorn.Config(lambda *_: None, ws="none", lifespan="off", log_config=None)
        app.load()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE, KEY)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            listener = TlsListener(
                lambda: HttpProtocol(app, uvicorn.server.ServerState(), {}, connections=connections),
                sock=sock,
                ssl=context,
                connections=connections,
            )
            trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
            _, right = await asyncio.open_connection(*sock.getsockname(), ssl=trusted)
            read, wrong = await asyncio.open_connection(*sock.getsockname())
            wrong.write(b"GET / HTTP/1.1\r\n\r\n")
            said = await read.read()
            wrong.close()
            counted = len(connections)
            right.transport.abort()
            while len(connections):
                await asyncio.sleep(0)
            listener.close()
            await listener.wait_closed()
        return counted, said, connections.lost

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        counted, said, lost = runner.run(connect())
    assert counted == 1
    assert not said.startswith(b"HTTP")
    assert lost == 2


def test_without_tls_there_is_no_answer(server: Live) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/v2/health/ready")


@pytest.mark.parametrize(
    ("certificate", "key", "sentence"),
    [
        ("none.pem", KEY, "ssl_certfile: expected a file that can be read, got "),
        (CERTIFICATE, "none.pem", "ssl_keyfile: expected a file that can be read, got "),
        ("", KEY, "ssl_certfile: expected the certificate of ssl_keyfile, got none: name its file"),
        (KEY, KEY, "ssl_certfile: expected a certificate in PEM form, got something else: "),
        (CERTIFICATE, CERTIFICATE, "ssl_keyfile: expected a private key in PEM form, got something else: "),
    ],
)
def test_files_that_do_not_do(tmp_path: Path, certificate: str | Path, key: str | Path, sentence: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")}
    words = [sys.executable, "-m", "opbox_service.serve", "--port", "0", "--isolation", "none"]
    words += ["--ssl-certfile", str(certificate)] if certificate else []
    words += ["--ssl-keyfile", str(key)]
    ended = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(f"opbox serve: {sentence}")


def test_a_changed_certificate_is_read_again(tmp_path: Path) -> None:
    certificate, key = shutil.copy(CERTIFICATE, tmp_path), shutil.copy(KEY, tmp_path)
    live = Live("none", tmp_path, OPBOX_SSL_CERTFILE=str(certificate), OPBOX_SSL_KEYFILE=str(key))
    os.utime(certificate, (1, 1))
    log = Path(live.log.name)
    while "certificate read again" not in log.read_text():
        assert live.process.poll() is None
    assert live.stop() == 0
