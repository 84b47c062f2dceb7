"""A server, and its OpenAPI document as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.live import Live
from tests.models.conftest import INPUT
from tests.models.folders import perceptron, save


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    models = tmp_path_factory.mktemp("models")
    save(models / "plain", *perceptron(), toml=INPUT)
    save(models / "batched", *perceptron(), toml="max_batch = 8\n" + INPUT)
    settings = {"OPBOX_MODELS": str(models), "OPBOX_SHARED_MEMORY": "own", "OPBOX_GRPC_PORT": "0"}
    live = Live("none", tmp_path_factory.mktemp("server"), **settings)
    for name in ("plain", "batched"):
        assert live.clients["boss"].post(f"/v2/repository/models/{name}/load").status_code == 200
    yield live
    assert live.stop() == 0


@pytest.fixture(scope="module")
def document(server: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_text(json.dumps(server.json("GET", "/openapi.json").header), encoding="utf-8")
    return path
