"""The Open Inference Protocol by gRPC, by grpcio alone: every method, bad input, tokens, limits, TLS, the end."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import STATUSES, BadRequestError
from opbox_service.app import create_app
from opbox_service.grpc.infer_requests import InferRequestReader
from opbox_service.grpc.messages import METHODS, message_class
from opbox_service.grpc.server import GrpcServer, decrypted
from opbox_service.grpc.statuses import STATUS_CODES
from opbox_service.serve import grpc_server
from opbox_service.settings import Settings
from tests.contract.live import TOKENS, Live
from tests.models.conftest import INPUT, PATIENCE_S, address_of
from tests.models.folders import CLASSES, FEATURES, expected, perceptron, save
from tests.models.grpc_client import Calls, Request, calls, metadata, request, values

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
TLS = Path(__file__).parents[1] / "link" / "tls"


@pytest.fixture(scope="module")
def call(grpc_address: str) -> Iterator[Calls]:
    with calls(grpc_address) as client:
        yield client


def test_health_needs_no_token(call: Calls) -> None:
    assert call("ServerLive", owner=None).live
    assert call("ServerReady", owner=None).ready
    assert call("ModelReady", {"name": "plain"}).ready
    assert call("ModelReady", {"name": "versions", "version": "1"}).ready
    for name, version in (("nothing", ""), ("broken", ""), ("plain", "7"), ("x/versions/1", "")):
        assert not call("ModelReady", {"name": name, "version": version}).ready


def test_metadata(call: Calls, server: Live) -> None:
    about = call("ServerMetadata")
    assert (about.name, [*about.extensions]) == ("opbox", server.json("GET", "/v2").header["extensions"])
    model = call("ModelMetadata", {"name": "plain"})
    assert (model.name, [*model.versions], model.platform) == ("plain", ["1"], "opbox")
    (data,) = model.inputs
    assert (data.name, data.datatype, [*data.shape]) == ("data", "FP32", [-1, FEATURES])
    assert [output.name for output in model.outputs] == ["softmax_output"]
    config = call("ModelConfig", {"name": "batched"}).config
    assert (config.name, config.max_batch_size, [*config.input[0].dims]) == ("batched", 8, [FEATURES])
    assert config.input[0].data_type == 11  # TYPE_FP32


def test_infer(call: Calls) -> None:
    answer = call("ModelInfer", request(X, id="seven"))
    assert (answer.model_name, answer.model_version, answer.id) == ("plain", "1", "seven")
    assert (answer.outputs[0].name, [*answer.outputs[0].shape]) == ("softmax_output", [3, CLASSES])
    np.testing.assert_array_equal(values(answer), expected(X))


def test_values_in_contents(call: Calls) -> None:
    message = Request(model_name="plain")
    message.inputs.add(name="data", datatype="FP32", shape=X.shape).contents.fp32_contents.extend(X.reshape(-1))
    np.testing.assert_array_equal(values(call("ModelInfer", message)), expected(X))


def test_large_tensors(call: Calls) -> None:
    """Of 16 MiB each way: they go through a worker's buffers, and are written by threads."""
    x = np.random.default_rng(1).normal(size=(1 << 20, FEATURES)).astype(np.float32)
    answer = call("ModelInfer", request(x))
    np.testing.assert_array_equal(values(answer)[:1000], expected(x[:1000]))
    assert values(answer).shape == (1 << 20, CLASSES)


def test_versions(call: Calls) -> None:
    newest, oldest = (call("ModelInfer", request(X, "versions", model_version=version)) for version in ("", "1"))
    assert (newest.model_version, oldest.model_version) == ("2", "1")
    np.testing.assert_array_equal(values(newest), expected(X, 2.0))
    np.testing.assert_array_equal(values(oldest), expected(X))


def test_classification(call: Calls) -> None:
    message = request(X, "anns")
    message.outputs.add(name="softmax_output").parameters["classification"].int64_param = 1
    answer = call("ModelInfer", message)
    assert (answer.outputs[0].datatype, [*answer.outputs[0].shape]) == ("BYTES", [3, 1])
    names = [":cat", ":dog", ""]
    texts = [f"{row.max():f}:{row.argmax()}{names[row.argmax()]}".encode() for row in expected(X)]
    assert answer.raw_output_contents[0] == b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def test_statistics(call: Calls) -> None:
    def figures() -> Any:
        (row,) = call("ModelStatistics", {"name": "plain"}).model_stats
        return row

    before = figures()
    call("ModelInfer", request(X))
    until = time.monotonic() + PATIENCE_S
    while (after := figures()).inference_count == before.inference_count:  # it counts when it has answered
        assert time.monotonic() < until
    assert after.inference_count - before.inference_count == 3
    assert after.inference_stats.success.count - before.inference_stats.success.count == 1
    assert {row.name for row in call("ModelStatistics").model_stats} >= {"plain", "batched", "anns"}
    assert "anns" not in {row.name for row in call("ModelStatistics", owner="py").model_stats}


def test_the_repository(call: Calls, folder: Path) -> None:
    save(folder / "grpcs", *perceptron(), toml=INPUT)
    assert call.refusal("RepositoryModelLoad", {"model_name": "grpcs"}, "ann")[0] == "PERMISSION_DENIED"
    call("RepositoryModelLoad", {"model_name": "grpcs"}, "boss")
    rows = {(row.name, row.version): row.state for row in call("RepositoryIndex").models}
    assert (rows["grpcs", "1"], rows["broken", "1"]) == ("READY", "UNAVAILABLE")
    assert {row.state for row in call("RepositoryIndex", {"ready": True}).models} == {"READY"}
    call("RepositoryModelUnload", {"model_name": "grpcs"}, "boss")
    assert call.refusal("ModelInfer", request(X, "grpcs")) == ("UNAVAILABLE", "model 'grpcs': not ready: unloaded")
    code, sentence = call.refusal("RepositoryModelLoad", {"model_name": "nothing"}, "boss")
    assert (code, sentence[:16]) == ("NOT_FOUND", "model 'nothing':")
    code, sentence = call.refusal("RepositoryIndex", {"repository_name": "other"})
    assert sentence == "repository_name: expected none, as a server has one repository, got 'other'"
    assert call.refusal("RepositoryModelUnload", owner="boss")[1].startswith("model_name: expected one of ")


def test_a_stream(call: Calls) -> None:
    """Answers come in the order of their requests; a mistake is answered in its place."""
    messages = [request(X[:1] + i, model, id=str(i)) for i in range(40) for model in ("plain", "batched")]
    messages[7] = request(X[:, :2], id="wrong")
    answers = call.stream(messages)
    assert [answer.infer_response.id for answer in answers] == [message.id for message in messages]
    for i, answer in enumerate(answers):
        if i == 7:
            assert answer.error_message.startswith("input 'data': expected shape [-1, 4], got [3, 2]")
            continue
        assert answer.error_message == ""
        assert answer.infer_response.parameters["triton_final_response"].bool_param
        np.testing.assert_allclose(values(answer.infer_response), expected(X[:1] + i // 2), rtol=1e-6)  # batches round


def test_a_stream_that_ends_by_an_error(call: Calls) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        call.stream([request(X), request(X, "nothing"), request(X)], triton_grpc_error="true")
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


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
    [("sequence_id", 7, "sequences are not served"), ("sequence_start", True, "sequences are not served"),
     ("colour", "red", "unknown field 'colour'")],
)  # fmt: skip
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
        (b"\x2a\xd3\x0f\x2a\xd0\x0f" + b"2" * 2000, "contents: expected at most 1024 bytes of values, got 2000: send "),
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


@pytest.mark.parametrize("name", sorted(METHODS))
def test_no_token_and_a_wrong_one(call: Calls, name: str) -> None:
    if name in ("ServerLive", "ServerReady"):
        return
    message = message_class(METHODS[name].input_type)()
    for header, sentence in (
        ("", "token: expected "),
        ("Bearer wrong-token-of-22-letters", "token: expected one that "),
    ):
        sent = (("authorization", header),) if header else ()
        ask = iter([message]) if METHODS[name].client_streaming else message
        with pytest.raises(grpc.RpcError) as raised:
            list(answers) if isinstance(
                answers := call.callable(name)(ask, metadata=sent, timeout=120), Iterator
            ) else None
        assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert sentence in raised.value.details()


def test_a_message_without_a_token_is_not_read(grpc_address: str, call: Calls) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        call("ModelInfer", bytes(1 << 27), owner=None)  # more than any message may have
    assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_shared_memory_of_gpus_is_not_served(call: Calls) -> None:
    assert not call("CudaSharedMemoryStatus").regions
    assert call.refusal("CudaSharedMemoryStatus", {"name": "a"})[0] == "UNIMPLEMENTED"
    code, sentence = call.refusal("CudaSharedMemoryRegister", {"name": "a", "raw_handle": b"\xff", "byte_size": 4})
    assert (code, sentence[:19]) == ("UNIMPLEMENTED", "CUDA shared memory:")
    call("CudaSharedMemoryUnregister")


def test_shared_memory(call: Calls) -> None:
    segment = SharedMemory(create=True, size=2 * X.nbytes)
    try:
        assert segment.buf is not None
        segment.buf[: X.nbytes] = X.tobytes()
        region = {"name": "grpc", "key": f"/{segment.name.lstrip('/')}", "byte_size": 2 * X.nbytes}
        call("SystemSharedMemoryRegister", region)
        status = call("SystemSharedMemoryStatus", {"name": "grpc"}).regions["grpc"]
        assert {name: getattr(status, name) for name in region} == region
        assert "grpc" in call("SystemSharedMemoryStatus").regions
        assert "grpc" not in call("SystemSharedMemoryStatus", owner="py").regions
        message = Request(model_name="plain")
        tensor = message.inputs.add(name="data", datatype="FP32", shape=X.shape)
        output = message.outputs.add(name="softmax_output")
        for parameters, size, offset in ((tensor.parameters, X.nbytes, 0), (output.parameters, 36, X.nbytes)):
            parameters["shared_memory_region"].string_param = "grpc"
            parameters["shared_memory_byte_size"].int64_param = size
            parameters["shared_memory_offset"].int64_param = offset
        answer = call("ModelInfer", message)
        assert answer.outputs[0].parameters["shared_memory_region"].string_param == "grpc"
        assert [*answer.raw_output_contents] == [b""]
        got = np.frombuffer(bytes(segment.buf[X.nbytes : X.nbytes + 36]), np.float32).reshape(3, CLASSES)
        np.testing.assert_array_equal(got, expected(X))
        tensor.contents.fp32_contents.append(1)
        assert call.refusal("ModelInfer", message)[1].startswith("input 'data': expected no contents beside shared ")
        call("SystemSharedMemoryUnregister", {"name": "grpc"})
        assert "grpc" not in call("SystemSharedMemoryStatus").regions
        assert call.refusal("SystemSharedMemoryRegister", {"name": "grpc", "byte_size": 4})[0] == "INVALID_ARGUMENT"
    finally:
        segment.close()
        segment.unlink()


def test_settings_of_traces_and_the_log(call: Calls) -> None:
    settings = call("TraceSetting", {"model_name": "plain"}).settings
    assert [*settings["trace_level"].value] == ["OFF"]
    change = message_class("TraceSettingRequest")()
    change.settings["trace_level"].value.append("OFF")
    assert [*call("TraceSetting", change).settings["trace_level"].value] == ["OFF"]
    change.settings["trace_level"].value[0] = "TIMESTAMPS"
    code, sentence = call.refusal("TraceSetting", change)
    assert (code, "this server writes no traces" in sentence) == ("INVALID_ARGUMENT", True), sentence
    log = call("LogSettings").settings
    assert (log["log_info"].bool_param, log["log_verbose_level"].uint32_param) == (True, 0)
    change = message_class("LogSettingsRequest")()
    change.settings["log_verbose_level"].uint32_param = 1
    assert call.refusal("LogSettings", change)[0] == "UNIMPLEMENTED"
    change.settings["log_info"]
    assert call.refusal("LogSettings", change)[1] == "parameters: 'log_info': expected a value, got none"


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


def test_calls_count_and_have_ids_as_requests_do(call: Calls, server: Live) -> None:
    label = 'opbox_requests_total{method="POST",route="/v2/models/{model}/infer",status="200"}'
    before = server.metric(label)
    _, ended = call.callable("ModelInfer").with_call(
        request(X), metadata=(*metadata("ann"), ("x-request-id", "of-mine")), timeout=120
    )
    assert ("x-request-id", "of-mine") in [tuple(pair) for pair in ended.trailing_metadata()]
    assert server.metric(label) == before + 1


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server by TLS whose model takes its time."""
    root = tmp_path_factory.mktemp("slow")
    nodes: list[dict[str, Any]] = [
        {"op": "null", "name": "data", "attrs": {}, "inputs": []},
        {"op": "null", "name": "w", "attrs": {}, "inputs": []},
        {"op": "broadcast_add", "name": "sum", "attrs": {}, "inputs": [[0, 0, 0], [1, 0, 0]]},
    ]
    for i in range(40):
        step = {"op": "_test_slow", "name": f"y{i}", "attrs": {"seconds": "0.1"}, "inputs": [[i + 2, 0, 0]]}
        nodes.append(step)
    net = {"nodes": nodes, "arg_nodes": [0, 1], "heads": [[len(nodes) - 1, 0, 0]], "attrs": {}}
    model = root / "models" / "slow"
    model.mkdir(parents=True)
    (model / "net-symbol.json").write_text(json.dumps(net))
    (model / "model.toml").write_text(INPUT)
    mx.nd.save(str(model / "net-0001.params"), {"arg:w": mx.nd.ones((1, FEATURES))})
    for name in ("fullchain.pem", "privkey.pem"):
        shutil.copy(TLS / name, root)
    live = Live(
        "none",
        root,
        OPBOX_MODELS=str(root / "models"),
        OPBOX_GRPC_PORT="0",
        OPBOX_SSL_CERTFILE=str(root / "fullchain.pem"),
        OPBOX_SSL_KEYFILE=str(root / "privkey.pem"),
    )
    yield live
    live.stop()


@pytest.fixture(scope="module")
def slow_call(slow: Live) -> Iterator[Calls]:
    trusted = grpc.ssl_channel_credentials((TLS / "fullchain.pem").read_bytes())
    with calls(address_of(slow), trusted) as client:
        until = time.monotonic() + PATIENCE_S
        while (row := client("RepositoryIndex").models[0]).state != "READY":
            assert row.reason in ("", "not loaded")
            assert time.monotonic() < until
            time.sleep(0.05)
        yield client


def test_a_deadline_and_a_client_that_goes_stop_the_run(slow: Live, slow_call: Calls) -> None:
    def metric(label: str) -> float:
        context = ssl.create_default_context(cafile=str(slow.folder / "fullchain.pem"))
        headers = {"Authorization": f"Bearer {TOKENS['monitor']}"}
        lines = httpx.get(f"{slow.url}/metrics", headers=headers, verify=context).text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == label)

    def wait_for(label: str, number: float) -> None:
        until = time.monotonic() + PATIENCE_S
        while metric(label) < number:
            assert time.monotonic() < until

    label = 'opbox_requests_total{method="POST",route="/v2/models/{model}/infer",status="499"}'
    with pytest.raises(grpc.RpcError) as raised:
        slow_call.callable("ModelInfer")(request(X, "slow"), metadata=metadata("ann"), timeout=0.3)
    assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_for(label, 1)
    later = slow_call.callable("ModelInfer").future(request(X, "slow"), metadata=metadata("ann"))
    wait_for("opbox_requests_in_flight", 2)  # the one that asks for it is the other
    later.cancel()
    wait_for(label, 2)


def test_tls_with_a_certificate_that_is_renewed(slow: Live, slow_call: Calls, tmp_path: Path) -> None:
    assert slow_call("ServerMetadata").name == "opbox"
    address = slow_call.address
    with calls(address) as plain:
        assert plain.refusal("ServerLive")[0] == "UNAVAILABLE"
    key, certificate = tmp_path / "key.pem", tmp_path / "new.pem"
    write_certificate(key, certificate)
    folder = slow.folder
    key.replace(folder / "privkey.pem")
    certificate.replace(folder / "fullchain.pem")
    trusted = grpc.ssl_channel_credentials((folder / "fullchain.pem").read_bytes())
    until = time.monotonic() + PATIENCE_S
    while True:
        with calls(address, trusted) as renewed:
            try:
                assert renewed("ServerLive").live
                break
            except grpc.RpcError:
                assert time.monotonic() < until


def write_certificate(key: Path, certificate: Path) -> None:
    """Write a key and a certificate of this machine's address, for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "renewed")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(7)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    key.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def test_an_encrypted_key(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    write_certificate(key, certificate)
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    plain = key.read_bytes()
    encrypted = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    assert b"ENCRYPTED" in encrypted
    assert decrypted(encrypted, "secret") == decrypted(plain, "") == plain


def test_a_stop_ends_streams(tmp_path: Path) -> None:
    live = Live("none", tmp_path, OPBOX_GRPC_PORT="0")
    with calls(address_of(live)) as client:
        open_ended = threading.Event()

        def requests() -> Iterator[Any]:
            yield request(X, "nothing")
            open_ended.wait(PATIENCE_S)

        answers = client.callable("ModelStreamInfer")(requests(), metadata=metadata("ann"), timeout=120)
        assert next(answers).error_message.startswith("model 'nothing':")
        assert live.stop() == 0
        with pytest.raises(grpc.RpcError) as raised:
            next(answers)
        open_ended.set()
    assert (raised.value.code().name, raised.value.details()[:22]) == ("UNAVAILABLE", "the server is stopping")


def test_a_server_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "opbox_service.grpc.server")
    settings = Settings(grpc_port=0, isolation="none")
    with pytest.raises(BadRequestError, match=r"grpc_port: expected the packages of opbox-service\[grpc\], got none"):
        grpc_server(create_app(settings), settings, None)


def test_a_port_that_is_taken() -> None:
    async def open_port(settings: Settings) -> None:
        GrpcServer(create_app(settings), settings, None).open()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = Settings(grpc_port=port, isolation="none")
        with pytest.raises(
            BadRequestError, match=f"expected a port that this server may listen on, got 127.0.0.1:{port}"
        ):
            asyncio.run(open_port(settings))
