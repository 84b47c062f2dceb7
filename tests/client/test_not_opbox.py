"""Answers that no opbox server has written: gateways, login pages and other servers, each a real one on a socket."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import aio, connection
from opbox.http import HttpTransport
from opbox_protocol import wire
from opbox_protocol.errors import LimitError, MXNetError, TransportError
from tests.contract.live import TOKENS, Live

HTML = "text/html; charset=utf-8"
NGINX = "<html>\r\n<head><title>{0}</title></head>\r\n<body><center><h1>{0}</h1></center></body></html>"


@dataclass
class Page:
    """An answer of a gateway's own."""

    status: int
    reason: str
    text: str = ""
    kind: str = HTML
    headers: dict[str, str] = field(default_factory=dict)


class Gateway:
    """Passes requests on to a server; as long as it has a page of its own, it answers with that instead."""

    def __init__(self, server: str = "") -> None:
        self.page: Page | None = None
        self.only = ""
        self.largest = 1 << 40
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                if length > gateway.largest:
                    self.close_connection = True
                    reason, closing = "Request Entity Too Large", {"Connection": "close"}
                    self.answer(Page(413, reason, NGINX.format(f"413 {reason}"), headers=closing))
                    self.rfile.read(length)  # as nginx does: what comes is read, and dropped
                    return
                body = self.rfile.read(length)
                if gateway.page is not None and gateway.only in self.path:
                    self.answer(gateway.page)
                    return
                behind = HTTPConnection(server)
                behind.request(self.command, self.path, body, dict(self.headers))
                answer = behind.getresponse()
                self.answer(
                    Page(
                        answer.status,
                        answer.reason,
                        answer.read().decode("latin-1"),
                        answer.getheader("Content-Type", ""),
                        {wire.HEADER_LENGTH: answer.getheader(wire.HEADER_LENGTH, "")},
                    )
                )
                behind.close()

            do_POST = do_DELETE = do_GET  # noqa: N815  # http.server's names

            def answer(self, page: Page) -> None:
                body = page.text.encode("latin-1")
                self.send_response(page.status, page.reason)
                for name, value in (("Content-Type", page.kind), *page.headers.items()):
                    if value:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def gateway(live: Live) -> Iterator[Gateway]:
    gateway = Gateway(live.url.removeprefix("http://"))
    connection.use(HttpTransport(gateway.url, TOKENS["ann"]))
    yield gateway
    gateway.page = None
    gateway.largest = 1 << 40
    connection.use(None)
    gateway.close()


def refused(gateway: Gateway, page: Page) -> MXNetError:
    """The error that opening a session behind the page ends in."""
    gateway.page = page
    with pytest.raises(MXNetError) as caught:
        mx.nd.ones((2,))
    error = caught.value
    assert "\n" not in str(error)
    assert str(error).startswith(f"{gateway.url}: POST /v1/sessions was answered {page.status} {page.reason}")
    assert error.status == page.status
    return error


@pytest.mark.parametrize(
    ("page", "says"),
    [
        (
            Page(302, "Found", "", headers={"Location": "https://login.test/?next=%2Fv1%2Fsessions"}),
            "this is a redirect to https://login.test/?next=%2Fv1%2Fsessions and not opbox: set OPBOX_URL to the",
        ),
        (
            Page(308, "Permanent Redirect", "", headers={"Location": "https://opbox.test/box/v1/sessions"}),
            "this is a redirect and not opbox: set OPBOX_URL to https://opbox.test/box",
        ),
        (
            Page(200, "OK", "<!doctype html><title>Sign in &amp; up</title><form>"),
            "(a page “Sign in & up”): this is not opbox, but another server or a login page: check the URL",
        ),
        (Page(200, "OK", "hello", "text/plain"), "(hello): this is not opbox"),
        (Page(200, "OK", '{"ok": true}', "application/json"), '({"ok": true}): this is not opbox'),
        (Page(200, "OK", "{", "application/json"), "({): this is not opbox"),
        (Page(200, "OK"), "200 OK: this is not opbox"),
        (
            Page(401, "Unauthorized", "no", "text/plain"),
            "(no): this is not opbox, but what stands in front of it and wants to know",
        ),
        (Page(403, "Forbidden", "<html>"), "(a page): this is not opbox, but what stands in front of it"),
        (Page(404, "Not Found", NGINX.format("404 Not Found")), "a gateway that does not pass this path on: check"),
        (Page(404, "Not Found", '{"detail":"Not Found"}', "application/json"), "(Not Found): this is not opbox, or"),
        (Page(501, "Unsupported method ('POST')", "<!DOCTYPE HTML>"), "(a page): this is not opbox, or"),
        (Page(429, "Too Many Requests"), "takes no more calls for now"),
        (Page(502, "Bad Gateway", NGINX.format("502 Bad Gateway")), "(a page “502 Bad Gateway”): a gateway in front"),
        (Page(503, "Service Unavailable"), "cannot reach it: see whether `opbox serve` runs"),
        (Page(504, "Gateway Time-out"), "did not wait for its answer, and the call may have run: raise its limit"),
    ],
    ids=lambda value: f"{value.status} {value.kind}" if isinstance(value, Page) else "",
)
def test_who_was_asked_what_and_what_to_do(gateway: Gateway, page: Page, says: str) -> None:
    error = refused(gateway, page)
    assert says in str(error)
    assert isinstance(error, TransportError)
    # The next call works as soon as the gateway lets it.
    gateway.page = None
    assert mx.nd.ones((2,)).asnumpy().tolist() == [1, 1]


@pytest.mark.parametrize("read", [mx.connection.server_info, mx.connection.refresh_operators, lambda: mx.nd.ones(3)])
def test_another_server_at_the_url(gateway: Gateway, read: Any) -> None:
    """As an inference server is: it has a /v2 of its own."""
    gateway.page = Page(200, "OK", '{"name": "triton", "version": "2.4", "extensions": []}', "application/json")
    with pytest.raises(TransportError, match=re.escape(gateway.url) + ".*this is not opbox"):
        read()


def test_a_login_page_amid_a_program(gateway: Gateway) -> None:
    x: Any = mx.nd.ones((2,))
    x.asnumpy()
    gateway.page, gateway.only = Page(200, "OK", "<title>Sign in</title>"), "/commands"
    with pytest.raises(TransportError, match=r"/commands was answered 200 OK \(a page “Sign in”\): this is not opbox"):
        (x + 1).asnumpy()


def test_a_json_answer_of_somebody_else_amid_a_program(gateway: Gateway) -> None:
    x: Any = mx.nd.ones((2,))
    x.asnumpy()
    gateway.page, gateway.only = Page(200, "OK", "{}", "application/json"), "/commands"
    with pytest.raises(TransportError, match=r"/commands was answered 200 OK \({}\): this is not opbox"):
        (x + 1).asnumpy()


def test_a_session_goes_on_behind_a_gateway_that_took_nothing_for_a_while(gateway: Gateway) -> None:
    """Not even the empty batches in the places of those that it refused, for which the server waits."""
    x: Any = mx.nd.ones((2,))
    x.asnumpy()
    gateway.page, gateway.only = Page(413, "Request Entity Too Large"), "/commands"
    for _ in range(3):
        with pytest.raises(LimitError, match="was answered 413 Request Entity Too Large"):
            (x + 1).asnumpy()
    gateway.page = None
    assert (x + 2).asnumpy().tolist() == [3, 3]


def test_a_session_of_asyncio_goes_on_behind_it_too(gateway: Gateway) -> None:
    async def work() -> None:
        async with aio.connect(gateway.url, TOKENS["ann"]) as server, server.session() as session:
            x = session.put(np.ones(2, np.float32))
            await session.wait()
            gateway.page, gateway.only = Page(413, "Request Entity Too Large"), "/commands"
            for _ in range(3):
                with pytest.raises(LimitError, match="was answered 413 Request Entity Too Large"):
                    await session.fetch(x)
            gateway.page = None
            assert (await session.fetch(x)).tolist() == [1, 1]

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_gateway_that_takes_no_part_of_a_body(gateway: Gateway) -> None:
    """Larger ones let the parts of a body through (tests/link/test_nginx.py)."""
    gateway.largest = 14_000
    x = mx.nd.ones((2,))
    x.asnumpy()
    with pytest.raises(LimitError) as caught:
        mx.nd.array(np.zeros(1 << 20, np.float32)).asnumpy()
    assert re.search(
        r"/commands was answered 413 Request Entity Too Large \(a page “413 Request Entity Too Large”\): a gateway in "
        r"front of the server takes no request of 15000 bytes: raise its limit \(client_max_body_size in nginx\), ",
        str(caught.value),
    )
    # What was there before is there, and the next call works.
    assert x.asnumpy().tolist() == [1, 1]
    assert mx.nd.array(np.ones(1 << 10, np.float32)).asnumpy().sum() == 1 << 10
