"""Calls that a server refuses for a moment: they are made again, and a DELETE is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from opbox.http import HttpTransport
from opbox_protocol.errors import NotReadyError, TransportError

REFUSALS = 2


class Server(ThreadingHTTPServer):
    """Refuses the first calls, as a server that stops or starts does, and notes what was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.numbers: list[str | None] = []
        self.detail: dict[str, str] = {}


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked.append(self.command)
        self.server.numbers.append(self.headers["Opbox-Call"])
        refused = len(self.server.asked) <= REFUSALS
        refusal = {"error": "in a moment", "type": "NotReadyError", "detail": self.server.detail}
        answer = refusal if refused else {"name": "opbox", "version": "stub"}
        body = json.dumps(answer).encode()
        self.send_response(503 if refused else 200)
        if refused:
            self.send_header("Retry-After", "0")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def transport(server: Server) -> Iterator[HttpTransport]:
    opened = HttpTransport(f"http://127.0.0.1:{server.server_port}", "t", patience=60)
    yield opened
    opened.close()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
def test_a_call_is_made_again_until_the_server_takes_it(method: str, server: Server, transport: HttpTransport) -> None:
    assert transport.call(method, "/v2").header["version"] == "stub"
    assert server.asked == [method] * (REFUSALS + 1)


def test_a_delete_is_made_once(server: Server, transport: HttpTransport) -> None:
    """What it ends is gone with the server."""
    with pytest.raises(NotReadyError, match="in a moment"):
        transport.call("DELETE", "/v1/sessions/0")
    assert server.asked == ["DELETE"]


def test_without_patience_no_call_is_made_again(server: Server) -> None:
    transport = HttpTransport(f"http://127.0.0.1:{server.server_port}", "t", patience=-1)
    with pytest.raises(NotReadyError):
        transport.call("GET", "/v2")
    assert server.asked == ["GET"]
    transport.close()


@pytest.mark.parametrize(("detail", "count"), [({}, 3), ({"unreached": "a"}, 1)])
def test_a_refusal_takes_a_call_s_number_unless_it_is_not_the_node_s(
    server: Server, transport: HttpTransport, detail: dict[str, str], count: int
) -> None:
    """A server keeps its refusal as the answer to the number; behind a gateway the node may still have run the call."""
    server.detail = detail
    with pytest.raises(TransportError, match="this is not opbox"):  # what takes the call in the end is this stub
        transport.call("POST", "/v1/sessions/0/commands", {})
    assert len(set(server.numbers)) == count
    assert None not in server.numbers
