"""A program that brings an httpx client of its own: hooks, proxies, certificates, a MockTransport; and its errors."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox import connection
from opbox.http import HttpTransport
from opbox_protocol.errors import MXNetError, TransportError
from tests.client.test_proxies import TLS, SmallProxy, _copy
from tests.contract.live import TOKENS, Live

ABOUT = {"name": "opbox", "version": "mock"}


@pytest.fixture(autouse=True)
def _disconnected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    yield
    connection.use(None)


def sums(size: int) -> bytes:
    x = np.random.default_rng(0).random((size,), np.float32)
    return bytes((mx.nd.array(x) + 1).asnumpy().tobytes())


@pytest.mark.parametrize("size", [3, 1 << 20], ids=["small", "large"])
def test_the_client_s_hooks_see_every_request(live: Live, size: int) -> None:
    seen: list[str] = []
    with httpx.Client(event_hooks={"request": [lambda request: seen.append(request.url.path)]}) as client:
        mx.connect(live.url, TOKENS["ann"], http=client)
        values = sums(size)
        mx.disconnect()
        assert not client.is_closed
    mx.connect(live.url, TOKENS["ann"])
    assert sums(size) == values
    assert seen[0] == "/v1/sessions"
    assert any(path.endswith("/commands") for path in seen)


def mock(answer: Callable[[httpx.Request], httpx.Response], **options: Any) -> HttpTransport:
    """A transport whose requests this function answers."""
    client = httpx.Client(transport=httpx.MockTransport(answer))
    return HttpTransport("http://gpu-box:8000", "t", http=client, **options)


def test_a_mock_transport_answers_in_a_user_s_tests() -> None:
    with httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=ABOUT))) as client:
        mx.connect("gpu-box:8000", http=client)
        assert connection.server_info() == ABOUT


def test_a_call_that_broke_is_made_again_under_its_number() -> None:
    numbers: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        numbers.append(request.headers["Opbox-Call"])
        if len(numbers) < 3:
            raise httpx.ReadError("cut", request=request)
        return httpx.Response(201, json={"id": "one"})

    assert mock(answer).call("POST", "/v1/sessions", {}).header["id"] == "one"
    assert len(numbers) == 3
    assert len(set(numbers)) == 1


def test_a_body_is_read_again_for_a_redirect() -> None:
    bodies: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(request.read())
        moved = httpx.Response(307, headers={"Location": "/moved"})
        return moved if request.url.path != "/moved" else httpx.Response(201, json={"id": "one"})

    client = httpx.Client(transport=httpx.MockTransport(answer), follow_redirects=True)
    transport = HttpTransport("http://gpu-box", "t", http=client)
    for size in (10, 100_000):
        transport.call("POST", "/v1/sessions", {}, {"x": np.ones(size, np.float32)})
    assert bodies[0] == bodies[1]
    assert bodies[2] == bodies[3]


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (httpx.ReadTimeout("slow"), "no answer within 5 s; OPBOX_TIMEOUT sets how long to wait"),
        (httpx.ProxyError("407 Who are you"), r"not reached through its proxy: ProxyError\('407 Who are you'\)"),
        (httpx.ConnectError("no route"), r"the server could not be reached: ConnectError\('no route'\)"),
        (httpx.RemoteProtocolError("gone"), "closed the connection without an answer in HTTP"),
    ],
)
def test_errors_of_httpx(error: Exception, sentence: str) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise error

    with pytest.raises(TransportError, match=f"^http://gpu-box:8000: .*{sentence}"):
        mock(answer, timeout=5, patience=0).call("GET", "/v2")


def test_an_answer_that_is_cut_short() -> None:
    class Short(httpx.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield b"{"

    headers = {"Content-Length": "100", "Content-Type": "application/json"}
    transport = mock(lambda request: httpx.Response(200, headers=headers, stream=Short()), patience=0)
    with pytest.raises(TransportError, match="the answer to GET /v2 was broken off"):
        transport.call("GET", "/v2")


def test_nothing_listens(live: Live) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with httpx.Client() as client:
        transport = HttpTransport(f"http://127.0.0.1:{port}", http=client)
        with pytest.raises(TransportError, match="nothing listens there; start a server with `opbox serve`"):
            transport.call("GET", "/v2")


def test_clients_that_are_none() -> None:
    with pytest.raises(
        TypeError, match=r"^http: expected an httpx\.Client, got AsyncClient; opbox\.aio takes an Async"
    ):
        mx.connect("gpu-box", http=httpx.AsyncClient())  # type: ignore[arg-type]  # the error that is tested
    with pytest.raises(TypeError, match=r"^http: expected an httpx\.Client, got str$"):
        mx.connect("gpu-box", http="requests")  # type: ignore[arg-type]  # the error that is tested
    client = httpx.Client()
    client.close()
    with pytest.raises(TransportError, match=r"the httpx\.Client was closed; connect again, with an open one"):
        HttpTransport("gpu-box", http=client).call("GET", "/v2")


def test_a_forked_child_needs_a_client_of_its_own() -> None:
    transport = mock(lambda request: httpx.Response(200, json=ABOUT))
    assert transport.call("GET", "/v2").header == ABOUT
    transport.become_childs()  # what happens in the child
    with pytest.raises(MXNetError, match=r"^http: expected an httpx\.Client of this process"):
        transport.call("GET", "/v2")


def test_a_proxy_of_the_client_s(live: Live) -> None:
    host, port = live.url.removeprefix("http://").split(":")
    proxy = SmallProxy((host, int(port)))
    with httpx.Client(proxy=f"http://ann:secret@127.0.0.1:{proxy.port}") as client:
        mx.connect("http://opbox.test:8000", TOKENS["ann"], http=client)
        assert len(sums(50_000)) == 200_000
        mx.disconnect()
    proxy.close()
    assert proxy.lines[0] == "POST http://opbox.test:8000/v1/sessions HTTP/1.1"


@pytest.fixture
def secured(live: Live) -> Iterator[int]:
    """The port of a server that speaks TLS, and wants a certificate of its client's."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(TLS / "certificate.pem"))
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    host, port = live.url.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with (
            suppress(OSError),
            context.wrap_socket(client, server_side=True) as sock,
            socket.create_connection((host, int(port))) as server,
        ):
            threading.Thread(target=_copy, args=[server, sock], daemon=True).start()
            _copy(sock, server)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=[listener.accept()[0]], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    listener.close()


def trusting(*, certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(TLS / "certificate.pem"))
    if certificate:
        context.load_cert_chain(Path(TLS / "certificate.pem"), TLS / "key.pem")
    return context


def test_client_certificates_through_a_tunnel(secured: int) -> None:
    proxy = SmallProxy(("127.0.0.1", secured))
    with httpx.Client(verify=trusting(certificate=True), proxy=f"http://127.0.0.1:{proxy.port}") as client:
        mx.connect("https://opbox.test", TOKENS["ann"], http=client)
        assert len(sums(50_000)) == 200_000
        mx.disconnect()
    assert proxy.lines[0] == "CONNECT opbox.test:443 HTTP/1.1"
    with httpx.Client(verify=trusting(certificate=False), proxy=f"http://127.0.0.1:{proxy.port}") as client:
        transport = HttpTransport("https://opbox.test", TOKENS["ann"], http=client, patience=0)
        with pytest.raises(TransportError, match=r"^https://opbox\.test: "):
            transport.call("GET", "/v2")
    proxy.close()
