"""Bad input over HTTP: one clear sentence, the right status, and nothing changed."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from opbox_protocol import wire
from tests.contract.live import FC, IDENTITY, SLOW, TOKENS, Got, Live, got, symbol, var
from tests.plain_json import plain_tensors

X = np.arange(6, dtype=np.float32).reshape(2, 3)
W = np.ones((4, 3), np.float32)
B = np.zeros(4, np.float32)
FED = {"x": X, "w": W, "b": B}


def refused(answer: Got, status: int, kind: str, *words: str) -> None:
    """The answer is an error of this status and type, told in one sentence that holds these words."""
    assert (answer.status, answer.header.get("type")) == (status, kind), answer.header
    assert set(answer.header) == {"error", "type", "node", "request_id", "detail"}
    message = answer.error
    assert isinstance(message, str)
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    assert "/work" not in message
    assert answer.header["request_id"] == answer.http["x-request-id"]
    for word in words:
        assert word in message, message


def post(server: Live, body: bytes, **headers: str) -> Got:
    return got(server.clients["ann"].post("/v1/forward", content=body, headers=headers))


def framed(header: Any, payload: bytes = b"", length: int | None = None) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(header).encode()
    return head + payload, {wire.HEADER_LENGTH: str(len(head) if length is None else length)}


def described(shape: list[int], size: int | None, datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    return {"name": "x", "shape": shape, "datatype": datatype, **parameters, **more}


# -- frames -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"{", b"[1]", b"\xff\xfe", b'"text"', b'{"graph": }', b"null", b"{} {}"])
def test_malformed_json(server: Live, body: bytes) -> None:
    refused(post(server, body), 400, "BadRequestError", "JSON")


def test_json_nested_too_deep(server: Live) -> None:
    refused(post(server, b"[" * 100_000 + b"]" * 100_000), 400, "BadRequestError", "nested")
    refused(post(server, b'{"graph":' * 200 + b"1" + b"}" * 200), 400, "BadRequestError", "nested")


@pytest.mark.parametrize("length", ["-1", "x", "1e3", ""])
def test_a_header_length_that_is_no_number(server: Live, length: str) -> None:
    body, _ = framed({"graph": IDENTITY})
    answer = post(server, body, **{wire.HEADER_LENGTH: length})
    refused(answer, 400, "BadRequestError", wire.HEADER_LENGTH)


def test_a_header_length_that_lies(server: Live) -> None:
    body, _ = framed({"graph": IDENTITY, "inputs": [described([2], 8)]}, bytes(8))
    longer = post(server, body, **{wire.HEADER_LENGTH: str(len(body) + 1)})
    refused(longer, 400, "BadRequestError", "at most the body's")
    refused(post(server, body, **{wire.HEADER_LENGTH: "3"}), 400, "BadRequestError", "JSON")
    refused(post(server, body, **{wire.HEADER_LENGTH: str(1 << 40)}), 413, "LimitError", wire.HEADER_LENGTH)


def test_tensor_bytes_too_few_or_too_many(server: Live) -> None:
    for payload in (bytes(4), bytes(12)):
        body, headers = framed({"graph": IDENTITY, "inputs": [described([2], 8)]}, payload)
        refused(post(server, body, **headers), 400, "BadRequestError", "expected")
    body, headers = framed({"graph": IDENTITY, "inputs": [described([2], 12)]}, bytes(12))
    refused(post(server, body, **headers), 400, "BadRequestError", "binary_data_size: expected 8")


def test_a_shape_whose_product_overflows(server: Live) -> None:
    shape = [1 << 32, 1 << 32, 4]
    for size in (0, 16):
        body, headers = framed({"graph": IDENTITY, "inputs": [described(shape, size)]}, bytes(size))
        refused(post(server, body, **headers), 400, "BadRequestError", "x")
    body, _ = framed({"graph": IDENTITY, "inputs": [described(shape, None, data=[1.0])]})
    refused(post(server, body), 400, "BadRequestError", "x")


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        (described([1] * 9, 4), "dimensions"),
        (described([-1], 4), "shape"),
        (described([1.5], 4), "shape"),  # type: ignore[list-item]  # no shape
        (described([True], 4), "shape"),
        (described([1], 4, "FP33"), "datatype"),
        (described([1], 4, data=[1.0]), "either"),
        (described([1], None, data=["one"]), "numbers"),
        (described([2], None, data=[1.0]), "values"),
        (described([1], None, "INT8", data=[300]), "-128 to 127"),
        (described([1], None, "INT64", data=[1 << 63]), "int64"),
        (described([1], None, "UINT8", data=[-1]), "0 to 255"),
        (described([1], None, "INT32", data=[0.5]), "integers"),
        ({"shape": [1], "datatype": "FP32"}, "name"),
        ("x", "object"),
    ],
)
def test_tensors_that_are_none(server: Live, entry: Any, word: str) -> None:
    size = 4 if isinstance(entry, dict) and "parameters" in entry else 0
    body, headers = framed({"graph": IDENTITY, "inputs": [entry]}, bytes(size))
    refused(post(server, body, **headers), 400, "BadRequestError", word)


def test_the_same_tensor_twice(server: Live) -> None:
    entry = described([1], None, data=[1.0])
    refused(post(server, framed({"graph": IDENTITY, "inputs": [entry, entry]})[0]), 400, "BadRequestError", "twice")


def test_a_body_larger_than_the_limit_is_refused_before_it_is_read(server: Live) -> None:
    head = (
        f"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['ann']}\r\n"
        f"Content-Length: {1 << 40}\r\nExpect: 100-continue\r\n\r\n"
    )
    answer = server.raw(head.encode())
    assert answer.startswith(b"HTTP/1.1 413"), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "LimitError"


def test_a_body_of_untold_length_stops_at_the_limit(server: Live) -> None:
    def endless() -> Any:
        while True:
            yield bytes(1 << 20)

    try:
        answer = server.clients["ann"].post("/v1/forward", content=endless())
    except httpx.HTTPError:
        pytest.fail("the answer should come before the connection ends")
    refused(got(answer), 413, "LimitError", "at most")


def test_a_content_length_that_is_none(server: Live) -> None:
    answer = server.raw(b"POST /v1/forward HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12x\r\n\r\n", read=True)
    assert answer.startswith(b"HTTP/1.1 400")


# -- graphs -----------------------------------------------------------------------------------------------------


def edited(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    graph = copy.deepcopy(FC)
    change(graph)
    return graph


@pytest.mark.parametrize(
    ("graph", "status", "kind", "words"),
    [
        (3, 400, "BadRequestError", ["graph", "expected"]),
        (None, 400, "BadRequestError", ["graph", "nothing"]),
        ("abc", 400, "BadRequestError", ["sha256:<hex>"]),
        ("sha256:" + "0" * 64, 404, "NotFoundError", ["PUT /v1/graphs"]),
        ({}, 400, "GraphError", ["nodes"]),
        ({"nodes": [], "heads": []}, 400, "GraphError", ["heads"]),
        (
            edited(lambda g: g["nodes"][3].update(op="FullyConected")),
            400,
            "UnknownOperatorError",
            ["FullyConected", "did you mean FullyConnected"],
        ),
        (
            edited(lambda g: g["nodes"][3]["attrs"].update(colour="red")),
            400,
            "ParamError",
            ["fc", "train.py:12", "colour"],
        ),
        (
            edited(lambda g: g["nodes"][3]["attrs"].update(num_hidden="many")),
            400,
            "ParamError",
            ["num_hidden", "integer", "many"],
        ),
        (
            edited(lambda g: g["nodes"][3]["attrs"].pop("num_hidden")),
            400,
            "ParamError",
            ["num_hidden", "required"],
        ),
        (edited(lambda g: g["nodes"][3]["inputs"].pop()), 400, "GraphError", ["3 inputs", "bias"]),
        (edited(lambda g: g["nodes"][3]["inputs"].__setitem__(0, [3, 0, 0])), 400, "GraphError", ["cycle"]),
        (edited(lambda g: g["nodes"][3]["inputs"].__setitem__(0, [9, 0, 0])), 400, "GraphError", ["9"]),
        (edited(lambda g: g["nodes"][3]["inputs"].__setitem__(0, [0, 5, 0])), 400, "GraphError", ["5"]),
        (edited(lambda g: g["heads"].__setitem__(0, [7, 0, 0])), 400, "GraphError", ["7"]),
        (edited(lambda g: g["nodes"][1].update(name="x")), 400, "GraphError", ["x", "differ"]),
        (symbol(*(var(f"v{i}") for i in range(2001)), heads=[0]), 413, "LimitError", ["2001", "2000"]),
    ],
)
def test_graphs_that_are_none(server: Live, graph: Any, status: int, kind: str, words: list[str]) -> None:
    for path in ("/v1/infer_shape", "/v1/forward"):
        body = {"graph": graph, "inputs": []} if path.endswith("forward") else {"graph": graph}
        refused(server.json("POST", path, body), status, kind, *words)


def test_a_graph_that_is_refused_is_not_kept(server: Live) -> None:
    graph = edited(lambda g: g["nodes"][3].update(op="Nonsense"))
    assert server.json("PUT", "/v1/graphs", {"graph": graph}).status == 400
    assert server.json("PUT", "/v1/graphs", {"graph": graph}).status == 400


# -- shapes and types -------------------------------------------------------------------------------------------


def test_shapes_that_contradict_name_node_argument_and_line(server: Live) -> None:
    answer = server.call("POST", "/v1/forward", {"graph": FC}, {**FED, "w": np.ones((4, 5), np.float32)})
    refused(answer, 422, "ShapeError", "fc (FullyConnected, train.py:12): weight: expected (4, 3), got (4, 5)")
    assert answer.header["node"] == "fc"


def test_shapes_that_stay_unknown_say_what_to_give(server: Live) -> None:
    answer = server.json("POST", "/v1/infer_shape", {"graph": FC, "shapes": {}})
    refused(answer, 422, "UnderdeterminedError", "x")


def test_shapes_for_what_is_no_argument(server: Live) -> None:
    refused(
        server.json("POST", "/v1/infer_shape", {"graph": FC, "shapes": {"z": [1]}}), 400, "BadRequestError", "z", "x"
    )
    for shape in ("2,3", [2.5], [1] * 9, [-3, 2]):
        answer = server.json("POST", "/v1/infer_shape", {"graph": FC, "shapes": {"x": shape}})
        assert answer.status in (400, 422)
        assert "expected" in answer.error


def test_wrong_types(server: Live) -> None:
    answer = server.call("POST", "/v1/forward", {"graph": FC}, {**FED, "w": W.astype(np.float64)})
    refused(answer, 422, "DTypeError", "fc", "float")
    refused(
        server.json("POST", "/v1/infer_type", {"graph": FC, "types": {"x": "float33"}}), 422, "DTypeError", "float33"
    )


def test_inputs_missing_or_unknown(server: Live) -> None:
    refused(
        server.call("POST", "/v1/forward", {"graph": FC}, {"x": X, "w": W}), 400, "BadRequestError", "'b' is missing"
    )
    refused(server.call("POST", "/v1/forward", {"graph": FC}, {**FED, "z": X}), 400, "BadRequestError", "'z'")


def test_head_gradients_missing_or_of_the_wrong_shape(server: Live) -> None:
    refused(server.call("POST", "/v1/backward", {"graph": FC}, FED), 400, "BadRequestError", "fc_output", "missing")
    wrong = {**FED, "head_grad:fc_output": np.ones((2, 5), np.float32)}
    refused(server.call("POST", "/v1/backward", {"graph": FC}, wrong), 422, "ShapeError", "(2, 4)", "(2, 5)")
    stray = {**FED, "head_grad:nothing": np.ones((2, 4), np.float32)}
    refused(server.call("POST", "/v1/backward", {"graph": FC}, stray), 400, "BadRequestError", "nothing", "fc_output")


@pytest.mark.parametrize(
    "parameters", [{"is_train": 1}, {"seed": -1}, {"seed": 1 << 64}, {"device": 3}, {"colour": 1}, 3]
)
def test_options_of_the_wrong_kind(server: Live, parameters: Any) -> None:
    answer = server.json("POST", "/v1/forward", {"graph": IDENTITY, "inputs": [], "parameters": parameters})
    refused(answer, 400, "BadRequestError", "expected")


def test_a_device_that_is_not_there(server: Live) -> None:
    answer = server.call("POST", "/v1/forward", {"graph": IDENTITY, "parameters": {"device": "tpu"}}, {"x": X})
    refused(answer, 501, "UnsupportedError", "tpu")
    refused(server.call("POST", "/v1/sessions", {"device": "tpu"}), 501, "UnsupportedError", "tpu")


def test_nan_and_infinity_pass_through_unharmed(server: Live) -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    answer = server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": x})
    assert answer.tensors["y_output"].tobytes() == x.tobytes()
    inputs = plain_tensors({"x": x})
    body = json.dumps({"graph": IDENTITY, "inputs": inputs}).encode()
    plain = post(server, body)
    np.testing.assert_array_equal(plain.tensors["y_output"], x)


# -- sessions, tokens, connections ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [{"ttl_s": 0}, {"ttl_s": "long"}, {"ttl_s": 1e12}, {"seed": "x"}, {"device": 1}, {"colour": 1}]
)
def test_sessions_that_cannot_be(server: Live, header: dict[str, Any]) -> None:
    refused(server.call("POST", "/v1/sessions", header), 400, "BadRequestError", "expected")


@pytest.mark.parametrize(
    "header",
    [
        {"commands": {}},
        {"commands": None},
        {"commands": [1]},
        {"commands": [], "seq": 0},
        {"commands": [], "seq": "1"},
        {"commands": [], "graphs": "sha256:0"},
        {"commands": [], "graphs": [1]},
        {"commands": [], "graphs": ["0" * 64]},
        {"commands": [], "wait": 1},
        {"commands": [], "colour": 1},
        {"commands": [{"do": "put", "id": -1, "tensor": "x"}]},
        {"commands": [{"do": "put", "id": 1 << 63, "tensor": "x"}]},
        {"commands": [{"do": "zeros", "ids": [1], "shape": [-1], "dtype": "float32"}]},
        {"commands": [{"do": "zeros", "ids": [1], "shape": [1] * 65, "dtype": "float32"}]},
        {"commands": [{"do": "zeros", "ids": [1], "shape": [2], "dtype": "object"}]},
        {"commands": [{"do": "put", "id": 1}]},
        {"commands": [{"do": "put", "id": 1, "tensor": "absent"}]},
        {"commands": [{"do": "view", "id": 2, "of": 1}]},
    ],
)
def test_batches_that_are_none(server: Live, header: dict[str, Any]) -> None:
    session = server.session()
    answer = server.call("POST", f"{session.path}/commands", header)
    assert answer.status in (400, 404)
    assert "expected" in answer.error
    assert server.call("GET", session.path).header["objects"] == 0
    session.delete()


def test_a_batch_far_ahead_of_its_turn(server: Live) -> None:
    session = server.session()
    answer = server.call("POST", f"{session.path}/commands", {"seq": 1_000_000, "commands": []})
    refused(answer, 429, "QuotaError", "waiting")


def test_an_unknown_session(server: Live) -> None:
    for path in ("/v1/sessions/0123456789abcdef0123456789abcdef", "/v1/sessions/x", "/v1/sessions/%2e%2e"):
        refused(server.call("GET", path), 404, "NotFoundError", "make a new session")


def test_too_many_sessions(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_MAX_SESSIONS="2")
    first = server.session()
    server.session()
    refused(server.call("POST", "/v1/sessions"), 429, "QuotaError", "at most 2")
    assert server.call("POST", "/v1/sessions", owner="bob").status == 201
    first.delete()
    assert server.call("POST", "/v1/sessions").status == 201


@pytest.mark.parametrize("path", ["/v2", "/metrics", "/openapi.json", "/v1/ops", "/nowhere"])
@pytest.mark.parametrize("token", [None, "Bearer wrong-token", "Basic YTpi", "Bearer"])
def test_a_missing_or_wrong_token(server: Live, path: str, token: str | None) -> None:
    headers = {} if token is None else {"Authorization": token}
    answer = got(httpx.get(server.url + path, headers=headers))
    refused(answer, 401, "AuthenticationError", "token")
    presented = token is not None and token.startswith("Bearer ")
    assert answer.http["www-authenticate"] == ('Bearer error="invalid_token"' if presented else "Bearer")


def test_a_token_without_the_scope(server: Live) -> None:
    for method, path in (("POST", "/v1/forward"), ("GET", "/v1/ops"), ("POST", "/v1/sessions")):
        refused(server.call(method, path, {}, owner="cuda"), 403, "ForbiddenError", "'run'", "upload-cuda")


def test_a_client_that_disconnects_in_the_middle_of_its_body(server: Live) -> None:
    session = server.session()
    head = (
        f"POST {session.path}/commands HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKENS['ann']}\r\n"
        "Content-Length: 8000000\r\n\r\n"
    )
    for _ in range(5):
        server.raw(head.encode() + b"{" * 100_000, close=True)
    deadline = time.monotonic() + 10
    while server.metric("opbox_buffer_bytes") > 0 or server.metric("opbox_requests_in_flight") > 1:
        assert time.monotonic() < deadline, "the buffers of broken requests are not given back"
        time.sleep(0.05)
    assert server.call("GET", session.path).header["next_seq"] == 1
    assert session.run({"do": "put", "id": 1, "tensor": "x"}, x=X).status == 200


def test_a_call_that_outlives_its_deadline(start: Callable[..., Live]) -> None:
    for isolation in ("none", "process"):
        server = start(isolation, OPBOX_DEADLINE_S="0.3")
        refused(server.call("POST", "/v1/forward", {"graph": SLOW}, {"x": X}), 504, "DeadlineError", "0.3 s")
        time.sleep(1.5)
        assert server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}).status == 200
        assert server.metric("opbox_buffer_bytes") == 0


def test_more_requests_at_a_time_than_an_owner_may_have(start: Callable[..., Live]) -> None:
    server = start("none", OPBOX_MAX_IN_FLIGHT_PER_OWNER="1")
    head, buffers = wire.encode({"graph": SLOW}, {"x": X}, "inputs")
    with httpx.Client(base_url=server.url, timeout=20) as client:
        import threading

        slow = threading.Thread(target=lambda: server.call("POST", "/v1/forward", {"graph": SLOW}, {"x": X}))
        slow.start()
        time.sleep(0.5)
        headers = {"Authorization": f"Bearer {TOKENS['ann']}", wire.HEADER_LENGTH: str(len(head))}
        answer = client.post("/v1/forward", content=b"".join([head, *buffers]), headers=headers)
        refused(got(answer), 429, "QuotaError", "at a time")
        assert answer.headers["retry-after"] == "1"
        slow.join()
    assert server.call("POST", "/v1/forward", {"graph": IDENTITY}, {"x": X}).status == 200
