"""Warm-up: a version is ready when its plans are compiled, and is not served if it cannot run what its file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.errors import MXNetError
from opbox_service.models.loaded_model import LoadedModel
from opbox_service.models.model_config import ModelConfig
from opbox_service.models.model_files import find_files, read_files
from opbox_service.models.model_signature import ServedTensor
from opbox_service.models.warmup import Warmup, warmup_tensors
from opbox_service.quota import Budget
from tests.contract.live import Live
from tests.models.conftest import INPUT, index
from tests.models.folders import FEATURES, perceptron, save

DATA = ServedTensor("data", "FP32", (-1, FEATURES))
IDS = ServedTensor("ids", "INT32", (-1,))


def load(folder: Path, **fields: Any) -> LoadedModel:
    """The perceptron, warmed up as a worker does it."""
    save(folder, *perceptron())
    network = read_files(find_files(folder), max_nodes=1000, max_edges=1000)
    config = ModelConfig.model_validate({"inputs": {"data": {"shape": [-1, FEATURES]}}, **fields})
    model = LoadedModel("m", network, config, backend_for("cpu"), Budget(1 << 30), "cpu")
    model.warm_up(config)
    return model


def sizes(model: LoadedModel) -> list[int]:
    """The numbers of examples that it has plans for."""
    return sorted(plan.key[1][0] for plan in model._plans._idle["outputs"])


@pytest.mark.parametrize(
    ("fields", "ready"),
    [
        ({}, []),
        ({"max_batch": 8}, [1, 2, 4, 8]),
        ({"max_batch": 12, "batch_sizes": [3]}, [3, 12]),
        ({"max_batch": 4, "inputs": {"data": {"shape": [-1, -1, -1]}}}, []),
        ({"warmup": [{}]}, [1]),
        ({"warmup": [{"inputs": {"data": {"shape": [5, FEATURES], "data": "random"}}, "count": 2}]}, [5]),
        ({"max_batch": 4, "warmup": [{"inputs": {"data": {"shape": [3, FEATURES]}}}]}, [1, 2, 4]),
        ({"max_batch": 4, "warmup": [{"inputs": {"data": {"shape": [9, FEATURES]}}}]}, [1, 2, 4, 9]),
    ],
)
def test_plans_are_there_before_the_first_request(tmp_path: Path, fields: dict[str, Any], ready: list[int]) -> None:
    model = load(tmp_path / "m", **fields)
    assert sizes(model) == ready
    assert model.statistics.summary()["requests"] == 0
    model.close()


def test_the_values() -> None:
    warmup = Warmup.model_validate({"inputs": {"data": {"data": "random"}, "ids": {"data": "random"}}, "count": 2})
    requests = list(warmup_tensors(warmup, [DATA, IDS], 0, [1, 4]))
    assert [request["data"].shape for request in requests] == [(1, FEATURES)] * 2 + [(4, FEATURES)] * 2
    assert (requests[2]["data"].dtype, requests[2]["ids"].dtype) == (np.float32, np.int32)
    assert set(requests[2]["ids"].tolist()) <= {0, 1}
    assert requests[2]["data"].std() > 0
    (zeros,) = warmup_tensors(Warmup(), [DATA], 0, [2])
    assert not zeros["data"].any()


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("[[warmup]]\n[warmup.inputs.nothing]\n", "warmup: inputs: 'nothing': expected one of data"),
        ("[[warmup]]\nname = 'big'\n[warmup.inputs.data]\nshape = [2, 5]\n",
         "input 'data': expected shape [-1, 4], got [2, 5]"),
        ("[[warmup]]\n[warmup.inputs.data]\ndatatype = 'FP64'\n", "input 'data': expected FP32, got FP64"),
        ("[[warmup]]\n[warmup.inputs.data]\nshape = [-1, 4]\n",
         "model.toml, line 6: warmup.0.inputs.data.shape.0: expected 0 or more, got -1"),
        ("[[warmup]]\n[warmup.inputs.data]\ndata = 'ones'\n",
         "model.toml, line 6: warmup.0.inputs.data.data: expected one of 'zero' or 'random', got 'ones'"),
        ("[[warmup]]\ncount = 0\n", "model.toml, line 5: warmup.0.count: expected 1 or more, got 0"),
        ("[[warmup]]\ntimes = 1\n", "model.toml, line 5: warmup.0: unknown field 'times': expected name, "),
    ],
)  # fmt: skip
def test_mistakes(server: Live, folder: Path, toml: str, sentence: str) -> None:
    save(folder / "cold", *perceptron(), toml="max_batch = 2\n" + INPUT + toml)
    answer = server.clients["boss"].post("/v2/repository/models/cold/load")
    assert (answer.status_code, sentence in answer.json()["error"]) == (400, True), answer.text
    state, reason = index(server)["cold", "1"]
    assert state == "UNAVAILABLE"
    assert sentence in reason


def test_shapes_that_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(
        MXNetError, match="warmup 'w': inputs: expected shapes, as an axis beside the batch axis varies"
    ):
        load(tmp_path / "m", inputs={"data": {"shape": [-1, -1, -1]}}, warmup=[{"name": "w"}])
