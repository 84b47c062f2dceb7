"""The frame: golden bytes, every datatype both ways, and a sentence for everything that does not fit."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_protocol import wire
from opbox_protocol.datatypes import DATATYPES
from opbox_protocol.errors import WireError
from opbox_protocol.excerpt import excerpt
from opbox_service import json_text
from tests.plain_json import plain_tensors


def frame(header: dict[str, Any], tensors: dict[str, Any], key: str = "inputs") -> tuple[bytes, int]:
    head, buffers = wire.encode(header, tensors, key)
    body = head + b"".join(buffers)
    assert len(body) == wire.frame_size(head, buffers)
    return body, len(head)


def test_golden_bytes() -> None:
    body, length = frame({"id": "7"}, {"x": np.array([[1.0, 2.0]], np.float32), "y": np.array([3], np.int16)})
    text = (
        b'{"id":"7","inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","parameters":{"binary_data_size":8}},'
        b'{"name":"y","shape":[1],"datatype":"INT16","parameters":{"binary_data_size":2}}],'
        b'"parameters":{"tensor_alignment":64}}'
    )
    assert body[:length] == text.ljust(256)
    assert length == 256
    assert body[length:] == bytes.fromhex("0000803f00000040") + bytes(56) + bytes.fromhex("0300")


@pytest.mark.parametrize("datatype", DATATYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (5, 3)])
def test_every_datatype_goes_both_ways(datatype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(DATATYPES[datatype])
    body, length = frame({}, {"first": np.ones(3, np.uint8), "x": values})
    got = wire.decode(body, length).tensors["x"]
    assert got.dtype == values.dtype
    assert got.shape == shape
    np.testing.assert_array_equal(got, values)
    listed = wire.decode(json.dumps({"inputs": plain_tensors({"x": values})}).encode()).tensors["x"]
    assert listed.dtype == values.dtype
    np.testing.assert_array_equal(listed, values)


def listed(datatype: str, *values: Any) -> Any:
    """What `values` are as a tensor of plain JSON, read as a server reads it."""
    header = {"inputs": [{"name": "x", "shape": [len(values)], "datatype": datatype, "data": values}]}
    places = wire.tensor_places(json_text.parse(json.dumps(header).encode()), 0, 0, "inputs", wire.NO_LIMITS)
    return wire.tensors_at(places, memoryview(b""))["x"]


def written(tensor: Any) -> Any:
    """The values of a tensor in a server's answer of plain JSON."""
    return json.loads(b"".join(json_text.write_tensors({}, {"x": tensor})))["outputs"][0]["data"]


@pytest.mark.parametrize("datatype", [name for name, dtype in DATATYPES.items() if dtype.kind in "iu"])
def test_integers_of_plain_json_reach_to_the_ends_of_their_type(datatype: str) -> None:
    limits = np.iinfo(DATATYPES[datatype])
    tensor = listed(datatype, limits.min, limits.max)
    assert tensor.dtype == DATATYPES[datatype]
    assert tensor.tolist() == written(tensor) == [limits.min, limits.max]
    assert plain_tensors({"x": tensor})[0]["data"] == [limits.min, limits.max]
    for beyond in (limits.min - 1, limits.max + 1, float(limits.min) * 2 - 1, float(limits.max) * 2 + 1):
        with pytest.raises(WireError, match=rf"\({limits.min} to {limits.max}\), got "):
            listed(datatype, beyond)


@pytest.mark.parametrize("datatype", ["FP16", "BF16", "FP32", "FP64"])
def test_numbers_of_plain_json_reach_to_the_ends_of_their_type(datatype: str) -> None:
    limits = ml_dtypes.finfo(DATATYPES[datatype])
    values = [float(value) for value in (limits.min, limits.max, limits.tiny, limits.smallest_subnormal, limits.eps)]
    tensor = listed(datatype, *values)
    assert tensor.astype(np.float64).tolist() == values
    assert listed(datatype, *written(tensor)).tobytes() == tensor.tobytes()
    if datatype != "FP64":  # rounded, as NumPy and MXNet do
        assert listed(datatype, 2 * values[1], -2 * values[1]).tolist() == [np.inf, -np.inf]


def test_tensors_are_aligned_views_of_the_body() -> None:
    body, length = frame({}, {"a": np.ones(3, np.uint8), "b": np.ones(5, np.float64)})
    buffer = np.frombuffer(body, np.uint8)
    got = wire.decode(buffer, length).tensors
    for array in got.values():
        assert (array.ctypes.data - buffer.ctypes.data) % 64 == 0
        assert np.shares_memory(array, buffer)


def test_strided_and_big_endian_arrays_travel_as_little_endian_rows() -> None:
    strided = np.arange(12, dtype=">f4").reshape(3, 4)[:, ::2]
    body, length = frame({}, {"x": strided})
    np.testing.assert_array_equal(wire.decode(body, length).tensors["x"], strided)


def test_open_inference_protocol_frames_have_no_gaps() -> None:
    head = json.dumps(
        {
            "inputs": [
                {"name": "a", "shape": [3], "datatype": "UINT8", "parameters": {"binary_data_size": 3}},
                {"name": "b", "shape": [1], "datatype": "FP32", "parameters": {"binary_data_size": 4}},
            ]
        }
    ).encode()
    got = wire.decode(head + b"\x01\x02\x03" + np.float32(5).tobytes(), len(head)).tensors
    assert got["a"].tolist() == [1, 2, 3]
    assert got["b"].tolist() == [5.0]


def test_not_a_number_passes_unharmed() -> None:
    values = np.array([np.nan, np.inf, -np.inf], np.float32)
    body, length = frame({}, {"x": values})
    np.testing.assert_array_equal(wire.decode(body, length).tensors["x"], values)
    text = json.dumps({"inputs": plain_tensors({"x": values})}).encode()
    np.testing.assert_array_equal(wire.decode(text).tensors["x"], values)


def entry(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    fields.update(changes)
    return {key: value for key, value in fields.items() if value is not ...}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{", "malformed JSON"),
        (b"\xff\xfe", "malformed JSON"),
        (b"[]", "expected a JSON object, got list"),
        ({"inputs": 3}, "inputs: expected a list"),
        ({"inputs": [3]}, "inputs[0]: expected an object"),
        ({"inputs": [entry(name=3)]}, "name: expected a string"),
        ({"inputs": [entry(shape="2")]}, "shape: expected a list of integers"),
        ({"inputs": [entry(shape=[-1])]}, "shape: expected a list of integers"),
        ({"inputs": [entry(shape=[True])]}, "shape: expected a list of integers"),
        ({"inputs": [entry(shape=[1] * 40)]}, "at most 32 dimensions, got 40"),
        ({"inputs": [entry(shape=[1 << 40, 1 << 40])]}, "at most 4294967296 bytes"),
        (
            {"inputs": [entry(shape=[1 << 62, 4, 0], data=[[]])]},
            "shape: expected sizes whose product, zeros left out, is",
        ),
        ({"inputs": [entry(shape=[0, 1 << 64], data=[])]}, "shape: expected sizes whose product, zeros left out, is"),
        (
            {"inputs": [entry(shape=[1 << 62, 0], data=..., parameters={"binary_data_size": 0})]},
            "shape: expected sizes whose product, zeros left out, is less than 2**63 bytes, got (46",
        ),
        ({"inputs": [entry(datatype="FP8")]}, "datatype 'FP8' is unknown"),
        ({"inputs": [entry(datatype=["FP32"])]}, "is unknown"),
        ({"inputs": [entry(data=...)]}, "expected a list under data"),
        ({"inputs": [entry(data=[1, 2, 3])]}, "expected 2 values for shape (2,), got 3"),
        ({"inputs": [entry(data=[[1], [1, 2]])]}, "in even rows"),
        ({"inputs": [entry(data=["a", "b"])]}, "expected numbers"),
        ({"inputs": [entry(datatype="INT8", data=[1, 300])]}, "values of int8 (-128 to 127), got 300"),
        ({"inputs": [entry(datatype="INT64", data=[1, 1 << 70])]}, "values of int64"),
        ({"inputs": [entry(datatype="INT32", data=[1, 1.5])]}, "expected integers"),
        ({"inputs": [entry(datatype="BOOL", data=[1, 2])]}, "expected booleans"),
        ({"inputs": [entry(), entry()]}, "tensor 'x' is given twice"),
        ({"inputs": [entry(parameters=3)]}, "parameters: expected an object"),
        ({"inputs": [entry(parameters={"binary_data_size": 8})]}, "either data or binary_data_size"),
        ({"inputs": [entry(data=..., parameters={"binary_data_size": 9})]}, "binary_data_size: expected 8"),
        (
            {"inputs": [entry(data=..., parameters={"binary_data_size": 8})]},
            "expected 8 bytes behind the header, got 0",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(header: Any, says: str) -> None:
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    with pytest.raises(WireError) as caught:
        wire.decode(body, limits=wire.Limits())
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("datatype", DATATYPES)
def test_no_shape_and_no_number_is_worth_a_warning(datatype: str) -> None:
    shapes = (
        [],
        [0],
        [1],
        [2],
        [1 << 62],
        [1 << 62, 0],
        [1 << 31, 1 << 31, 4],
        [1 << 63],
        [(1 << 64) - 1, 0],
        [0] * 32,
    )
    numbers = (0, 1, -1, 0.5, 1e39, -1e39, 1e300, 1e-320, 65520.0, 1 << 63, 1 << 70, -(1 << 63), 10**400, "NaN", None)
    rows: list[Any] = [[], [[]], [[], []], *([number] for number in numbers), [math.inf, math.nan], [1, 1e39], [[1], 2]]
    for shape in shapes:
        for data in (..., *rows):
            for size in (..., 0, 4, 1 << 62):
                parameters = ... if size is ... else {"binary_data_size": size}
                header = {"inputs": [entry(shape=shape, datatype=datatype, data=data, parameters=parameters)]}
                for limits in (wire.Limits(), wire.Limits(tensor_bytes=1 << 70)):
                    with contextlib.suppress(WireError):
                        wire.decode(json.dumps(header).encode(), limits=limits)


def test_lengths_that_lie() -> None:
    body, length = frame({}, {"x": np.ones(4, np.float32)})
    for wrong in (-1, len(body) + 1):
        with pytest.raises(WireError, match="Inference-Header-Content-Length: expected at most"):
            wire.decode(body, wrong)
    with pytest.raises(WireError, match="expected 16 bytes behind the header, got 15"):
        wire.decode(body[:-1], length)
    with pytest.raises(WireError, match=f"expected {len(body)} bytes for its header and tensors, got {len(body) + 3}"):
        wire.decode(body + b"abc", length)


def test_limits_are_checked_before_parsing() -> None:
    with pytest.raises(WireError, match="nested at most 64 deep"):
        wire.decode(b"[" * 100_000, limits=wire.Limits())
    with pytest.raises(WireError, match="expected at most 10 bytes"):
        wire.decode(b'{"a":          1}', limits=wire.Limits(header_bytes=10))
    many = json.dumps({"inputs": [entry(name=str(i)) for i in range(5)]}).encode()
    with pytest.raises(WireError, match="at most 4 tensors, got 5"):
        wire.decode(many, limits=wire.Limits(tensors=4))


def test_brackets_in_strings_are_not_depth() -> None:
    text = json.dumps({"a": "[" * 1000 + '\\"' + "{" * 1000}).encode()
    assert wire.decode(text, limits=wire.Limits()).header["a"].startswith("[")


@pytest.mark.parametrize("inner", ["", "a", "[", "]", '"', "\\", '"[', "]{", '\\"[[[['])
@pytest.mark.parametrize("depth", [62, 63])
def test_depth_is_counted_whatever_the_strings_hold(inner: str, depth: int) -> None:
    """Strings with and without brackets, quotes and backslashes, around and in brackets: 64 levels, and 65."""
    nested: Any = [inner, {inner: inner}, inner]
    for _ in range(depth - 1):
        nested = [inner, nested, inner, [inner], {}]
    text = json.dumps({"a": nested}).encode()
    if depth == 62:
        assert wire.decode(text, limits=wire.Limits()).header == {"a": nested}
    else:
        with pytest.raises(WireError, match="nested at most 64 deep"):
            wire.decode(text, limits=wire.Limits())


def test_an_element_type_that_cannot_travel() -> None:
    with pytest.raises(WireError, match="element type complex64 cannot travel"):
        wire.encode({}, {"x": np.zeros(2, np.complex64)})


def test_bfloat16_keeps_its_bits() -> None:
    values = np.array([1.0, 3.140625, -2.5], ml_dtypes.bfloat16)
    body, length = frame({}, {"x": values})
    assert wire.decode(body, length).tensors["x"].tobytes() == values.tobytes()


def read_or_refused(body: Any, length: int) -> wire.Frame | str:
    """The frame, or the sentence that refuses it; any other exception is the test's failure."""
    try:
        return wire.decode(body, length, limits=wire.Limits())
    except WireError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400), st.integers(-3, 500))
def test_random_frames_are_read_or_refused(body: bytes, length: int) -> None:
    assert read_or_refused(body, length)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_frames_with_one_byte_changed_are_read_or_refused(data: st.DataObject) -> None:
    body, length = frame({"a": [1, {"b": 2}]}, {"x": np.arange(5, dtype=np.int32), "y": np.ones((2, 2), np.float16)})
    changed = bytearray(body)
    changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    got = read_or_refused(changed, length)
    assert got
    if isinstance(got, wire.Frame):
        assert all(array.nbytes <= len(body) for array in got.tensors.values())


@pytest.mark.parametrize("datatype", ["FP32", "INT32", "BOOL"])
def test_long_lists_become_arrays_in_pieces(monkeypatch: pytest.MonkeyPatch, datatype: str) -> None:
    monkeypatch.setattr(wire, "LISTED", 4)
    values = (np.arange(42) % 2).reshape(7, 2, 3)
    for data in (values.tolist(), values.reshape(-1).tolist(), values.reshape(1, 1, 42).tolist()):
        entry = {"name": "x", "shape": [7, 2, 3], "datatype": datatype, "data": data}
        read = wire.decode(json.dumps({"inputs": [entry]}).encode()).tensors["x"]
        assert read.tolist() == values.tolist()
    for uneven in ([[0] * 9, [0] * 8], [[[0] * 9], [0] * 9], [0] * 9 + [[0] * 9], [[0]] * 9 + [0] * 9):
        entry = {"name": "x", "shape": [18], "datatype": datatype, "data": uneven}
        with pytest.raises(WireError):
            wire.decode(json.dumps({"inputs": [entry]}).encode())


def test_an_error_shows_the_beginning_of_what_came() -> None:
    shape = ["a"] * 100_000
    with pytest.raises(WireError) as caught:
        wire.decode(json.dumps({"inputs": [{"name": "x", "shape": shape, "datatype": "FP32"}]}).encode())
    assert len(str(caught.value)) < 300
    assert excerpt({"a": [1, (2,), ()], "b": None}) == repr({"a": [1, (2,), ()], "b": None})
    assert excerpt("x" * 100, 5) == "'xxxx…"
