"""Batches go straight to a session's node where it is reached, and by the gateway where it is not, or no longer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox import connection, node_transport
from opbox.http import HttpTransport
from opbox.session import Session
from opbox.session_way import SessionWay
from opbox_service.cluster.gateway.exchange import GatewayExchange
from tests.client.test_recovery import Steps, lost, train
from tests.cluster.gateway_nodes import Box
from tests.contract.live import TOKENS
from tests.link.proxy import Exchange, Fault, LinkProxy

Tell = Callable[[str], None]


@pytest.fixture(autouse=True)
def undirected(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client's own settings, and its own engine afterwards."""
    monkeypatch.delenv("OPBOX_DIRECT", raising=False)
    yield
    connection.use(None)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    with Box(tmp_path_factory.mktemp("box")) as box:
        yield box


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    """A cluster of one node."""
    with Box(tmp_path_factory.mktemp("small"), "a") as box:
        yield box


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of requests with commands that gateways pass on."""
    paths: list[str] = []
    begin = GatewayExchange.begin

    def noted(exchange: GatewayExchange) -> None:
        if exchange.head.path.endswith("/commands"):
            paths.append(exchange.head.path)
        begin(exchange)

    monkeypatch.setattr(GatewayExchange, "begin", noted)
    return paths


@pytest.fixture
def tell(monkeypatch: pytest.MonkeyPatch) -> Tell:
    """Has a session's answer name another URL of the node."""
    begin = SessionWay.__init__

    def tell(url: str) -> None:
        monkeypatch.setattr(
            SessionWay, "__init__", lambda way, transport, answer: begin(way, transport, {**answer, "url": url})
        )

    return tell


def settled(box: Box) -> Session:
    """The session of a program that has begun, once its way is known."""
    mx.connect(box.url, token=TOKENS["ann"])
    session = mx.cpu().session
    assert session._way.settled.wait(60)
    return session


def two_steps() -> list[float]:
    x = mx.nd.ones((2,))
    x += 1
    x.wait_to_read()
    x += 1
    return x.asnumpy().tolist()


def test_batches_go_straight_to_the_node_and_all_else_by_the_gateway(box: Box, passed: list[str]) -> None:
    session = settled(box)
    assert session.address in {live.url for live in box.lives.values()}
    passed.clear()
    assert two_steps() == [3, 3]
    assert passed == []
    connection.disconnect()
    assert box.ann.get(f"/v1/sessions/{session.id}").status_code == 410  # the gateway has ended it


def test_a_program_does_not_wait_for_the_probe(box: Box, monkeypatch: pytest.MonkeyPatch, passed: list[str]) -> None:
    go, probe = threading.Event(), node_transport.node_transport

    def late(*arguments: Any) -> Any:
        assert go.wait(60)
        return probe(*arguments)

    monkeypatch.setattr(node_transport, "node_transport", late)
    mx.connect(box.url, token=TOKENS["ann"])
    x = mx.nd.ones((2,))
    assert x.asnumpy().tolist() == [1, 1]
    assert passed
    assert mx.cpu().session.address == box.url
    go.set()
    assert mx.cpu().session._way.settled.wait(60)
    passed.clear()
    assert (x + 1).asnumpy().tolist() == [2, 2]
    assert passed == []


def test_a_node_that_is_not_reached_is_called_by_the_gateway(box: Box, tell: Tell, passed: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    tell(url)
    session = settled(box)
    assert session.address == box.url
    assert two_steps() == [3, 3]
    assert passed


def test_the_setting_forbids_it(box: Box, monkeypatch: pytest.MonkeyPatch, passed: list[str]) -> None:
    monkeypatch.setenv("OPBOX_DIRECT", "0")
    assert settled(box).address == box.url
    assert two_steps() == [3, 3]
    assert passed


def test_a_wrong_setting_is_told_before_a_session_is_opened(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPBOX_DIRECT", "yes")
    mx.connect(box.url, token=TOKENS["ann"])
    count = sum(len(live.call("GET", "/v1/sessions").header["sessions"]) for live in box.lives.values())
    with pytest.raises(ValueError, match="OPBOX_DIRECT: expected 0 or 1, got 'yes'"):
        mx.nd.ones((2,))
    after = sum(len(live.call("GET", "/v1/sessions").header["sessions"]) for live in box.lives.values())
    assert after == count


# -- connections that break -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["request", "answer"])
def test_a_batch_whose_connection_breaks_runs_once(small: Box, tell: Tell, passed: list[str], where: Any) -> None:
    broken: list[int] = []

    def cut(exchange: Exchange) -> Fault | None:
        if exchange.is_batch and armed:
            broken.append(exchange.number)
            return Fault(where, "head", 0.5)
        return None

    armed: list[bool] = []
    with LinkProxy(("127.0.0.1", int(small.lives["a"].url.rpartition(":")[2])), fault=cut) as link:
        tell(link.url)
        session = settled(small)
        assert session.address == link.url
        x = mx.nd.ones((2,))
        x.wait_to_read()
        assert link.exchanges[-1].is_batch
        assert passed == []
        armed.append(True)
        x += 1
        assert x.asnumpy().tolist() == [2, 2]
        assert broken
        assert session.address == small.url
        count = len(link.exchanges)
        x += 1
        assert x.asnumpy().tolist() == [3, 3]
        assert len(link.exchanges) == count  # what is broken stays so
        connection.disconnect()


def test_a_training_goes_on_by_the_gateway_when_its_node_is_killed(tmp_path: Path) -> None:
    shared = {"OPBOX_STORE_URL": f"file://{tmp_path}/store", "OPBOX_STATE_DIR": "{node}/state"}
    with Box(tmp_path, **shared) as box:
        connection.use(HttpTransport(box.url, TOKENS["ann"], patience=60))
        opened = []

        def kill_its_node() -> None:
            mx.nd.waitall()
            session = mx.cpu().session
            assert session._way.settled.wait(60)
            (name,) = [name for name, live in box.lives.items() if live.url == session.address]
            opened.append(name)
            box.kill(name)
            box.change(lambda: box.controller.lost(name, 1.0))

        parameters, records = train(None, Steps({11: kill_its_node}))
        step, number = lost(records)
        assert (step, 1 <= number <= 4) == (8, True)
        session = mx.cpu().session
        assert session._way.settled.wait(60)
        (other,) = set(box.lives) - set(opened)
        assert session.address == box.lives[other].url
        expected, _ = train(None, None)
        for name, value in expected.items():
            np.testing.assert_array_equal(parameters[name], value, err_msg=name)
        connection.use(None)


# -- what a probe refuses ---------------------------------------------------------------------------------------


class _Stranger(BaseHTTPRequestHandler):
    """A server of something else, that answers everything."""

    tokens: list[str | None] = []
    body = b"{}"

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def test_a_stranger_at_the_node_s_address_gets_no_token(box: Box) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Stranger)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    through = HttpTransport(box.url, TOKENS["ann"])
    assert node_transport.node_transport(f"http://127.0.0.1:{server.server_port}", "a-" + "0" * 32, through) is None
    server.shutdown()
    server.server_close()
    assert _Stranger.tokens == [None]


def test_a_node_without_the_session_is_none(box: Box) -> None:
    opened = box.ann.post("/v1/sessions", json={}).json()
    through = HttpTransport(box.url, TOKENS["ann"])
    for name, live in box.lives.items():
        node = node_transport.node_transport(live.url, opened["id"], through)
        assert (node is not None) == (name == opened["node"])
    assert node_transport.node_transport(opened["url"], opened["id"], HttpTransport(box.url, TOKENS["bob"])) is None


def test_a_client_of_the_program_s_own_is_not_gone_around(box: Box) -> None:
    with httpx.Client(headers={"X-Team": "vision"}) as http:
        mx.connect(box.url, TOKENS["ann"], http=http)
        session = mx.cpu().session
        assert session._way.settled.wait(60)
        assert session.address == box.url
        assert two_steps() == [3, 3]
        connection.disconnect()


@pytest.mark.parametrize(
    ("gateway", "url"),
    [
        ("https://127.0.0.1:1", "{node}"),  # no token without TLS where it had TLS
        ("http://192.0.2.1:8000", "{node}"),  # the loopback of another machine
        ("http://127.0.0.1:1", "ftp://127.0.0.1:1"),
        ("http://127.0.0.1:1", "http://"),
        ("http://127.0.0.1:1", ""),
        ("http://127.0.0.1:1", "http://127.0.0.1:99999"),
        ("http://127.0.0.1:1", "http://[::1"),
    ],
)
def test_urls_that_are_not_followed(box: Box, gateway: str, url: str) -> None:
    opened = box.ann.post("/v1/sessions", json={}).json()
    through = HttpTransport(gateway, TOKENS["ann"])
    assert node_transport.node_transport(url.format(node=opened["url"]), opened["id"], through) is None
