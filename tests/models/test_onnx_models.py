"""ONNX files in the folder of models: converted by a process of their own, and served under the file's names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_service.models.onnx_files import read_onnx
from tests.contract.live import TOKENS, Live
from tests.models.conftest import index, loaded
from tests.models.folders import CLASSES, FEATURES, expected, perceptron

X = np.random.default_rng(0).normal(size=(5, FEATURES)).astype(np.float32)


def write(path: Path) -> Path:
    """The perceptron as an ONNX file that takes any number of examples."""
    path.parent.mkdir(parents=True, exist_ok=True)
    net, params = perceptron()
    mx.onnx.export_model(net, [params, {}], [(1, FEATURES)], onnx_file_path=str(path), dynamic=True)
    return path


@pytest.fixture(scope="module")
def onnx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("models")
    file = write(folder / "net" / "model.onnx")
    (folder / "batched").mkdir()
    shutil.copy(file, folder / "batched")
    (folder / "batched" / "model.toml").write_text("max_batch = 8\n")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "model.onnx").write_bytes(file.read_bytes()[:-9])
    live = Live("process", tmp_path_factory.mktemp("server"), OPBOX_MODELS=str(folder))
    loaded(live)
    yield live
    assert live.stop() == 0


@pytest.mark.parametrize("name", ["net", "batched"])
def test_outputs_under_the_files_names(onnx_server: Live, name: str) -> None:
    with mx.serve.Client(onnx_server.url, TOKENS["ann"]) as client:
        model = client.model(name)
        described = model.metadata()
        assert described["inputs"] == [{"name": "data", "datatype": "FP32", "shape": [-1, FEATURES]}]
        assert described["outputs"] == [{"name": "softmax", "datatype": "FP32", "shape": [-1, CLASSES]}]
        for examples in (1, 5):
            (output,) = model(data=X[:examples]).values()
            # float32: the converted network multiplies in the same order, but adds the bias in a step of its own
            np.testing.assert_allclose(output, expected(X[:examples]), rtol=1e-6, atol=1e-7)


def test_a_damaged_file_is_told_in_the_index(onnx_server: Live) -> None:
    state, reason = index(onnx_server)["damaged", "1"]
    assert state == "UNAVAILABLE"
    assert reason.startswith("model.onnx: import_model: model.onnx: expected an ONNX model, got")


def test_a_conversion_is_bounded(tmp_path: Path) -> None:
    file = write(tmp_path / "model.onnx")
    with pytest.raises(BadRequestError, match=r"model\.onnx: expected a model that is converted within 0\.01 s"):
        read_onnx(file, max_nodes=100, max_edges=100, seconds=0.01)
    with pytest.raises(MXNetError, match="the graph has 9 nodes: expected at most 3"):
        read_onnx(file, max_nodes=3, max_edges=100)
    with pytest.raises(FileNotFoundError):
        read_onnx(tmp_path / "none.onnx", max_nodes=100, max_edges=100)
