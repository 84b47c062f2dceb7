"""A server is ready when its models are: a balancer sends it no request that it would refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import opbox as mx
from tests.contract.live import Live, symbol, var
from tests.models.conftest import address_of, index, wait_until
from tests.models.folders import perceptron, save
from tests.models.grpc_client import calls
from tests.models.test_tritons_forms import infer

GATE_OPS = Path(__file__).with_name("gate_ops.py")
LOADING = "the server is loading its models: try again in a moment"


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file for which the model "slow" waits while it is loaded."""
    return tmp_path / "gate"


def start(tmp_path: Path, gate: Path, *options: str) -> Live:
    models = tmp_path / "models"
    save(models / "rows", *perceptron())
    slow = models / "slow"
    slow.mkdir()
    net = symbol(var("data"), ("_test_gate", "gate", {"path": str(gate)}, [0]))
    (slow / "net-symbol.json").write_text(json.dumps(net))
    mx.nd.save(str(slow / "net-0001.params"), {})
    (slow / "model.toml").write_text("[inputs.data]\nshape = [1]\n[[warmup]]\n")
    settings = {"OPBOX_MODELS": str(models), "OPBOX_OPS": json.dumps([str(GATE_OPS)]), "OPBOX_GRPC_PORT": "0"}
    return Live("process", tmp_path, options=("--port", "0", *options), **settings)


@pytest.fixture
def server(tmp_path: Path, gate: Path) -> Iterator[Live]:
    live = start(tmp_path, gate)
    yield live
    gate.touch()
    live.stop()


def ready(server: Live) -> httpx.Response:
    return httpx.get(f"{server.url}/v2/health/ready")


def test_it_is_ready_when_its_models_are(server: Live, gate: Path) -> None:
    with calls(address_of(server)) as call:
        wait_until(lambda: index(server)["rows", "1"][0] == "READY")  # beside the one that takes its time
        answer = ready(server)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert LOADING in answer.json()["error"]
        assert not call("ServerReady", owner=None).ready
        assert index(server)["slow", "1"] == ("LOADING", "")
        assert infer(server).status_code == 200
        for path in ("", "/config", "/ready"):
            waiting = server.clients["ann"].get(f"/v2/models/slow{path}")
            assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "1")
            assert waiting.json()["error"] == "model 'slow': it is being loaded: try again in a moment"
        assert server.clients["ann"].get("/v2/models/nothing").json()["error"] == f"model 'nothing': {LOADING}"
        assert not call("ModelReady", {"name": "slow"}).ready
        gate.touch()
        wait_until(lambda: ready(server).status_code == 200)
        assert index(server)["slow", "1"] == ("READY", "")
        assert call("ServerReady", owner=None).ready
        assert call("ModelReady", {"name": "slow"}).ready
        assert server.clients["ann"].get("/v2/models/nothing").status_code == 404


def test_a_server_may_be_ready_before_its_models(tmp_path: Path, gate: Path) -> None:
    live = start(tmp_path, gate, "--no-strict-readiness")
    try:
        assert ready(live).status_code == 200
        wait_until(lambda: index(live)["slow", "1"][0] == "LOADING")
        assert live.clients["ann"].get("/v2/models/slow").status_code == 503
    finally:
        gate.touch()
        live.stop()


def test_a_model_that_cannot_be_loaded_keeps_no_server_waiting(tmp_path: Path, gate: Path) -> None:
    gate.touch()
    (tmp_path / "models" / "broken").mkdir(parents=True)
    live = start(tmp_path, gate)
    try:
        wait_until(lambda: ready(live).status_code == 200)
        rows: dict[Any, Any] = index(live)
        assert rows["broken", "1"][0] == "UNAVAILABLE"
        assert rows["rows", "1"][0] == rows["slow", "1"][0] == "READY"
    finally:
        live.stop()
