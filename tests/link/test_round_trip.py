"""What a session does on a long link: more requests in flight, and the figures that it tells."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opbox import connection
from opbox.cli import main
from opbox.http import HttpTransport
from opbox.session import Session
from opbox_service.embedded import EmbeddedTransport
from tests.contract.live import TOKENS, Live
from tests.link.proxy import Link, LinkProxy

ROUND_TRIP_S = 0.02
STEPS = 200
"""More than any growth takes."""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    server = Live("none", tmp_path_factory.mktemp("round-trip"))
    yield server
    assert server.stop() == 0


@pytest.fixture
def proxy(live: Live) -> Iterator[LinkProxy]:
    host, port = live.url.removeprefix("http://").split(":")
    with LinkProxy((host, int(port)), Link(ROUND_TRIP_S)) as proxy:
        yield proxy


def step(session: Session) -> None:
    session.record({"do": "seed", "seed": 1})
    session.flush()


def step_with_a_value(session: Session) -> None:
    """A step as a metric makes it: its value is read later."""
    id = session.new_id()
    session.record({"do": "zeros", "ids": [id], "shape": [2], "dtype": "float32"})
    session.fetch(id)
    session.free(id)
    session.flush()


@pytest.mark.parametrize("step", [step, step_with_a_value])
def test_more_requests_travel_at_a_time_where_the_round_trip_is_long(
    proxy: LinkProxy, step: Callable[[Session], None]
) -> None:
    transport = HttpTransport(proxy.url, TOKENS["ann"])
    session = Session(transport, "cpu")
    for _ in range(STEPS):
        step(session)
        if len(session._senders) > 4:
            break
    assert len(session._senders) > 4
    session.wait()
    stats = session.stats
    assert stats["requests"] == session.requests
    assert proxy.up > stats["bytes_up"] > 0
    assert proxy.down > stats["bytes_down"] > 0
    assert stats["link_seconds"] > ROUND_TRIP_S
    assert 0 < stats["link_share"] <= 1
    session.close()
    transport.close()


def test_an_engine_in_this_process_has_no_link() -> None:
    transport = EmbeddedTransport()
    session = Session(transport, "cpu")
    for _ in range(STEPS):
        step(session)
    session.wait()
    assert len(session._senders) == transport.connections
    assert session.stats | {"requests": 0} == dict.fromkeys(session.stats, 0)
    session.close()
    transport.close()


def doctor(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["doctor", *words]) == 0
    return capsys.readouterr().out


def test_doctor(proxy: LinkProxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OPBOX_URL", proxy.url)
    monkeypatch.setenv("OPBOX_TOKEN", TOKENS["ann"])
    figures: dict[str, Any] = json.loads(doctor(capsys, "--json"))
    assert figures["address"] == proxy.url
    assert figures["round_trip_s"] >= ROUND_TRIP_S
    assert (figures["tls"], figures["proxy"], figures["http"]) == (None, None, "HTTP/1.1")
    text = doctor(capsys)
    assert f"at {proxy.url}: HTTP/1.1, no TLS, no proxy\nround trip " in text
    assert "A step whose values you read" in text


def test_doctor_without_a_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("OPBOX_URL", raising=False)
    assert main(["doctor"]) == 1
    assert "doctor: expected a server's address in OPBOX_URL, got none" in capsys.readouterr().err
    connection.use(None)
