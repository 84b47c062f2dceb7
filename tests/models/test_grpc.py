"""The Open Inference Protocol by gRPC, by grpcio alone: every method."""

from __future__ import annotations

import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from opbox_service.grpc.messages import message_class
from tests.contract.live import Live
from tests.models.conftest import INPUT, PATIENCE_S
from tests.models.folders import CLASSES, FEATURES, INDEX, UNKNOWN, expected, perceptron, save
from tests.models.grpc_client import Calls, Request, metadata, request, values

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


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
    unknown = UNKNOWN.format("'nothing'", INDEX)
    assert call.refusal("RepositoryModelLoad", {"model_name": "nothing"}, "boss") == ("NOT_FOUND", unknown)
    _, sentence = call.refusal("RepositoryIndex", {"repository_name": "other"})
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


def test_calls_count_and_have_ids_as_requests_do(call: Calls, server: Live) -> None:
    label = 'opbox_requests_total{method="POST",route="/v2/models/{model}/infer",status="200"}'
    before = server.metric(label)
    _, ended = call.callable("ModelInfer").with_call(
        request(X), metadata=(*metadata("ann"), ("x-request-id", "of-mine")), timeout=120
    )
    assert ("x-request-id", "of-mine") in [tuple(pair) for pair in ended.trailing_metadata()]
    assert server.metric(label) == before + 1
