"""Triton's own gRPC client, unchanged, against a server with a model; and its messages beside the server's."""

from __future__ import annotations

import asyncio
import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.models.conftest import address_of
from tests.models.folders import CLASSES, FEATURES, expected

# Its messages are of protobuf 6, and protobuf 7 says so.
pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore:Protobuf gencode version")]

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
ROOT = Path(__file__).parents[2]
CONFIGURATION = ("ModelConfig", "ModelInput", "ModelInstanceGroup", "ModelOutput")
"""Messages of which the server has the fields that it answers."""


@pytest.fixture(scope="module")
def address(server: Live) -> str:
    return address_of(server)


@pytest.fixture
def triton(address: str) -> Iterator[Any]:
    from tritonclient.grpc import InferenceServerClient

    with InferenceServerClient(address) as client:
        yield client


def headers(owner: str = "ann") -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[owner]}"}


def data(x: np.ndarray = X) -> Any:
    from tritonclient.grpc import InferInput

    return InferInput("data", list(x.shape), "FP32").set_data_from_numpy(x)


def test_health_and_metadata(triton: Any) -> None:
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("plain", headers=headers())
    assert not triton.is_model_ready("nothing", headers=headers())
    assert triton.get_server_metadata(headers=headers()).name == "opbox"
    metadata = triton.get_model_metadata("plain", headers=headers(), as_json=True)
    assert metadata["inputs"] == [{"name": "data", "datatype": "FP32", "shape": ["-1", str(FEATURES)]}]
    config = triton.get_model_config("plain", headers=headers()).config
    assert (config.name, [*config.input[0].dims]) == ("plain", [-1, FEATURES])


def test_infer(triton: Any) -> None:
    from tritonclient.grpc import InferRequestedOutput

    outputs = [InferRequestedOutput("softmax_output")]
    answer = triton.infer("plain", [data()], outputs=outputs, request_id="7", headers=headers())
    np.testing.assert_array_equal(answer.as_numpy("softmax_output"), expected(X))
    assert answer.get_response().id == "7"
    wanted = {"model_version": "1", "priority": 1, "timeout": 10**9, "compression_algorithm": "gzip"}
    answer = triton.infer("plain", [data()], headers=headers(), client_timeout=60, **wanted)
    np.testing.assert_array_equal(answer.as_numpy("softmax_output"), expected(X))


def test_infer_async(triton: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    triton.async_infer("plain", [data()], lambda result, error: answers.put((result, error)), headers=headers())
    result, error = answers.get(timeout=60)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("softmax_output"), expected(X))


def test_infer_by_asyncio(address: str) -> None:
    from tritonclient.grpc.aio import InferenceServerClient

    async def infer() -> list[Any]:
        async with InferenceServerClient(address) as client:
            assert await client.is_model_ready("plain", headers=headers())
            calls = [client.infer("plain", [data()], headers=headers()) for _ in range(8)]
            answers = await asyncio.gather(*calls)

            async def requests() -> Any:
                for i in range(3):
                    yield {"model_name": "plain", "inputs": [data(X + i)], "request_id": str(i)}

            streamed = [pair async for pair in client.stream_infer(requests(), headers=headers())]
            return [answer.as_numpy("softmax_output") for answer in answers] + [
                result.as_numpy("softmax_output") for result, error in streamed if error is None
            ]

    *plain, first, second, third = asyncio.run(infer())
    for values in plain:
        np.testing.assert_array_equal(values, expected(X))
    for i, values in enumerate((first, second, third)):
        np.testing.assert_array_equal(values, expected(X + i))


def test_a_stream(triton: Any) -> None:
    from tritonclient.utils import InferenceServerException

    answers: queue.Queue[Any] = queue.Queue()
    triton.start_stream(lambda result, error: answers.put((result, error)), headers=headers())
    for i in range(5):
        model = "nothing" if i == 3 else "plain"
        triton.async_stream_infer(model, [data(X + i)], request_id=str(i), enable_empty_final_response=i % 2 == 0)
    got = [answers.get(timeout=60) for _ in range(5)]
    triton.stop_stream()
    for i, (result, error) in enumerate(got):
        if i == 3:
            assert isinstance(error, InferenceServerException)
            assert "unknown model: 'nothing' is not found" in str(error)
        else:
            assert result.get_response().id == str(i)
            np.testing.assert_array_equal(result.as_numpy("softmax_output"), expected(X + i))


def test_classification(triton: Any) -> None:
    from tritonclient.grpc import InferRequestedOutput

    outputs = [InferRequestedOutput("softmax_output", class_count=1)]
    answer = triton.infer("plain", [data()], outputs=outputs, headers=headers())
    values = expected(X)
    best = [f"{row.max():f}:{row.argmax()}".encode() for row in values]
    assert answer.as_numpy("softmax_output")[:, 0].tolist() == best
    assert values.shape == (3, CLASSES)


def test_statistics_and_the_repository(triton: Any) -> None:
    triton.infer("plain", [data()], headers=headers())
    (row,) = triton.get_inference_statistics("plain", headers=headers()).model_stats
    assert row.inference_stats.success.count > 0
    rows = triton.get_model_repository_index(headers=headers()).models
    assert ("plain", "READY") in [(row.name, row.state) for row in rows]
    triton.unload_model("plain", headers=headers("boss"))
    assert not triton.is_model_ready("plain", headers=headers())
    triton.load_model("plain", headers=headers("boss"))
    assert triton.is_model_ready("plain", headers=headers())


def test_errors_are_its_exceptions(triton: Any) -> None:
    from tritonclient.utils import InferenceServerException

    cases = [
        (partial(triton.infer, "plain", [data(X[:, :2])], headers=headers()), "INVALID_ARGUMENT", "input 'data': exp"),
        (partial(triton.infer, "nothing", [data()], headers=headers()), "NOT_FOUND", "unknown model: 'nothing'"),
        (partial(triton.infer, "plain", [data()]), "UNAUTHENTICATED", "token: expected"),
        (partial(triton.infer, "plain", [data()], headers={"authorization": "Bearer another-token-of-22-letters"}),
         "UNAUTHENTICATED", "token: expected"),
        (partial(triton.load_model, "plain", headers=headers()), "PERMISSION_DENIED", "scope: expected"),
        (partial(triton.infer, "plain", [data()], sequence_id=7, headers=headers()), "INVALID_ARGUMENT", "sequences"),
        (partial(triton.register_cuda_shared_memory, "a", b"aA==", 0, 4, headers=headers()),
         "UNIMPLEMENTED", "CUDA shared memory"),
    ]  # fmt: skip
    for ask, status, sentence in cases:
        with pytest.raises(InferenceServerException, match=sentence) as raised:
            ask()
        assert raised.value.status() == f"StatusCode.{status}"


def test_shared_memory(triton: Any) -> None:
    from tritonclient.grpc import InferInput, InferRequestedOutput
    from tritonclient.utils import shared_memory

    size, key = 2 * X.nbytes, f"/opbox_grpc_{os.getpid()}"
    segment = shared_memory.create_shared_memory_region("grpc", key, size)
    try:
        shared_memory.set_shared_memory_region(segment, [X])
        triton.register_system_shared_memory("grpc", key, size, headers=headers())
        assert triton.get_system_shared_memory_status(headers=headers()).regions["grpc"].byte_size == size
        tensor, output = InferInput("data", list(X.shape), "FP32"), InferRequestedOutput("softmax_output")
        tensor.set_shared_memory("grpc", X.nbytes)
        output.set_shared_memory("grpc", X.nbytes, X.nbytes)
        triton.infer("plain", [tensor], outputs=[output], headers=headers())
        got = shared_memory.get_contents_as_numpy(segment, np.float32, [3, CLASSES], X.nbytes)
        np.testing.assert_array_equal(got, expected(X))
        triton.unregister_system_shared_memory(headers=headers())
    finally:
        shared_memory.destroy_shared_memory_region(segment)


def test_settings(triton: Any) -> None:
    trace = triton.get_trace_settings(headers=headers(), as_json=True)["settings"]
    assert trace["trace_level"]["value"] == ["OFF"]
    assert triton.get_log_settings(headers=headers()).settings["log_error"].bool_param


def test_tls(tmp_path: Path) -> None:
    from tritonclient.grpc import InferenceServerClient

    folder = ROOT / "tests" / "link" / "tls"
    files = {
        "OPBOX_SSL_CERTFILE": str(folder / "fullchain.pem"),
        "OPBOX_SSL_KEYFILE": str(folder / "privkey.pem"),
    }
    live = Live("none", tmp_path, OPBOX_GRPC_PORT="0", **files)
    with InferenceServerClient(address_of(live), ssl=True, root_certificates=files["OPBOX_SSL_CERTFILE"]) as client:
        assert client.get_server_metadata(headers=headers()).name == "opbox"
    assert live.stop() == 0


def test_messages_are_the_published_ones() -> None:
    """What the server has of a message has its name, number, type and label in Triton's descriptors too."""
    from google.protobuf import descriptor_pb2
    from tritonclient.grpc import model_config_pb2, service_pb2

    from opbox_service.grpc.messages import FILE

    theirs: dict[str, Any] = {}
    for module in (service_pb2, model_config_pb2):
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        theirs |= {message.name: message for message in (*file.message_type, *file.enum_type, *file.service)}
    whole = {name for name in theirs if name.endswith(("Request", "Response")) or name.startswith("Infer")}
    assert whole <= {message.name for message in FILE.message_type}
    for message in FILE.message_type:
        compare(message, theirs[message.name], message.name not in CONFIGURATION)
    for enum in FILE.enum_type:
        assert enum == theirs[enum.name]
    (service,) = FILE.service
    assert {method.name: method.SerializeToString() for method in service.method} == {
        method.name: without_options(method) for method in theirs[service.name].method
    }


def compare(ours: Any, theirs: Any, whole: bool) -> None:
    """Two descriptors of a message."""
    fields = {field.name: field for field in theirs.field}
    for field in ours.field:
        other = fields.pop(field.name)
        assert (field.number, field.type, field.label, field.type_name) == (
            other.number,
            other.type,
            other.label,
            other.type_name,
        ), f"{ours.name}.{field.name}"
        assert field.HasField("oneof_index") == other.HasField("oneof_index")
        if field.HasField("oneof_index"):
            assert ours.oneof_decl[field.oneof_index].name == theirs.oneof_decl[other.oneof_index].name
    assert not (whole and fields), f"{ours.name}: {sorted(fields)}"
    nested = {message.name: message for message in theirs.nested_type}
    for message in ours.nested_type:
        compare(message, nested[message.name], whole)


def test_protoc_reads_the_file_as_the_server_does(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    from opbox_service.grpc.messages import FILE

    folder = ROOT / "service" / "opbox_service" / "grpc"
    wanted = tmp_path / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={wanted}"]
    subprocess.run([*command, "inference.proto"], check=True)
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(wanted.read_bytes()).file
    without_json_names(file.message_type)
    file.name = FILE.name
    assert str(file) == str(FILE)


def without_options(method: Any) -> bytes:
    method.ClearField("options")
    data: bytes = method.SerializeToString()
    return data


def without_json_names(messages: Any) -> None:
    for message in messages:
        for field in message.field:
            field.ClearField("json_name")
        without_json_names(message.nested_type)
