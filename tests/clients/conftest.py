"""A server, and its OpenAPI document as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.live import Live


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live("none", tmp_path_factory.mktemp("server"))
    yield live
    assert live.stop() == 0


@pytest.fixture(scope="module")
def document(server: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_text(json.dumps(server.json("GET", "/openapi.json").header), encoding="utf-8")
    return path
