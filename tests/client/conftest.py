"""The client on both engines: embedded in the test's process, and a live server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opbox import connection
from opbox.http import HttpTransport
from tests.contract.live import TOKENS, Live


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server for the whole run."""
    server = Live("none", tmp_path_factory.mktemp("client"), OPBOX_ALLOWED_HOSTS='["opbox.test"]')
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["embedded", "http"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The engine in use: its own session, closed afterwards."""
    monkeypatch.delenv("OPBOX_URL", raising=False)
    transport: Any = None
    if request.param == "http":
        transport = HttpTransport(request.getfixturevalue("live").url, TOKENS["ann"])
    connection.use(transport)
    yield request.param
    connection.use(None)


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The embedded engine alone, for tests of what does not depend on the transport."""
    monkeypatch.delenv("OPBOX_URL", raising=False)
    connection.use(None)
    yield
    connection.use(None)


@pytest.fixture(params=["embedded", "http"])
def program_environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """The environment of a program of its own that uses the engine."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("OPBOX_")}
    if request.param == "http":
        live: Live = request.getfixturevalue("live")
        env |= {"OPBOX_URL": live.url, "OPBOX_TOKEN": TOKENS["ann"]}
    return env


@pytest.fixture
def live_sessions(program_environment: dict[str, str], request: pytest.FixtureRequest) -> Callable[[], list[Any]]:
    """Return the sessions that are left on the server: none where there is no server."""
    if "OPBOX_URL" not in program_environment:
        return list
    live: Live = request.getfixturevalue("live")
    return lambda: list(live.json("GET", "/v1/sessions").header["sessions"])
