"""gRPC: what the server refuses, and the sentences in which it says why."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from opbox_protocol.errors import STATUSES
from opbox_service.grpc.infer_requests import InferRequestReader
from opbox_service.grpc.statuses import STATUS_CODES
from opbox_service.settings import Settings
from tests.models.folders import FEATURES, expected
from tests.models.grpc_client import Calls, Request, metadata, request, values

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


def _inputs(**fields: Any) -> Any:
    """A request with one input without its bytes."""
    message = Request(model_name="plain")
    message.inputs.add(**{"name": "data", "datatype": "FP32", "shape": X.shape, **fields})
    return message


def _with(message: Any, **fields: Any) -> Any:
    """A message with further fields; a callable changes it."""
    for name, value in fields.items():
        if callable(value):
            value(getattr(message, name))
        else:
            setattr(message, name, value)
    return message


BAD = [
    (_with(request(X), model_name=""), "the model's name: expected one of RepositoryIndex, got none"),
    (_with(request(X), inputs=lambda inputs: inputs[0].ClearField("name")),
     "input 'data' is missing: expected tensors named data"),
    (_with(request(X), inputs=lambda inputs: setattr(inputs[0], "datatype", "")), "datatype '' is unknown: expected"),
    (_with(request(X), inputs=lambda inputs: setattr(inputs[0], "datatype", "BYTES")),
     "got BYTES: no model takes texts"),
    (_with(request(X), inputs=lambda inputs: setattr(inputs[0], "datatype", "FP64")),
     "input 'data': raw_input_contents: expected 96 bytes by its shape and datatype, got 48"),
    (_with(request(X), inputs=lambda inputs: inputs[0].shape.append(-1)),
     "tensor 'data': shape: expected a list of integers of 0 or more, got [3, 4, -1]"),
    (_with(request(X), inputs=lambda inputs: inputs[0].shape.append(2)),
     "input 'data': raw_input_contents: expected 96 bytes by its shape and datatype, got 48"),
    (_with(request(X), inputs=lambda inputs: inputs[0].shape.__setitem__(slice(None), [1 << 62, 4])),
     "input 'data': raw_input_contents: expected "),
    (_with(request(X), inputs=lambda inputs: inputs[0].shape.extend([1] * 10)), "at most 8 dimensions, got 12"),
    (_with(request(X), inputs=lambda inputs: inputs[0].contents.fp32_contents.append(1)),
     "input 'data': expected no contents beside raw_input_contents, got some: send either"),
    (_with(request(X), inputs=lambda inputs: inputs[0].parameters["a"]), "parameters: 'a': expected a value, got none"),
    (_with(request(X), inputs=lambda inputs: inputs.add(name="data", datatype="FP32", shape=[0])),
     "raw_input_contents: expected 2, one for each input, got 1"),
    (_with(request(X), raw_input_contents=lambda raw: raw.append(b"")),
     "raw_input_contents: expected 1, one for each input, got 2"),
    (_with(request(X), raw_input_contents=lambda raw: raw.clear()),
     "input 'data': expected its values in raw_input_contents or contents, got none"),
    (_with(request(X), outputs=lambda outputs: outputs.add(name="nothing")),
     "output 'nothing' is none of the model's: expected softmax_output"),
    (_with(request(X), outputs=lambda outputs: setattr(
        outputs.add(name="softmax_output").parameters["classification"], "int64_param", 0)),
     "outputs: 'softmax_output': classification: expected a number of classes, got 0"),
    (_with(request(X), outputs=lambda outputs: outputs.add(name="softmax_output").parameters["classification"]),
     "parameters: 'classification': expected a value, got none"),
    (_with(request(X), parameters=lambda parameters: parameters["x"]), "parameters: 'x': expected a value, got none"),
    (_with(request(X), id="i" * 300), "id: expected at most 256 characters, got "),
    (_inputs(), "input 'data': expected its values in raw_input_contents or contents, got none"),
    (_with(_inputs(), inputs=lambda inputs: inputs[0].contents.fp64_contents.append(1)),
     "input 'data': contents: expected fp32_contents for FP32, got fp64_contents"),
    (_with(_inputs(), inputs=lambda inputs: inputs[0].contents.fp32_contents.append(1)),
     "input 'data': contents: expected 12 values by its shape, got 1"),
    (_with(_inputs(datatype="FP16"), inputs=lambda inputs: inputs[0].contents.fp32_contents.append(1)),
     "input 'data': expected FP16 in raw_input_contents, got fp32_contents"),
    (_with(_inputs(datatype="INT8", shape=[1]), inputs=lambda inputs: inputs[0].contents.int_contents.append(200)),
     "input 'data': contents: expected values of INT8 (-128 to 127), got 200"),
    (_with(_inputs(datatype="UINT16", shape=[1]), inputs=lambda inputs: inputs[0].contents.uint_contents.append(70000)),
     "input 'data': contents: expected values of UINT16 (0 to 65535), got 70000"),
    (_with(_inputs(), inputs=lambda inputs: inputs[0].contents.bytes_contents.append(b"a")),
     "input 'data': contents: expected fp32_contents for FP32, got bytes_contents"),
    (b"\xff", "the message: expected a inference.ModelInferRequest, got 1 bytes that are none"),
    (b"\x2a\x05", "the message: expected a inference.ModelInferRequest, got 2 bytes that are none"),
    (b"\x0a\x01\xff", "the message: expected a inference.ModelInferRequest, got 3 bytes that are none"),
    (b"\x2a\x03\x0a\x01\xff", "the message: expected a inference.ModelInferRequest.InferInputTensor, got 3 bytes"),
    (b"\x00\x00", "the message: expected a inference.ModelInferRequest, got 2 bytes that are none"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "sentence"), BAD, ids=range(len(BAD)))
def test_bad_input(call: Calls, message: Any, sentence: str) -> None:
    code, got = call.refusal("ModelInfer", message)
    assert (code, sentence in got) == ("INVALID_ARGUMENT", True), got


@pytest.mark.parametrize(
    ("parameter", "value", "sentence"),
    [("sequence_id", 7, "sequences are not served"), ("sequence_start", True, "sequences are not served")],
)
def test_parameters_that_are_not_served(call: Calls, parameter: str, value: Any, sentence: str) -> None:
    message = request(X)
    kind = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
    setattr(message.parameters[parameter], kind, value)
    code, got = call.refusal("ModelInfer", message)
    assert (code, sentence in got) == ("INVALID_ARGUMENT", True), got


@pytest.mark.parametrize(
    ("datatype", "field", "listed"),
    [
        ("BOOL", "bool_contents", [True, False, True, True]),
        ("INT8", "int_contents", [-128, 127, 0, -1]),
        ("INT16", "int_contents", [-32768, 32767, 0, -1]),
        ("INT32", "int_contents", [-(2**31), 2**31 - 1, 0, -1]),
        ("INT64", "int64_contents", [-(2**63), 2**63 - 1, 0, -1]),
        ("UINT8", "uint_contents", [255, 0, 1, 2]),
        ("UINT16", "uint_contents", [65535, 0, 1, 2]),
        ("UINT32", "uint_contents", [2**32 - 1, 0, 1, 2]),
        ("UINT64", "uint64_contents", [2**64 - 1, 0, 1, 2]),
        ("FP32", "fp32_contents", [0.1, -0.0, float("inf"), 1e-45]),
        ("FP64", "fp64_contents", [0.1, -0.0, float("inf"), 5e-324]),
    ],
)  # fmt: skip
def test_contents_of_every_type(datatype: str, field: str, listed: list[Any]) -> None:
    message = Request(model_name="m")
    tensor = message.inputs.add(name="x", datatype=datatype, shape=[2, 2])
    getattr(tensor.contents, field).extend(listed)
    body = InferRequestReader(Settings()).read(message.SerializeToString())
    dtype = np.dtype({"BOOL": "?", "FP32": "<f4", "FP64": "<f8"}.get(datatype, f"<{datatype[0].lower()}1"))
    if datatype.lstrip("U").startswith("INT"):
        dtype = np.dtype(datatype.lower())
    assert b"".join(body.tensors) == np.array(listed, dtype).tobytes()
    assert f'"binary_data_size":{4 * dtype.itemsize}'.encode() in body.header


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (b"\x2a\x00" * 9, "inputs: expected at most 8 tensors, got 9"),
        (b"\x32\x00" * 9, "outputs: expected at most 8 tensors, got 9"),
        (b"\x3a\x00" * 9, "raw_input_contents: expected at most 8 tensors, got 9"),
        (b"\x0a\xd0\x0f" + b"m" * 2000, "the request without its tensors: expected at most 1024 bytes, got 2003"),
        (b"\x2a\xd3\x0f\x0a\xd0\x0f" + b"n" * 2000, "the request without its tensors: expected at most 1024 bytes, "),
        (b"\x2a\xd3\x0f\x2a\xd0\x0f\x0a\xcd\x0f" + b"2" * 1997,
         "contents: expected at most 1024 bytes of values, got 2000: send "),
    ],
)  # fmt: skip
def test_limits_of_what_protobuf_would_read(message: bytes, sentence: str) -> None:
    """Checked before, as a message of 2 bytes takes a hundred when it has been read."""
    reader = InferRequestReader(Settings(max_tensors=8, max_header_bytes=1024, max_json_bytes=1024))
    with pytest.raises(Exception, match=sentence) as raised:
        reader.read(message)
    assert type(raised.value).__name__ == "LimitError"


def test_a_message_that_is_too_large(call: Calls) -> None:
    code, _ = call.refusal("ModelInfer", b"\x3a\xff\xff\xff\x20" + bytes((1 << 26) + (1 << 22)))
    assert code == "RESOURCE_EXHAUSTED"


def test_a_compressed_message(call: Calls) -> None:
    answer = call("ModelInfer", request(X), compression=grpc.Compression.Gzip)
    np.testing.assert_array_equal(values(answer), expected(X))
    with pytest.raises(grpc.RpcError) as raised:  # its content is too large, compressed it is not
        call("ModelInfer", bytes((1 << 26) + (1 << 22)), compression=grpc.Compression.Gzip)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_errors_of_models(call: Calls) -> None:
    assert call.refusal("ModelInfer", request(X, "nothing"))[0] == "NOT_FOUND"
    assert call.refusal("ModelInfer", request(X, "anns"), "py")[0] == "NOT_FOUND"
    assert call.refusal("ModelInfer", request(X, model_version="7"))[0] == "NOT_FOUND"
    assert call.refusal("ModelInfer", request(X, "broken"))[0] == "UNAVAILABLE"
    assert call.refusal("ModelInfer", request(X), "monitor")[0] == "PERMISSION_DENIED"
    assert call.refusal("ModelMetadata", {"name": "x/versions/1"})[0] == "NOT_FOUND"
    code, sentence = call.refusal("ModelInfer", request(X, "ü" * 5000))
    assert (code, len(sentence) < 4096) == ("NOT_FOUND", True)


def test_every_status_has_one() -> None:
    assert set(STATUS_CODES) >= set(STATUSES)


@pytest.mark.parametrize("name", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("owners", [("ann", "bob"), ("bob", "ann"), ("ann", "ann")])
def test_two_tokens_are_refused(call: Calls, name: str, owners: tuple[str, str]) -> None:
    sent = [pair for owner in owners for pair in metadata(owner)]

    def ask() -> None:
        if name == "ModelInfer":
            call.callable(name)(request(X), metadata=sent, timeout=120)
        else:
            list(call.callable(name)(iter([request(X)]), metadata=sent, timeout=120))

    with pytest.raises(grpc.RpcError) as refused:
        ask()
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "Authorization: expected one such header, got 2"
