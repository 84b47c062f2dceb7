"""JSON that every parser takes: what is no number there, what is wrong with a body, large answers compressed."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

import httpx
import numpy as np
import pytest

from tests.contract.live import IDENTITY, TOKENS, Live

VALUES = [1.5, math.nan, math.inf, -math.inf]


def strict(text: bytes | str) -> Any:
    """Parse as a browser does, which knows no bare NaN."""

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


def forward(server: Live, data: list[Any], datatype: str = "FP32", **headers: str) -> httpx.Response:
    tensor = {"name": "x", "shape": [len(data)], "datatype": datatype, "data": data}
    body = {"graph": IDENTITY, "inputs": [tensor]}
    return server.clients["ann"].post("/v1/forward", content=json.dumps(body), headers=headers)


@pytest.mark.parametrize("datatype", ["FP32", "FP64", "FP16", "BF16"])
def test_what_json_has_no_number_for_is_spelled(server: Live, datatype: str) -> None:
    answer = forward(server, [1.5, "NaN", "Infinity", "-Infinity"], datatype)
    assert answer.status_code == 200, answer.text
    assert strict(answer.content)["outputs"][0]["data"] == [1.5, "NaN", "Infinity", "-Infinity"]
    same = forward(server, VALUES, datatype)
    assert strict(same.content) == strict(answer.content)


def test_it_is_null_for_whoever_wants_that(server: Live) -> None:
    for accept in ("application/json;non-finite=null", 'text/plain, application/json; non-finite="null"'):
        answer = forward(server, VALUES, Accept=accept)
        assert strict(answer.content)["outputs"][0]["data"] == [1.5, None, None, None]
    spelled = forward(server, VALUES, Accept="application/json;non-finite=string")
    assert strict(spelled.content)["outputs"][0]["data"][1] == "NaN"


def test_what_a_session_fetches_is_json_too(server: Live) -> None:
    id = server.json("POST", "/v1/sessions", {}).header["id"]
    tensor = {"name": "x", "shape": [4], "datatype": "FP32", "data": [1.5, "NaN", "Infinity", "-Infinity"]}
    commands = [{"do": "put", "id": 1, "tensor": "x"}, {"do": "fetch", "id": 1, "as": "y"}]
    answer = server.clients["ann"].post(f"/v1/sessions/{id}/commands", json={"commands": commands, "inputs": [tensor]})
    assert strict(answer.content)["outputs"][0]["data"] == [1.5, "NaN", "Infinity", "-Infinity"]


def test_another_wish_is_refused_in_a_sentence(server: Live) -> None:
    answer = forward(server, VALUES, Accept="application/json;non-finite=zero")
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("Accept: expected non-finite=string or non-finite=null, as in application")


@pytest.mark.parametrize("wrong", ["nan", "one", None, [1], {}])
def test_other_values_are_refused_by_name(server: Live, wrong: Any) -> None:
    answer = forward(server, [1.0, wrong])
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("tensor 'x': expected numbers")


def test_integers_have_no_such_values(server: Live) -> None:
    answer = forward(server, [1, "NaN"], "INT32")
    assert answer.status_code == 400
    assert "expected integers" in answer.json()["error"]


def test_a_malformed_body_is_called_one(server: Live) -> None:
    answer = server.clients["ann"].post("/v1/forward", content=b'{"graph": ')
    assert answer.json()["error"].startswith("body: expected a JSON object, got malformed JSON")
    framed = server.clients["ann"].post(
        "/v1/forward", content=b'{"graph": ', headers={"Inference-Header-Content-Length": "10"}
    )
    assert framed.json()["error"].startswith("header: expected a JSON object, got malformed JSON")


def test_a_large_answer_is_compressed_for_whoever_asks(server: Live) -> None:
    url, token = f"{server.url}/v1/ops", {"Authorization": f"Bearer {TOKENS['ann']}"}
    plain = httpx.get(url, headers={**token, "Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    with httpx.stream("GET", url, headers={**token, "Accept-Encoding": "br;q=1.0, gzip;q=0.8"}) as answer:
        raw = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) == len(raw) < len(plain.content) / 4
    assert gzip.decompress(raw) == plain.content
    refused = httpx.get(url, headers={**token, "Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in refused.headers


def test_small_answers_and_tensors_are_not_compressed(server: Live) -> None:
    small = server.clients["ann"].get("/v2", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in small.headers
    x = np.zeros(100_000, np.float32)
    answer = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": x}, **{"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.http
    np.testing.assert_array_equal(next(iter(answer.tensors.values())), x)
