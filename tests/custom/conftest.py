"""Operators run on both engines: classes handed over in this process, and their source sent to a live server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from opbox import connection
from opbox.http import HttpTransport
from tests.contract.live import TOKENS, Live


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for the whole run; sessions share its process, and must not see each other's code."""
    server = Live("none", tmp_path_factory.mktemp("custom"))
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="session")
def isolating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server as it is by default: a session that brings code has a process of its own."""
    server = Live("process", tmp_path_factory.mktemp("isolating"))
    yield server
    assert server.stop() == 0


@pytest.fixture
def http(live: Live, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """The server, as the owner who may upload Python."""
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(HttpTransport(live.url, TOKENS["py"]))
    yield live
    connection.use(None)


@pytest.fixture(params=["embedded", "http"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The engine in use: its own session, closed afterwards."""
    monkeypatch.delenv("OPBOX_URL", raising=False)
    transport: Any = None
    if request.param == "http":
        transport = HttpTransport(request.getfixturevalue("live").url, TOKENS["py"])
    connection.use(transport)
    yield request.param
    connection.use(None)
