"""The stateless routes, health, the catalogue, OpenAPI, request ids and metrics, over HTTP."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.backend.gpu_description import gpu_description
from opbox_ops.cpu.description import cpu_description
from opbox_protocol import wire
from opbox_protocol.datatypes import DATATYPES
from opbox_service.routes.health import EXTENSIONS, OWN_EXTENSIONS
from tests.contract.live import FC, IDENTITY, Live
from tests.plain_json import plain_tensors

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.arange(12, dtype=np.float32).reshape(4, 3) / 7
B = np.ones(4, np.float32)


def test_forward_runs_a_graph_on_tensors_sent_as_bytes(server: Live) -> None:
    answer = server.call("POST", "/v1/forward", {"graph": FC}, {"x": X, "w": W, "b": B})
    assert answer.status == 200
    np.testing.assert_allclose(answer.tensors["fc_output"], X @ W.T + B, rtol=1e-6)


def test_forward_runs_a_graph_on_numbers_in_json(server: Live) -> None:
    inputs = plain_tensors({"x": X, "w": W, "b": B})
    answer = server.json("POST", "/v1/forward", {"graph": FC, "inputs": inputs})
    assert answer.http["content-type"] == "application/json"
    assert wire.HEADER_LENGTH not in answer.http
    np.testing.assert_allclose(answer.tensors["fc_output"], X @ W.T + B, rtol=1e-6)


def test_accept_asks_for_bytes_where_the_request_was_json(server: Live) -> None:
    inputs = plain_tensors({"x": X})
    answer = server.clients["ann"].post(
        "/v1/forward", json={"graph": IDENTITY, "inputs": inputs}, headers={"Accept": "application/octet-stream"}
    )
    length = int(answer.headers[wire.HEADER_LENGTH])
    assert length % 64 == 0
    np.testing.assert_array_equal(wire.decode(answer.content, length, key="outputs").tensors["y_output"], X)


@pytest.mark.parametrize("size", [0, 1, 8_000, 8_193, 40_000, 300_000, 4_000_000])
def test_bodies_of_every_size_come_back_whole(server: Live, size: int) -> None:
    x = np.random.default_rng(size).random(size, dtype=np.float32)
    for _ in range(2):
        answer = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": x})
        np.testing.assert_array_equal(answer.tensors["y_output"], x)


@pytest.mark.parametrize("dtype", [name for name in DATATYPES if name != "BOOL"])
def test_every_datatype_makes_the_round_trip(server: Live, dtype: str) -> None:
    x = np.arange(5).astype(DATATYPES[dtype])
    answer = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": x})
    assert answer.status == 200, answer.header
    assert answer.tensors["y_output"].dtype == x.dtype
    np.testing.assert_array_equal(answer.tensors["y_output"], x)


def test_a_body_without_its_length_is_read(server: Live) -> None:
    head, buffers = wire.encode({"graph": IDENTITY}, {"x": np.ones(50_000, np.float32)}, "inputs")
    parts = iter([head, bytes(buffers[0][:1000]), bytes(buffers[0][1000:])])
    answer = server.clients["ann"].post("/v1/forward", content=parts, headers={wire.HEADER_LENGTH: str(len(head))})
    assert answer.status_code == 200


def test_backward_returns_outputs_and_gradients(server: Live) -> None:
    heads = np.full((2, 4), 2, np.float32)
    tensors = {"x": X, "w": W, "b": B, "head_grad:fc_output": heads}
    answer = server.call("POST", "/v1/backward", {"graph": FC}, tensors)
    assert set(answer.tensors) == {"fc_output", "grad:x", "grad:w", "grad:b"}
    np.testing.assert_allclose(answer.tensors["grad:x"], heads @ W, rtol=1e-6)
    np.testing.assert_allclose(answer.tensors["grad:w"], heads.T @ X, rtol=1e-6)
    only = server.call("POST", "/v1/backward", {"graph": FC, "parameters": {"grads": ["b"]}}, tensors)
    assert set(only.tensors) == {"fc_output", "grad:b"}


def test_repeated_calls_do_not_see_each_other(server: Live) -> None:
    for factor in (1.0, 2.0, 3.0):
        answer = server.call("POST", "/v1/forward", {"graph": FC}, {"x": X * factor, "w": W, "b": B})
        np.testing.assert_allclose(answer.tensors["fc_output"], X * factor @ W.T + B, rtol=1e-5)


def test_a_seed_makes_random_outputs_repeat(server: Live) -> None:
    graph = {
        "nodes": [{"op": "_random_uniform", "name": "u", "attrs": {"shape": "(4,)"}, "inputs": []}],
        "heads": [[0, 0, 0]],
        "arg_nodes": [],
    }
    answers = [server.call("POST", "/v1/forward", {"graph": graph, "parameters": {"seed": s}}) for s in (1, 1, 2)]
    first, again, other = (answer.tensors["u_output"] for answer in answers)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_graph_is_sent_once_and_named_afterwards(server: Live) -> None:
    sha256 = server.json("PUT", "/v1/graphs", {"graph": FC}).header["sha256"]
    answer = server.json("POST", "/v1/infer_shape", {"graph": f"sha256:{sha256}", "shapes": {"x": [2, 3]}})
    assert answer.header["arg_shapes"] == [[2, 3], [4, 3], [4]]
    assert answer.header["out_shapes"] == [[2, 4]]
    assert answer.header["complete"] is True


def test_inference_leaves_open_what_is_open(server: Live) -> None:
    partial = {"graph": FC, "shapes": {"x": [-1, 3]}, "partial": True, "trace": True}
    answer = server.json("POST", "/v1/infer_shape", partial)
    assert answer.header["complete"] is False
    assert answer.header["out_shapes"] == [[-1, 4]]
    assert {"node", "op"} <= set(answer.header["trace"][0])
    types = server.json("POST", "/v1/infer_type", {"graph": FC, "types": {"x": "float16"}})
    assert types.header["arg_types"] == ["float16"] * 3


def test_the_catalogue_tells_every_operator(server: Live) -> None:
    listed = server.json("GET", "/v1/ops").header["operators"]
    names = {op["name"] for op in listed}
    assert {"FullyConnected", "Convolution", "_test_slow"} <= names
    one = server.json("GET", "/v1/ops/FullyConnected").header
    assert one in listed
    assert "num_hidden" in one["params"]["properties"]


def test_health_and_about(server: Live) -> None:
    nobody = server.clients["ann"].get("/v2/health/live", headers={"Authorization": ""})
    assert (nobody.status_code, nobody.json()) == (200, {"live": True})
    assert server.json("GET", "/v2/health/ready").header == {"ready": True}
    about = server.json("GET", "/v2").header
    assert about["name"] == "opbox"
    assert about["extensions"] == [*EXTENSIONS, *OWN_EXTENSIONS, "opbox_body_parts", "opbox_zstd"]
    assert about["cpu"] == cpu_description().line
    assert about["gpu"] == gpu_description().line
    assert about["code"].startswith("code of sessions runs with " if server.isolation == "process" else "")


def test_openapi_names_every_route_and_resolves(server: Live) -> None:
    document = server.json("GET", "/openapi.json").header
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {
        ("PUT", "/v1/graphs"),
        ("POST", "/v1/infer_shape"),
        ("POST", "/v1/infer_type"),
        ("POST", "/v1/forward"),
        ("POST", "/v1/backward"),
        ("GET", "/v1/ops"),
        ("GET", "/v1/ops/{name}"),
        ("POST", "/v1/sessions"),
        ("GET", "/v1/sessions"),
        ("GET", "/v1/sessions/{id}"),
        ("DELETE", "/v1/sessions/{id}"),
        ("POST", "/v1/sessions/{id}/commands"),
        ("GET", "/v2"),
        ("GET", "/v2/health/live"),
        ("GET", "/v2/health/ready"),
        ("GET", "/metrics"),
    } <= routes
    schemas = document["components"]["schemas"]
    text = str(document)
    for name in text.split("#/components/schemas/")[1:]:
        assert name.split("'")[0] in schemas
    body = document["paths"]["/v1/forward"]["post"]["requestBody"]["content"]
    assert set(body) == {"application/json", "application/octet-stream"}
    assert set(document["paths"]["/v1/forward"]["post"]["responses"]["200"]["content"]) == set(body)
    commands = document["paths"]["/v1/sessions/{id}/commands"]["post"]["responses"]
    assert {"200", "202", "404", "409", "410"} <= set(commands)


def test_request_ids_are_kept_or_made_and_told_in_errors(server: Live) -> None:
    named = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}, **{"X-Request-Id": "mine-1"})
    assert named.http["x-request-id"] == "mine-1"
    refused = server.call("POST", "/v1/forward", {"graph": 3}, {}, **{"X-Request-Id": "mine-2"})
    assert refused.header["request_id"] == refused.http["x-request-id"] == "mine-2"
    renamed = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}, **{"X-Request-Id": "bad id"})
    assert renamed.http["x-request-id"] not in ("", "bad id")


def test_metrics_count_requests_and_sessions(server: Live) -> None:
    route = 'opbox_requests_total{method="POST",route="/v1/forward",status="200"}'
    before = server.metric(route)
    server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X})
    assert server.metric(route) == before + 1
    sessions = server.metric("opbox_sessions")
    session = server.session()
    assert server.metric("opbox_sessions") == sessions + 1
    session.delete()
    assert server.metric("opbox_sessions") == sessions
    assert server.metric('opbox_resident_memory_bytes{process="api"}') > 1e6


def test_an_unknown_route_and_a_wrong_method(server: Live) -> None:
    lost = server.json("GET", "/v1/nothing")
    assert (lost.status, lost.header["type"]) == (404, "NotFoundError")
    assert server.json("PUT", "/v1/forward").status == 405
    assert server.json("PUT", "/v1/sessions").http["allow"] == "GET, HEAD, POST"
