"""Models loaded with a configuration, or from files, that a request brings."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.live import Live
from tests.models.conftest import INPUT, PATIENCE_S, index
from tests.models.folders import FEATURES, INDEX, expected, perceptron, save

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
BODY = {"inputs": [{"name": "data", "shape": [3, FEATURES], "datatype": "FP32", "data": X.reshape(-1).tolist()}]}


def load(server: Live, model: str, parameters: Any = None, status: int = 200, owner: str = "boss") -> str:
    """What it is answered: a sentence, where it is refused."""
    body = {} if parameters is None else {"parameters": parameters}
    answer = server.clients[owner].post(f"/v2/repository/models/{model}/load", json=body)
    assert answer.status_code == status, answer.text
    return "" if status == 200 else answer.json()["error"]


def values(server: Live, model: str, path: str = "") -> np.ndarray:
    answer = server.clients["ann"].post(f"/v2/models/{model}{path}/infer", json=BODY)
    assert answer.status_code == 200, answer.text
    return np.array(answer.json()["outputs"][0]["data"], np.float32).reshape(3, -1)


def files_of(folder: Path, prefix: str = "") -> dict[str, str]:
    return {f"file:{prefix}{path.name}": base64.b64encode(path.read_bytes()).decode() for path in folder.iterdir()}


def shape(server: Live, model: str) -> list[int]:
    return server.clients["ann"].get(f"/v2/models/{model}").json()["inputs"][0]["shape"]  # type: ignore[no-any-return]


def folders(private: Path) -> list[Path]:
    return sorted(private.glob("opbox-model-*"))


def test_a_changed_model_toml_is_loaded_with_the_same_files(server: Live, folder: Path) -> None:
    save(folder / "tuned", *perceptron(), toml=INPUT)
    load(server, "tuned")
    assert shape(server, "tuned") == [-1, FEATURES]
    (folder / "tuned" / "model.toml").write_text("[inputs.data]\nshape = [3, 4]\n")
    load(server, "tuned")
    assert shape(server, "tuned") == [3, FEATURES]


def test_a_configuration_goes_before_the_file_s_until_the_model_is_loaded_again(server: Live, folder: Path) -> None:
    save(folder / "tuned", *perceptron(), toml="max_queue = 7\n" + INPUT)
    load(server, "tuned", {"config": json.dumps({"max_batch": 4})})
    config = server.clients["ann"].get("/v2/models/tuned/config").json()
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [FEATURES])
    values(server, "tuned")
    load(server, "tuned", {"config": json.dumps({"owners": ["py"]})})
    assert server.clients["ann"].get("/v2/models/tuned").status_code == 404
    load(server, "tuned")
    assert server.clients["ann"].get("/v2/models/tuned/config").json()["max_batch_size"] == 0


def test_a_model_is_loaded_from_the_files_of_the_request_alone(server: Live, folder: Path, tmp_path: Path) -> None:
    save(tmp_path / "new", *perceptron(2.0))
    save(folder / "tuned", *perceptron(), toml=INPUT)
    load(server, "tuned")
    load(server, "tuned", files_of(tmp_path / "new", "3/") | {"config": json.dumps({"versions": "all"})})
    np.testing.assert_array_equal(values(server, "tuned", "/versions/3"), expected(X, 2.0))
    assert index(server)["tuned", "1"] == ("UNAVAILABLE", "unloaded")
    load(server, "tuned")
    np.testing.assert_array_equal(values(server, "tuned"), expected(X))
    assert index(server)["tuned", "3"] == ("UNAVAILABLE", "unloaded")


def test_a_model_that_the_folder_does_not_have(server: Live, private: Path, tmp_path: Path) -> None:
    save(tmp_path / "new", *perceptron(2.0))
    files = files_of(tmp_path / "new") | {"file:model.toml": base64.b64encode(b"max_batch = 2\n").decode()}
    load(server, "visitor", files)
    (folder,) = folders(private)
    assert folder.stat().st_mode & 0o777 == 0o700
    np.testing.assert_allclose(values(server, "visitor"), expected(X, 2.0), rtol=0, atol=1e-6)
    (worker,) = server.workers()
    os.kill(worker, 9)
    until = time.monotonic() + PATIENCE_S
    while server.clients["ann"].post("/v2/models/visitor/infer", json=BODY).status_code != 200:
        assert time.monotonic() < until
    assert server.clients["boss"].post("/v2/repository/models/visitor/unload").status_code == 200
    assert folders(private) == []


def test_what_fails_leaves_the_old_one_serving(server: Live, folder: Path, private: Path, tmp_path: Path) -> None:
    save(folder / "tuned", *perceptron(), toml=INPUT)
    save(tmp_path / "new", *perceptron(2.0))
    load(server, "tuned")
    files = files_of(tmp_path / "new")
    files["file:net-0001.params"] = files["file:net-0001.params"][:400]
    assert "net-0001.params" in load(server, "tuned", files, 400)
    np.testing.assert_array_equal(values(server, "tuned"), expected(X))
    assert "net-0001.params" in index(server)["tuned", "1"][1]
    assert folders(private) == []


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ([1], "parameters: expected an object, got [1]"),
        ({"config": {}}, "parameters: 'config': expected a string, got dict"),
        ({"config": "{"}, "parameters: config: expected a JSON object, got malformed JSON: "),
        ({"config": "[1]"}, "parameters: config: expected a JSON object, got list"),
        ({"config": '{"max_batch": 0}'}, "parameters: config: max_batch: expected 1 or more, got 0"),
        ({"config": '{"max_size": 1}'}, "parameters: config: unknown field 'max_size': expected inputs, outputs, "),
        ({"files": "a"}, "parameters: expected config or file:PATH, got 'files'"),
        ({"file:a.params": "?"}, "parameters: 'file:a.params': expected a file in base64, got other text"),
        ({"file:a.params": "é"}, "parameters: 'file:a.params': expected a file in base64, got other text"),
        ({"file:../a.params": ""}, "parameters: expected a file's name, or a version, a slash and a file's name, got "),
        ({"file:/a": ""}, "parameters: expected a file's name, or a version, a slash and a file's name, got '/a'"),
        ({"file:1/2/a": ""}, "parameters: expected a file's name, or a version, a slash and a file's name, got "),
        ({f"file:{i}.txt": "" for i in range(65)}, "parameters: expected at most 64 files, got 65"),
        ({"file:a.txt": ""}, "expected one NAME-symbol.json with its .params, or one .onnx file, got none of them"),
    ],
)  # fmt: skip
def test_bad_parameters(server: Live, folder: Path, private: Path, parameters: Any, sentence: str) -> None:
    save(folder / "tuned", *perceptron(), toml=INPUT)
    assert sentence in load(server, "tuned", parameters, 400)
    assert folders(private) == []


def test_names_scopes_and_sizes(server: Live, folder: Path, tmp_path: Path) -> None:
    save(folder / "tuned", *perceptron(), toml=INPUT)
    save(tmp_path / "new", *perceptron())
    assert INDEX in load(server, "not%20a%20name", files_of(tmp_path / "new"), 404)
    load(server, "tuned", {"config": "{}"}, 403, "ann")
    load(server, "tuned", {"unload_dependents": False})
    assert "labels.txt" not in load(server, "tuned", {"file:labels.txt": "A" * (60 << 10)}, 400)
    too_long = load(server, "tuned", {"file:labels.txt": "A" * (65 << 20)}, 413)
    assert too_long.startswith("body: expected at most")
