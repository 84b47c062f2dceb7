"""Random frames at the decoder and at the engine's door: an answer or a WireError, never another exception."""

from __future__ import annotations

import gc
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from opbox_protocol import wire
from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.errors import WireError
from opbox_service import json_text
from opbox_service.carriers import RawRequest, RawResponse
from opbox_service.codec import limits_of, serve
from opbox_service.engine import Engine
from opbox_service.owner_terms import SCOPES
from opbox_service.routes.table import ROUTES
from opbox_service.settings import Settings
from tests.fuzzing import FUZZ
from tests.service.test_graph_fuzz import one_sentence

LIMITS = wire.Limits(header_bytes=1 << 16, tensor_bytes=1 << 20, tensors=64, rank=8, json_depth=16)
SETTINGS = Settings(max_nodes=100, max_session_bytes=1 << 20, max_json_depth=16)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["FP32", "INT64", "BOOL", "BF16", "x"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["x", "y"]) | JSON,
        "shape": st.lists(st.integers(-2, 1 << 40), max_size=10) | JSON,
        "datatype": st.sampled_from(list(DATATYPES)) | JSON,
        "data": st.lists(JSON, max_size=6) | JSON,
        "parameters": st.fixed_dictionaries({"binary_data_size": st.integers(-1, 64) | JSON}) | JSON,
    },
)
HEADER = st.fixed_dictionaries(
    {},
    optional={
        "inputs": st.lists(ENTRY, max_size=4) | JSON,
        "parameters": st.fixed_dictionaries({"tensor_alignment": st.sampled_from([64, 32, None])}) | JSON,
        "graph": JSON,
        "commands": JSON,
        "shapes": JSON,
        "seq": JSON,
        "wait": JSON,
    },
)
ARRAYS = st.sampled_from([np.float32, np.float16, np.int8, np.int64, np.uint16, np.bool_]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


@pytest.fixture(autouse=True, scope="module")
def without_what_other_tests_left() -> None:
    """Every session's end collects garbage: what the tests before have left is set aside, not looked at 350 times."""
    gc.collect()
    gc.freeze()


def decoded(body: bytes, length: int | None) -> None:
    try:
        frame = wire.decode(body, length, limits=LIMITS)
    except WireError as error:
        one_sentence(str(error))
    else:
        assert sum(tensor.nbytes for tensor in frame.tensors.values()) < 1 << 22


@settings(max_examples=150 * FUZZ, deadline=None)
@given(st.binary(max_size=200), st.none() | st.integers(-5, 300))
def test_any_bytes(body: bytes, length: int | None) -> None:
    decoded(body, length)


@settings(max_examples=250 * FUZZ, deadline=None)
@given(HEADER, st.binary(max_size=80), st.integers(-3, 3))
def test_any_header(header: dict[str, Any], payload: bytes, excess: int) -> None:
    text = json.dumps(header).encode()
    decoded(text + payload, len(text))
    decoded(text + payload, len(text) + excess)
    decoded(text, None)


@settings(max_examples=150 * FUZZ, deadline=None)
@given(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=4), st.data())
def test_what_is_written_is_read_and_damage_is_noticed(tensors: dict[str, np.ndarray], data: st.DataObject) -> None:
    head, buffers = wire.encode({"graph": "g"}, tensors, "inputs")
    body = b"".join([head, *buffers])
    frame = wire.decode(body, len(head), limits=LIMITS)
    assert list(frame.tensors) == list(tensors)
    for name, tensor in tensors.items():
        assert frame.tensors[name].dtype == tensor.dtype
        assert frame.tensors[name].shape == tensor.shape
        assert frame.tensors[name].tobytes() == tensor.tobytes()
    cut = data.draw(st.integers(0, max(0, len(body) - 1)))
    decoded(body[:cut], min(len(head), cut))
    at = data.draw(st.integers(0, len(head) - 1))
    damaged = bytearray(body)
    damaged[at] = data.draw(st.integers(0, 255))
    decoded(bytes(damaged), len(head))


_engine: list[Engine] = []


def asked(method: str, path: str, body: bytes, length: int | None) -> list[RawResponse]:
    """What the engine's door answers, now or later."""
    if not _engine:
        _engine.append(Engine(SETTINGS))
    answers: list[RawResponse] = []
    request = RawRequest(*ROUTES.match(method, path), path, "ann", SCOPES, "", body, length, binary=True)
    rest = serve(_engine[0], request, limits_of(SETTINGS), answers.append)
    if rest is not None:
        rest()
    return answers


def answered(method: str, path: str, body: bytes, length: int | None) -> RawResponse:
    """What it answers at once."""
    (answer,) = asked(method, path, body, length)
    return answer


@settings(max_examples=200 * FUZZ, deadline=None)
@given(
    st.sampled_from(["/v1/forward", "/v1/backward", "/v1/infer_shape", "/v1/infer_type", "/v1/graphs"]),
    HEADER,
    st.binary(max_size=40),
)
def test_the_engine_answers_whatever_comes(path: str, header: dict[str, Any], payload: bytes) -> None:
    text = json.dumps(header).encode()
    answer = answered("PUT" if path == "/v1/graphs" else "POST", path, text + payload, len(text))
    assert 400 <= answer.status < 500, answer.body
    assert isinstance(json.loads(answer.body)["error"], str)


@settings(max_examples=200 * FUZZ, deadline=None)
@given(HEADER)
@example({"seq": 2})
def test_a_session_answers_whatever_comes(header: dict[str, Any]) -> None:
    """At once, or, a batch that comes before its turn, when the session ends."""
    session = json.loads(answered("POST", "/v1/sessions", b"{}", None).body)
    path = f"/v1/sessions/{session['id']}"
    try:
        answers = asked("POST", f"{path}/commands", json.dumps(header).encode(), None)
        description = json.loads(answered("GET", path, b"", None).body)
        assert description["objects"] == description["bytes"] == 0
        waits = not answers
        assert not waits or header["seq"] > 1
    finally:
        answered("DELETE", path, b"", None)
    (answer,) = answers
    statuses = (410,) if waits else (200, 202, *range(400, 500))
    assert answer.status in statuses, answer.body


ID = st.integers(0, 5)
SIZE = st.sampled_from([0, 1, 2, 3, 7, 1 << 20, 300_000_000, 1 << 31, 1 << 62, -1, -(1 << 40)])
COMMAND = st.one_of(
    st.fixed_dictionaries({"do": st.just("put"), "id": ID, "tensor": st.sampled_from(["x", "y"])}),
    st.fixed_dictionaries({"do": st.just("copy"), "from": ID, "to": ID}),
    st.fixed_dictionaries({"do": st.just("view"), "id": ID, "of": ID, "begin": SIZE, "end": SIZE}),
    st.fixed_dictionaries({"do": st.just("view"), "id": ID, "of": ID, "shape": st.lists(SIZE, max_size=3)}),
    st.fixed_dictionaries({"do": st.just("fetch"), "id": ID, "as": st.sampled_from(["a", "b"])}),
    st.fixed_dictionaries({"do": st.just("free"), "ids": st.lists(ID, max_size=3)}),
    st.fixed_dictionaries(
        {
            "do": st.just("invoke"),
            "op": st.sampled_from(["Concat", "SliceChannel", "_split_v2", "_zeros", "add_n", "_copy", "stack"]),
            "attrs": st.dictionaries(
                st.sampled_from(["num_args", "num_outputs", "sections", "dim", "axis"]), SIZE, max_size=2
            ),
            "inputs": st.lists(ID, max_size=3),
            "outputs": st.lists(ID, max_size=2),
        }
    ),
)


@settings(max_examples=150 * FUZZ, deadline=None)
@given(st.lists(COMMAND, max_size=8))
def test_commands_of_any_size_are_answered_and_all_is_given_back(commands: list[dict[str, Any]]) -> None:
    session = json.loads(answered("POST", "/v1/sessions", b"{}", None).body)
    path = f"/v1/sessions/{session['id']}"
    try:
        tensor = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [0, 1, 2, 3, 4, 5]}
        body = json.dumps({"commands": [*commands, {"do": "free", "ids": list(range(6))}], "inputs": [tensor]}).encode()
        answer = answered("POST", f"{path}/commands", body, None)
        assert answer.status == 200 or 400 <= answer.status < 500, answer.body
        description = json.loads(answered("GET", path, b"", None).body)
        assert description["objects"] == description["bytes"] == 0
    finally:
        answered("DELETE", path, b"", None)


NUMBER = st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.booleans() | st.none()
VALUE = st.recursive(NUMBER | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@settings(max_examples=200 * FUZZ, deadline=None)
@given(VALUE, st.integers(0, 200), st.integers(0, 127))
def test_json_is_read_as_python_reads_it(value: Any, at: int, character: int) -> None:
    text = json.dumps(value, ensure_ascii=False)
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    assert repr(json_text.parse(raw)) == repr(json.loads(text))
    damaged = bytearray(raw)
    damaged[at % len(damaged)] = character
    try:
        parsed = json_text.parse(bytes(damaged))
    except ValueError:
        return
    assert repr(parsed) == repr(json.loads(damaged)) or any(len(part) > 18 for part in re.findall(rb"[0-9]+", damaged))
