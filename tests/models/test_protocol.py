"""The Open Inference Protocol over HTTP: metadata, inference in JSON and in bytes, errors, the repository."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.models.conftest import INPUT, PATIENCE_S, index
from tests.models.folders import CLASSES, FEATURES, INDEX, ROUNDING, UNKNOWN, expected, perceptron, save

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
LISTS_ALL = {"Accept-Encoding": "gzip, deflate, br"}
TENSOR = {"name": "data", "shape": list(X.shape), "datatype": "FP32"}


def infer(server: Live, model: str, body: dict[str, Any], payload: bytes = b"", owner: str = "ann") -> httpx.Response:
    head = json.dumps(body).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))} if payload else {}
    return server.clients[owner].post(f"/v2/models/{model}/infer", content=head + payload, headers=headers)


def in_json(x: np.ndarray = X, **fields: Any) -> dict[str, Any]:
    return {"inputs": [{**TENSOR, "shape": list(x.shape), "data": x.reshape(-1).tolist()}], **fields}


def test_metadata(server: Live) -> None:
    client = server.clients["ann"]
    metadata = client.get("/v2/models/plain").json()
    assert metadata == {
        "name": "plain",
        "versions": ["1"],
        "platform": "opbox",
        "inputs": [{"name": "data", "datatype": "FP32", "shape": [-1, FEATURES]}],
        "outputs": [{"name": "softmax_output", "datatype": "FP32", "shape": [-1, CLASSES]}],
    }
    assert client.get("/v2/models/versions").json()["versions"] == ["1", "2"]
    assert client.get("/v2/models/plain/ready").json() == {"name": "plain", "ready": True}
    assert client.get("/v2/models/plain/versions/1/ready").status_code == 200
    assert client.get("/v2/models/plain/config").json()["max_batch_size"] == 0
    config = client.get("/v2/models/batched/config").json()
    assert config["max_batch_size"] == 8
    shape = {"data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [FEATURES]}
    assert config["input"] == [{"name": "data", **shape}]
    assert config["version_policy"] == {"latest": {"num_versions": 1}}
    assert config["instance_group"] == [{"name": "batched_0", "count": 1, "kind": "KIND_AUTO", "gpus": []}]
    assert client.get("/v2/models/versions/config").json()["version_policy"] == {"all": {}}
    assert {"classification", "model_repository", "statistics"} <= set(client.get("/v2").json()["extensions"])


def test_a_shape_that_nothing_says_is_inferred_as_far_as_it_goes(server: Live) -> None:
    (data,) = server.clients["ann"].get("/v2/models/versions").json()["inputs"]
    assert data == {"name": "data", "datatype": "FP32", "shape": [-1, FEATURES]}
    assert infer(server, "versions", in_json()).status_code == 200


@pytest.mark.parametrize("in_bytes", [False, True])
@pytest.mark.parametrize("out_bytes", [False, True])
def test_values_in_json_and_in_bytes(server: Live, in_bytes: bool, out_bytes: bool) -> None:
    body = in_json(id="seven", outputs=[{"name": "softmax_output", "parameters": {"binary_data": out_bytes}}])
    payload = b""
    if in_bytes:
        payload = X.tobytes()
        body["inputs"] = [{**TENSOR, "parameters": {"binary_data_size": X.nbytes}}]
    answer = infer(server, "plain", body, payload)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers.get("Inference-Header-Content-Length", len(answer.content)))
    header = json.loads(answer.content[:length])
    assert (header["model_name"], header["model_version"], header["id"]) == ("plain", "1", "seven")
    (output,) = header["outputs"]
    assert (output["name"], output["shape"], output["datatype"]) == ("softmax_output", [3, CLASSES], "FP32")
    if out_bytes:
        assert output["parameters"] == {"binary_data_size": 4 * 3 * CLASSES}
        values = np.frombuffer(answer.content[length:], np.float32)
    else:
        values = np.array(output["data"], np.float32)
    np.testing.assert_array_equal(values.reshape(3, CLASSES), expected(X))


def test_outputs_as_bytes_by_default(server: Live) -> None:
    answer = infer(server, "plain", in_json(parameters={"binary_data_output": True}))
    assert int(answer.headers["Inference-Header-Content-Length"]) + 4 * 3 * CLASSES == len(answer.content)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compressed_both_ways(server: Live, coding: str) -> None:
    x = np.tile(X, (2000, 1))
    tensor = {**TENSOR, "shape": list(x.shape), "parameters": {"binary_data_size": x.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    compress = {"gzip": gzip.compress, "deflate": zlib.compress}[coding]
    headers = {
        "Content-Encoding": coding,
        "Accept-Encoding": coding,
        "Inference-Header-Content-Length": str(len(head)),
    }
    body = compress(head + x.tobytes())
    answer = server.clients["ann"].post("/v2/models/plain/infer", content=body, headers=headers)
    assert (answer.status_code, answer.headers["content-encoding"]) == (200, coding), answer.text
    assert answer.num_bytes_downloaded < 4 * CLASSES * len(x) / 4
    values = np.frombuffer(answer.content[int(answer.headers["Inference-Header-Content-Length"]) :], np.float32)
    np.testing.assert_allclose(values.reshape(-1, CLASSES)[:3], expected(X), rtol=0, atol=ROUNDING)
    several = server.clients["ann"].post("/v2/models/plain/infer", content=body, headers=headers | LISTS_ALL)
    assert "content-encoding" not in several.headers


@pytest.mark.parametrize("model", ["plain", "batched"])
def test_priority_and_timeout(server: Live, model: str) -> None:
    wishes = {"priority": 1, "timeout": 10**15, "sequence_id": 0, "sequence_start": False, "sequence_end": False}
    assert infer(server, model, in_json(parameters=wishes)).status_code == 200
    late = infer(server, model, in_json(parameters={"timeout": 1}))  # it has come through two processes
    assert late.status_code == 503
    assert late.json()["error"].startswith(f"model {model!r}: expected a run within the 1 us of parameters.timeout")


def test_versions(server: Live) -> None:
    newest = infer(server, "versions", in_json()).json()
    assert newest["model_version"] == "2"
    oldest = server.clients["ann"].post("/v2/models/versions/versions/1/infer", json=in_json()).json()
    assert oldest["model_version"] == "1"
    np.testing.assert_array_equal(np.array(oldest["outputs"][0]["data"], np.float32).reshape(3, -1), expected(X))
    np.testing.assert_array_equal(np.array(newest["outputs"][0]["data"], np.float32).reshape(3, -1), expected(X, 2.0))


def test_classification(server: Live) -> None:
    asked = {"name": "softmax_output", "parameters": {"classification": 2}}
    (output,) = infer(server, "anns", in_json(outputs=[asked])).json()["outputs"]
    assert (output["datatype"], output["shape"]) == ("BYTES", [3, 2])
    values = expected(X)
    best = values.argsort(axis=1)[:, ::-1][:, :2]
    names = ["cat", "dog"]
    texts = [
        f"{values[i, j]:f}:{j}" + (f":{names[j]}" if j < len(names) else "") for i, row in enumerate(best) for j in row
    ]
    assert output["data"] == texts
    asked["parameters"]["binary_data"] = True  # type: ignore[index]
    answer = infer(server, "anns", in_json(outputs=[asked]))
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert answer.content[length:] == b"".join(len(text).to_bytes(4, "little") + text.encode() for text in texts)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "input 'data' is missing: expected tensors named data"),
        (in_json(X.astype(np.float64)) | {"inputs": [{**TENSOR, "datatype": "FP64", "data": [0.0] * 12}]},
         "input 'data': expected FP32, got FP64"),
        (in_json(X[:, :3]), "input 'data': expected shape [-1, 4], got [3, 3]"),
        (in_json(X[0]), "input 'data': expected shape [-1, 4], got [4]"),
        ({"inputs": [*in_json()["inputs"], {"name": "y", "shape": [1], "datatype": "FP32", "data": [0]}]},
         "input 'y' is none of the model's: expected data"),
        (in_json(outputs=[{"name": "nothing"}]), "output 'nothing' is none of the model's: expected softmax_output"),
        (in_json(outputs=[{"name": "softmax_output", "parameters": {"shared_memory_region": "a"}}]),
         "output 'softmax_output': expected shared_memory_byte_size beside shared_memory_region, got nothing"),
        (in_json(outputs=[{"name": "softmax_output", "parameters": {"classification": 0}}]),
         "outputs: 'softmax_output': classification: expected a number of classes, got 0"),
        (in_json(outputs="softmax_output"), "outputs: expected a list, got 'softmax_output'"),
        (in_json(parameters={"priority": -1}), "parameters.priority: expected 0 or more, got -1"),
        (in_json(parameters={"priority": "high"}), "parameters.priority: expected an integer, got 'high'"),
        (in_json(parameters={"timeout": 0.5}), "parameters.timeout: expected an integer, got 0.5"),
        (in_json(parameters={"timeout": 10**16}),
         "parameters.timeout: expected 1000000000000000 or less, got 10000000000000000"),
        (in_json(parameters={"binary_data_output": 1}), "parameters.binary_data_output: expected true or false, got 1"),
        (in_json(parameters={"sequence_id": 5}),
         "parameters.sequence_id: expected 0, as sequences are not served, got 5"),
        (in_json(parameters={"sequence_start": True}),
         "parameters.sequence_start: expected false, as sequences are not served, got True"),
        (in_json(parameters={"sequence_end": True}),
         "parameters.sequence_end: expected false, as sequences are not served, got True"),
        (in_json(parameters=[1]), "parameters: expected an object, got [1]"),
        ({"inputs": [{**TENSOR, "datatype": "BYTES", "data": ["a"]}]},
         "tensor 'data': datatype: expected numbers (BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, "
         "FP16, BF16, FP32, FP64), got BYTES: no model takes texts"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["plain", "batched"])
def test_bad_input(server: Live, model: str, body: dict[str, Any], sentence: str) -> None:
    answer = infer(server, model, body)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "owner", "status", "sentence"),
    [
        ("nothing", "ann", 404, UNKNOWN.format("'nothing'", INDEX)),
        ("anns", "py", 404, UNKNOWN.format("'anns'", INDEX)),
        ("plain/versions/7", "ann", 404, UNKNOWN.format("'plain' version 7", "version 1")),
        ("plain/versions/x", "ann", 404, UNKNOWN.format("'plain' version x", "version 1")),
        ("broken", "ann", 400,
         "model 'broken': not ready: broken: expected one NAME-symbol.json with its .params, or one "
         ".onnx file, got none of them"),
    ],
)  # fmt: skip
def test_what_is_no_model(server: Live, path: str, owner: str, status: int, sentence: str) -> None:
    client = server.clients[owner]
    answers = [client.get(f"/v2/models/{path}{suffix}") for suffix in ("", "/ready", "/config", "/stats")]
    answers.append(client.post(f"/v2/models/{path}/infer", json=in_json()))
    for answer in answers:
        assert (answer.status_code, answer.json()["error"]) == (status, sentence)


def test_the_index(server: Live) -> None:
    rows = index(server)
    assert rows["plain", "1"] == ("READY", "")
    assert rows["versions", "1"][0] == rows["versions", "2"][0] == "READY"
    assert rows["broken", "1"][0] == "UNAVAILABLE"
    assert not [name for name, _ in rows if name == "not a name"]
    assert ("anns", "1") not in index(server, "py")
    ready = server.clients["ann"].post("/v2/repository/index", json={"ready": True}).json()
    assert {row["state"] for row in ready} == {"READY"}
    refused = server.clients["ann"].post("/v2/repository/index", json={"ready": 1})
    assert (refused.status_code, refused.json()["error"]) == (400, "ready: expected true or false, got 1")


def test_loading_again_serves_the_new_files(server: Live, folder: Path) -> None:
    boss = server.clients["boss"]
    save(folder / "changing", *perceptron(), toml=INPUT)
    assert boss.post("/v2/repository/models/changing/load").status_code == 200
    first = infer(server, "changing", in_json()).json()["outputs"][0]["data"]
    save(folder / "changing", *perceptron(3.0), toml=INPUT, epoch=2)
    assert infer(server, "changing", in_json()).json()["outputs"][0]["data"] == first
    assert boss.post("/v2/repository/models/changing/load", json={}).status_code == 200
    values = np.array(infer(server, "changing", in_json()).json()["outputs"][0]["data"], np.float32)
    np.testing.assert_array_equal(values.reshape(3, -1), expected(X, 3.0))
    assert boss.post("/v2/repository/models/changing/unload").status_code == 200
    answer = infer(server, "changing", in_json())
    assert (answer.status_code, answer.json()["error"]) == (400, "model 'changing': not ready: unloaded")
    assert index(server)["changing", "1"] == ("UNAVAILABLE", "unloaded")


def test_a_version_that_fails_to_load_leaves_the_old_one_serving(server: Live, folder: Path) -> None:
    boss = server.clients["boss"]
    save(folder / "failing", *perceptron(), toml=INPUT)
    assert boss.post("/v2/repository/models/failing/load").status_code == 200
    params = folder / "failing" / "net-0001.params"
    params.write_bytes(params.read_bytes()[:-10])
    refused = boss.post("/v2/repository/models/failing/load")
    assert refused.status_code == 400
    assert "net-0001.params" in refused.json()["error"]
    state, reason = index(server)["failing", "1"]
    assert state == "READY"
    assert "net-0001.params" in reason
    values = np.array(infer(server, "failing", in_json()).json()["outputs"][0]["data"], np.float32)
    np.testing.assert_array_equal(values.reshape(3, -1), expected(X))


@pytest.mark.parametrize(
    ("toml", "sentence"),
    [
        ("max_batch = 4\nmax_btch = 5\n", "model.toml, line 2: unknown field 'max_btch': expected inputs, outputs, "),
        ("[inputs.data]\nshape = [2]\ntype = 'FP32'\n",
         "model.toml, line 3: inputs.data: unknown field 'type': expected shape, datatype"),
        ("max_batch = 0\n", "model.toml, line 1: max_batch: expected 1 or more, got 0"),
        ("max_batch = \n", "model.toml: expected TOML, got another text: "),
        ("versions = [3]\n", "versions: expected some of 1, got 3"),
        ("outputs = ['nothing']\n", "outputs: 'nothing': expected one of softmax_output"),
        ("[inputs.nothing]\nshape = [1]\n", "inputs: 'nothing': expected one of data"),
        ("[inputs.data]\nshape = [-1, 5]\n", "fc1"),
        ("device = 'tpu'\n", "tpu"),
        ("labels = '../secret'\n", "labels: expected the name of a text file beside "),
        ("max_batch = 2\nbatch_axis = -1\n", "model.toml, line 2: batch_axis: "),
    ],
)  # fmt: skip
def test_mistakes_in_a_models_file(server: Live, folder: Path, toml: str, sentence: str) -> None:
    save(folder / "mistaken", *perceptron(), toml=toml)
    answer = server.clients["boss"].post("/v2/repository/models/mistaken/load")
    assert answer.status_code in (400, 422, 501)
    assert sentence in answer.json()["error"]
    state, reason = index(server)["mistaken", "1"]
    assert state == "UNAVAILABLE"
    assert sentence in reason


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_who_may_load(server: Live, verb: str) -> None:
    assert server.clients["ann"].post(f"/v2/repository/models/plain/{verb}").status_code == 403
    refused = server.clients["boss"].post(f"/v2/repository/models/nothing/{verb}")
    assert (refused.status_code, refused.json()["error"]) == (
        404,
        UNKNOWN.format("'nothing'", INDEX),
    )


def test_the_servers_own_calls_are_no_routes(server: Live) -> None:
    for path in ("prepare", "drop", "figures"):
        assert server.clients["boss"].post(f"/internal/models/plain/{path}").status_code == 404
    assert not [path for path in server.clients["ann"].get("/openapi.json").json()["paths"] if "internal" in path]


def test_statistics(server: Live) -> None:
    client = server.clients["ann"]

    def figures() -> dict[str, Any]:
        (row,) = client.get("/v2/models/plain/stats").json()["model_stats"]
        return row  # type: ignore[no-any-return]

    before = figures()
    infer(server, "plain", in_json())
    infer(server, "plain", in_json(X[:, :2]))
    after = figures()
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 1
    for kind in ("success", "fail", "compute_infer"):
        assert after["inference_stats"][kind]["count"] - before["inference_stats"][kind]["count"] == 1
    assert after["inference_stats"]["success"]["ns"] > before["inference_stats"]["success"]["ns"]
    assert {row["batch_size"] for row in after["batch_stats"]} >= {3}
    everything = {row["name"] for row in client.get("/v2/models/stats").json()["model_stats"]}
    assert {"plain", "batched", "anns"} <= everything
    others = {row["name"] for row in server.clients["py"].get("/v2/models/stats").json()["model_stats"]}
    assert "plain" in others
    assert "anns" not in others


@pytest.mark.parametrize("model", ["plain", "batched"])
def test_the_time_of_a_run_is_its_owners(server: Live, model: str) -> None:
    def seconds(owner: str) -> float:
        return server.metric(f'opbox_compute_seconds_total{{device="cpu",owner="{owner}"}}')

    before = {owner: seconds(owner) for owner in ("ann", "py")}
    until = time.monotonic() + PATIENCE_S
    while seconds("ann") == before["ann"]:  # a worker reports from time to time, with an answer
        assert infer(server, model, in_json()).status_code == 200
        assert time.monotonic() < until
    assert seconds("py") == before["py"]


def test_the_command(server: Live) -> None:
    def opbox(*words: str, owner: str = "ann") -> str:
        environment = os.environ | {"OPBOX_URL": server.url, "OPBOX_TOKEN": TOKENS[owner]}
        command = (sys.executable, "-m", "opbox.cli", "models", *words)
        ended = subprocess.run(command, capture_output=True, text=True, env=environment)
        return ended.stdout + ended.stderr

    infer(server, "plain", in_json())
    title, head, *lines = opbox().splitlines()
    assert " ready" in title
    assert head.lower().split()[:4] == ["model", "version", "state", "owner"]
    assert [line.split()[:5] for line in lines if line.startswith("plain ")] == [
        ["plain", "1", "READY", "everyone", "cpu"]
    ]
    assert any(line.startswith("broken") and "expected one NAME-symbol.json" in line for line in lines)
    rows = {row["name"]: row for row in json.loads(opbox("--json"))["models"]}
    assert rows["plain"]["requests"] > 0
    assert rows["plain"]["batches"]["3"] > 0
    assert rows["plain"]["p99_ms"] >= rows["plain"]["p50_ms"] > 0
    assert rows["plain"]["bytes"] == sum(array.asnumpy().nbytes for array in perceptron()[1].values())
    assert rows["broken"]["device"] is None
    assert "expected a token with 'admin', got one with run" in opbox("load", "plain")
    assert json.loads(opbox("load", "plain", "--json", owner="boss")) == {"loaded": ["plain"]}
    assert opbox("unload", "nothing", owner="boss").startswith("opbox: ")


def test_a_server_without_models(tmp_path: Path) -> None:
    live = Live("none", tmp_path)
    assert live.clients["ann"].post("/v2/repository/index").json() == []
    assert live.clients["ann"].get("/v2/models/stats").json() == {"model_stats": []}
    assert live.clients["ann"].get("/v2/models/plain").status_code == 404
    assert live.stop() == 0


def test_in_one_process(folder: Path, tmp_path: Path) -> None:
    live = Live("none", tmp_path, OPBOX_MODELS=str(folder))
    boss = live.clients["boss"]
    assert boss.post("/v2/repository/models/plain/load").status_code == 200
    values = np.array(infer(live, "plain", in_json()).json()["outputs"][0]["data"], np.float32)
    np.testing.assert_array_equal(values.reshape(3, -1), expected(X))
    assert live.stop() == 0
