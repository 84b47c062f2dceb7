"""Live servers, one for each isolation, shared by all tests of a run; and servers of a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.contract.live import Live
from tests.models.folders import perceptron, save


@pytest.fixture(scope="session", params=["none", "process"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server, first with threads, then with worker processes."""
    models = tmp_path_factory.mktemp("models")
    save(models / "plain", *perceptron())
    live = Live(request.param, tmp_path_factory.mktemp("server"), OPBOX_MODELS=str(models))
    yield live
    assert live.stop() == 0


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Live]]:
    """Start a server of the test's own: start("process", OPBOX_DEADLINE_S="1")."""
    servers: list[Live] = []

    def begin(isolation: str, **settings: str) -> Live:
        servers.append(Live(isolation, tmp_path_factory.mktemp("own"), **settings))
        return servers[-1]

    yield begin
    for live in servers:
        live.stop()
