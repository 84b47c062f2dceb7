"""Where a server is and the token for it: addresses without a scheme, and tokens that change with the server."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import opbox as mx
from opbox import address, connection, token_store
from opbox.http import HttpTransport
from opbox_protocol.errors import AuthenticationError, MXNetError


class Server(ThreadingHTTPServer):
    """Answers /v2 to whoever has its token."""

    token = "the-first-token"
    asked = 0


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.asked += 1
        right = self.headers["Authorization"] == f"Bearer {self.server.token}"
        status, answer = (
            (200, {"name": "opbox", "version": "stub"})
            if right
            else (401, {"error": "no", "type": "AuthenticationError"})
        )
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def place(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """ "127.0.0.1:port", with the server's token where clients of this machine look."""
    monkeypatch.setenv("OPBOX_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("OPBOX_TOKEN", raising=False)
    place = f"127.0.0.1:{server.server_port}"
    token_store.write(place, server.token)
    yield place
    mx.disconnect()


@pytest.mark.parametrize("scheme", ["", "http://", "//"])
def test_an_address_may_lack_its_scheme(place: str, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_URL", scheme + place)
    mx.disconnect()
    assert connection.server_info() == {"name": "opbox", "version": "stub"}
    assert connection.transport().address == f"http://{place}"  # type: ignore[attr-defined]  # it is of HTTP
    mx.connect(scheme + place)
    assert connection.server_info() == {"name": "opbox", "version": "stub"}
    token_store.remove(scheme + place)
    assert token_store.read(place) is None


@pytest.mark.parametrize("wrong", ["ftp://box", "http://", "http://box:port", "box:99999", "http://[::1"])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(MXNetError, match=r"OPBOX_URL: expected an address like http://127\.0\.0\.1:8000, got "):
        address.split(wrong)
    with pytest.raises(MXNetError, match="OPBOX_URL"):
        HttpTransport(wrong)


def test_a_stored_token_is_read_again_when_it_is_refused(place: str, server: Server) -> None:
    mx.connect(place)
    assert connection.server_info() == {"name": "opbox", "version": "stub"}
    server.token = "the-second-token"  # as after a restart
    token_store.write(place, server.token)
    asked = server.asked
    assert connection.server_info() == {"name": "opbox", "version": "stub"}
    assert server.asked == asked + 2
    assert connection.server_info() == {"name": "opbox", "version": "stub"}
    assert server.asked == asked + 3


def test_a_token_that_is_refused_and_has_not_changed_is_told(place: str, server: Server) -> None:
    mx.connect(place)
    server.token = "the-second-token"
    with pytest.raises(AuthenticationError):
        connection.server_info()
    token_store.remove(place)
    with pytest.raises(AuthenticationError):
        connection.server_info()


def test_a_token_of_the_user_s_own_is_not_replaced(place: str, server: Server) -> None:
    mx.connect(place, token="another-token")
    with pytest.raises(AuthenticationError):
        connection.server_info()
    assert server.asked == 1
    assert os.environ.get("OPBOX_TOKEN") is None
