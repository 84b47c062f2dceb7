"""What Triton's own clients and tools send and expect, beyond the protocol's text."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

import opbox as mx
from opbox_service.models.classes import top_classes
from tests.contract.live import Live
from tests.models.conftest import address_of, loaded
from tests.models.folders import CLASSES, FEATURES, ROUNDING, expected, perceptron, save
from tests.models.grpc_client import Calls, calls, request

X = np.random.default_rng(1).normal(size=(3, FEATURES)).astype(np.float32)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server of a network whose files say no shape, as README's digits."""
    folder = tmp_path_factory.mktemp("rows")
    net, params = perceptron()
    save(folder / "rows", net, params)
    save(folder / "pair", mx.sym.Variable("data") + mx.sym.Variable("data2"), {})
    save(folder / "images", mx.sym.Pooling(mx.sym.Variable("data"), kernel=(2, 2), pool_type="max"), {})
    live = Live("process", tmp_path_factory.mktemp("server"), OPBOX_MODELS=str(folder), OPBOX_GRPC_PORT="0")
    loaded(live)
    yield live
    live.stop()


@pytest.fixture(scope="module")
def call(rows: Live) -> Iterator[Calls]:
    with calls(address_of(rows)) as client:
        yield client


def infer(server: Live, x: np.ndarray = X, parameters: dict[str, Any] | None = None, **fields: Any) -> httpx.Response:
    """The answer to a request for "rows"; the input has these parameters."""
    tensor = {"name": "data", "shape": list(x.shape), "datatype": "FP32", "data": x.reshape(-1).tolist()}
    body = {"inputs": [{**tensor, "parameters": parameters or {}}], **fields}
    return server.clients["ann"].post("/v2/models/rows/infer", json=body)


def test_a_first_layer_of_rows_tells_its_columns(rows: Live, call: Calls) -> None:
    (data,) = rows.clients["ann"].get("/v2/models/rows").json()["inputs"]
    assert data == {"name": "data", "datatype": "FP32", "shape": [-1, FEATURES]}
    (by_grpc,) = call("ModelMetadata", {"name": "rows"}).inputs
    assert list(by_grpc.shape) == [-1, FEATURES]


def test_another_number_of_columns_is_refused_as_elsewhere(rows: Live) -> None:
    answer = infer(rows, X[:, :2])
    sentence = f"input 'data': expected shape [-1, {FEATURES}], got [3, 2]"
    assert (answer.status_code, answer.json()["error"]) == (400, sentence)


def test_images_that_the_first_layer_flattens_are_taken(rows: Live) -> None:
    (output,) = infer(rows, X.reshape(3, 1, 2, FEATURES // 2)).json()["outputs"]
    np.testing.assert_array_equal(np.reshape(np.float32(output["data"]), (3, CLASSES)), expected(X))
    assert infer(rows, X[:, :3].reshape(3, 1, 3)).status_code == 422


def raw(server: Live, body: bytes, model: str = "rows", **headers: str) -> httpx.Response:
    sent = {"Inference-Header-Content-Length": "0", **headers}
    return server.clients["ann"].post(f"/v2/models/{model}/infer", content=body, headers=sent)


@pytest.mark.parametrize("count", [1, 3])
def test_a_body_may_be_an_inputs_bytes_alone(rows: Live, count: int) -> None:
    for _ in range(2):  # the second might be taken for the first again
        answer = raw(rows, X[:count].tobytes())
        size = int(answer.headers["Inference-Header-Content-Length"])
        (output,) = json.loads(answer.content[:size])["outputs"]
        assert (answer.status_code, output["shape"]) == (200, [count, CLASSES])
        values = np.frombuffer(answer.content[size:], np.float32).reshape(count, CLASSES)
        np.testing.assert_allclose(values, expected(X)[:count], rtol=ROUNDING)


@pytest.mark.parametrize(
    ("model", "body", "sentence"),
    [
        ("rows", X.tobytes()[:-1], f"input 'data': expected a multiple of {4 * FEATURES} bytes by its shape"),
        ("pair", X.tobytes(), "body: expected a model with one input for bytes without a header, got 2 (data, data2)"),
        ("images", X.tobytes(), "input 'data': expected a shape with one varying length for bytes without a header, "
         "got [-1, -1, -1, -1]: state the shape in a JSON header, or in the model's model.toml"),
    ],
    ids=["rows", "pair", "images"],
)  # fmt: skip
def test_bytes_alone_that_do_not_say_a_shape(rows: Live, model: str, body: bytes, sentence: str) -> None:
    answer = raw(rows, body, model)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


def test_a_chunked_body_may_be_compressed(rows: Live) -> None:
    head = json.dumps({"inputs": [{"name": "data", "shape": [3, FEATURES], "datatype": "FP32",
                                   "parameters": {"binary_data_size": X.nbytes}}]}).encode()  # fmt: skip
    packed = gzip.compress(head + X.tobytes())
    sent = {"Content-Encoding": "gzip", "Inference-Header-Content-Length": str(len(head))}
    pieces = (packed[i : i + 40] for i in range(0, len(packed), 40))
    answer = rows.clients["ann"].post("/v2/models/rows/infer", content=pieces, headers=sent)
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    np.testing.assert_allclose(np.reshape(output["data"], (3, CLASSES)), expected(X), rtol=ROUNDING)


def test_prometheus_has_models_under_tritons_names(rows: Live) -> None:
    def figures() -> dict[str, float]:
        text = rows.clients["monitor"].get("/metrics").text
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples if sample.name.startswith("nv_")]
        return {sample.name: sample.value for sample in samples if sample.labels == {"model": "rows", "version": "1"}}

    before = figures()
    assert infer(rows).status_code == 200
    assert infer(rows, X[:, :2]).status_code == 400
    after = figures()
    changes = {name: value - before[name] for name, value in after.items() if value != before[name]}
    durations = {name for name in changes if name.endswith("_us")}
    assert {name: value for name, value in changes.items() if name not in durations} == {
        "nv_inference_request_success": 1,
        "nv_inference_request_failure": 1,
        "nv_inference_count": 3,
        "nv_inference_exec_count": 1,
    }
    assert "nv_inference_request_duration_us" in durations
    assert after["nv_inference_compute_input_duration_us"] == 0


@pytest.mark.parametrize("path", ["generate", "generate_stream", "versions/1/generate", "versions/1/generate_stream"])
def test_texts_are_refused_in_one_sentence(rows: Live, path: str) -> None:
    asked = {"text_input": "a story", "parameters": {"temperature": 1}}
    answer = rows.clients["ann"].post(f"/v2/models/rows/{path}", json=asked)
    sentence = (
        "generate: expected a request for numbers, as no model takes texts, got one for model 'rows': send tensors to "
        "its /infer"
    )
    assert (answer.status_code, answer.json()["error"]) == (501, sentence)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64])
def test_classes_of_integers_are_integers(dtype: type[np.generic]) -> None:
    bounds = np.iinfo(dtype)
    values = np.array([[3, bounds.min, bounds.max, 7]], dtype)
    best = top_classes("out", values, 4, ["a", "b"])
    assert best.tolist() == [[f"{bounds.max}:2".encode(), b"7:3", b"3:0:a", f"{bounds.min}:1:b".encode()]]


def test_parameters_that_mean_nothing_here_are_ignored(rows: Live, call: Calls) -> None:
    """Triton's C++ client sends one in each call by gRPC."""
    output = {"name": "softmax_output", "parameters": {"compression": 1}}
    answer = infer(rows, parameters={"colour": "red"}, outputs=[output])
    assert answer.status_code == 200
    message = request(X, "rows")
    message.parameters["triton_enable_empty_final_response"].bool_param = False
    message.parameters["temperature"].double_param = 0.5
    message.inputs[0].parameters["colour"].string_param = "red"
    message.outputs.add(name="softmax_output").parameters["compression"].int64_param = 1
    assert call("ModelInfer", message).model_name == "rows"
    assert "parameters" in rows.clients["ann"].get("/v2").json()["extensions"]
