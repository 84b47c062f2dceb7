"""HTTP through a proxy: a small real one, which knows the server under a name that nothing else resolves."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox.http import HttpTransport
from opbox.proxies import Proxy, proxy_for
from opbox_protocol.errors import MXNetError, TransportError
from tests.contract.live import TOKENS, Live

TLS = Path(__file__).parent / "tls"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n" + b'{"name":"opbox"}'


def _head(sock: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            return b""
        head += byte
    return head


def _exactly(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(size)
        assert part
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {key.lower(): value for key, _, value in (line.partition(": ") for line in lines if line)}


class SmallProxy:
    """Forwards to `target` whatever it is asked for; notes the first lines and who authenticated how."""

    def __init__(self, target: tuple[str, int], status: str = "200 Connection established") -> None:
        self.lines: list[str] = []
        self.authorizations: list[str | None] = []
        self._target, self._status = target, status
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._serve, args=[client], daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._target) as server:
            while head := _head(client):
                self.lines.append(head.split(b"\r\n")[0].decode())
                self.authorizations.append(_fields(head).get("proxy-authorization"))
                if head.startswith(b"CONNECT"):
                    client.sendall(f"HTTP/1.1 {self._status}\r\n\r\n".encode())
                    threading.Thread(target=_copy, args=[client, server], daemon=True).start()
                    _copy(server, client)
                    return
                method, url, version = head.split(b"\r\n")[0].split(b" ")
                path = b"/" + url.split(b"/", 3)[3]
                body = _exactly(client, int(_fields(head).get("content-length", 0)))
                server.sendall(b" ".join([method, path, version]) + head[head.index(b"\r\n") :] + body)
                head = _head(server)
                client.sendall(head + _exactly(server, int(_fields(head).get("content-length", 0))))

    def close(self) -> None:
        self._listener.close()


def _copy(source: socket.socket, to: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            to.sendall(data)
    except OSError:
        pass


@pytest.fixture
def proxy(live: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallProxy]:
    host, port = live.url.removeprefix("http://").split(":")
    proxy = SmallProxy((host, int(port)))
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTP_PROXY", f"http://ann:s%20cret@127.0.0.1:{proxy.port}")
    yield proxy
    proxy.close()


def test_a_server_behind_a_proxy(proxy: SmallProxy, live: Live) -> None:
    mx.connect("http://opbox.test:8000", TOKENS["ann"])
    x = np.random.default_rng(0).random((300, 300), np.float32)
    np.testing.assert_array_equal((mx.nd.array(x) + 1).asnumpy(), x + 1)
    mx.disconnect()
    assert proxy.lines[0] == "POST http://opbox.test:8000/v1/sessions HTTP/1.1"
    assert set(proxy.authorizations) == {"Basic YW5uOnMgY3JldA=="}


def test_this_machine_and_hosts_of_no_proxy_are_reached_directly(
    proxy: SmallProxy, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = HttpTransport(live.url, TOKENS["ann"])
    assert transport.call("GET", "/v2").header["name"] == "opbox"
    transport.close()
    assert proxy.lines == []
    monkeypatch.setenv("NO_PROXY", "example.org,.opbox.test")
    assert proxy_for("http", "gpu.opbox.test", 8000) is None
    assert proxy_for("http", "gpu.opbox.example", 8000) is not None
    assert proxy_for("http", "localhost", 8000) is proxy_for("http", "::1", 8000) is None


@pytest.fixture
def secure(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server with a certificate for opbox.test, which answers every request alike."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock = listener.accept()[0]
            except OSError:
                return
            with suppress(OSError), context.wrap_socket(sock, server_side=True) as secured:  # a client may refuse it
                while _head(secured):
                    secured.sendall(ANSWER)

    threading.Thread(target=serve, daemon=True).start()
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "certificate.pem"))
    yield listener.getsockname()[1]
    listener.close()


def test_tls_goes_through_a_tunnel(secure: int, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = SmallProxy(("127.0.0.1", secure))
    monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy.port}")
    transport = HttpTransport("https://opbox.test", "t")
    for _ in range(2):
        assert transport.call("GET", "/v2").header["name"] == "opbox"
    transport.close()
    assert proxy.lines == ["CONNECT opbox.test:443 HTTP/1.1"]
    proxy.close()


def test_a_certificate_that_is_not_trusted_says_where_an_authority_is_named(
    secure: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(TransportError, match=r"its certificate is not trusted \(.+\): SSL_CERT_FILE names the file of"):
        HttpTransport(f"https://127.0.0.1:{secure}", "t").call("GET", "/v2")


def test_a_server_without_tls_is_asked_for_by_http(live: Live) -> None:
    address = live.url.replace("http://", "https://")
    with pytest.raises(TransportError, match=r"does not speak TLS as expected \(.+\): is its URL http://\?$"):
        HttpTransport(address, "t").call("GET", "/v2")


def test_a_server_with_tls_is_asked_for_by_https(secure: int) -> None:
    with pytest.raises(
        TransportError, match=r"without an answer in HTTP: if it speaks TLS, its URL begins with https://$"
    ):
        HttpTransport(f"http://127.0.0.1:{secure}", "t").call("GET", "/v2")


@pytest.mark.parametrize(
    "page",
    [
        "<html><head><title>400 The plain HTTP request was sent to HTTPS port</title></head></html>",
        "Client sent an HTTP request to an HTTPS server.",
        "<p>Reason: You're speaking plain HTTP to an SSL-enabled server port.</p>",
    ],
)
def test_a_proxy_with_tls_says_so_in_a_page_of_its_own(page: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener.accept()[0] as sock:
            _head(sock)
            head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n\r\n"
            sock.sendall((head + page).encode())

    threading.Thread(target=serve, daemon=True).start()
    transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", "t")
    with pytest.raises(TransportError, match=r"what listens there speaks TLS: its URL begins with https://$"):
        transport.call("GET", "/v2")
    transport.close()
    listener.close()


def test_a_host_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unknown)
    with pytest.raises(TransportError, match=r"the host's name is not known here \(Name or service not known\)$"):
        HttpTransport("http://nosuch.opbox.test", "t").call("GET", "/v2")


def test_a_proxy_that_refuses(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = SmallProxy(("127.0.0.1", int(live.url.rpartition(":")[2])), "407 Proxy Authentication Required")
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
    with pytest.raises(TransportError, match=r"expected its proxy 127\.0\.0\.1:\d+ to open a connection, got '.* 407 "):
        HttpTransport("https://opbox.test", "t").call("GET", "/v2")
    proxy.close()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with pytest.raises(TransportError, match=r"not reached through the proxy 127\.0\.0\.1:9: .*; NO_PROXY names"):
        HttpTransport("http://opbox.test", "t").call("GET", "/v2")


@pytest.mark.parametrize("url", ["socks5://proxy:1080", "https://proxy", "http://proxy:port", "http://"])
def test_a_proxy_of_another_kind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", url)
    with pytest.raises(MXNetError, match="HTTP_PROXY: expected an address like http://proxy:3128"):
        HttpTransport("http://opbox.test")


def test_any_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("HTTP_PROXY", raising=False)
    monkeypatch.setenv("all_proxy", "proxy:3128")
    assert proxy_for("http", "opbox.test", 80) == Proxy("proxy", 3128)
