"""What the example programs of Triton's client do with its model `simple`, step by step.

The model takes INPUT0 and INPUT1, 16 integers each, and answers their sum and difference. Here it is an ONNX file, as
the names of its outputs are those of the file.
"""

from __future__ import annotations

import asyncio
import json
import queue
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.models.conftest import address_of, loaded

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore:Protobuf gencode version")]

LENGTH = 16
FIRST = np.arange(LENGTH, dtype=np.int32).reshape(1, LENGTH)
SECOND = np.full((1, LENGTH), -1, np.int32)
NBYTES = FIRST.nbytes
HTTP = {"Authorization": f"Bearer {TOKENS['ann']}"}
GRPC = {"authorization": HTTP["Authorization"]}


def write_simple(path: Path) -> None:
    """The model as an ONNX file."""
    import onnx
    from onnx import TensorProto, helper

    values = [
        helper.make_tensor_value_info(name, TensorProto.INT32, ["batch", LENGTH])
        for name in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    ]
    nodes = [
        helper.make_node(op, ["INPUT0", "INPUT1"], [name]) for op, name in (("Add", "OUTPUT0"), ("Sub", "OUTPUT1"))
    ]
    graph = helper.make_graph(nodes, "simple", values[:2], values[2:])
    path.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


@pytest.fixture(scope="module")
def simple(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    models = tmp_path_factory.mktemp("models")
    write_simple(models / "simple" / "model.onnx")
    both = [{"name": "ann", "token": TOKENS["ann"], "scopes": ["run", "admin"]}]
    settings = {"OPBOX_MODELS": str(models), "OPBOX_SHARED_MEMORY": "own", "OPBOX_GRPC_PORT": "0"}
    settings["OPBOX_TOKENS"] = json.dumps(both)
    live = Live("process", tmp_path_factory.mktemp("server"), **settings)
    loaded(live)
    yield live
    assert live.stop() == 0


@pytest.fixture
def http(simple: Live) -> str:
    return simple.url.removeprefix("http://")


@pytest.fixture(scope="module")
def address(simple: Live) -> str:
    return address_of(simple)


def inputs_of(module: Any, **of_first: Any) -> list[Any]:
    tensors = [module.InferInput(name, [1, LENGTH], "INT32") for name in ("INPUT0", "INPUT1")]
    tensors[0].set_data_from_numpy(FIRST, **of_first)
    tensors[1].set_data_from_numpy(SECOND)
    return tensors


def check(answer: Any) -> None:
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT0"), FIRST + SECOND)
    np.testing.assert_array_equal(answer.as_numpy("OUTPUT1"), FIRST - SECOND)


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
def test_infer_by_http(http: str, coding: str | None) -> None:
    import tritonclient.http as module
    from tritonclient.utils import InferenceServerException

    with module.InferenceServerClient(http) as client:
        outputs = [
            module.InferRequestedOutput("OUTPUT0", binary_data=True),
            module.InferRequestedOutput("OUTPUT1", binary_data=False),
        ]
        for wanted in (outputs, None):
            answer = client.infer(
                "simple",
                inputs_of(module, binary_data=False),
                outputs=wanted,
                query_params={"test_1": 1, "test_2": 2},
                headers=dict(HTTP),
                request_compression_algorithm=coding,
                response_compression_algorithm=coding,
            )
            check(answer)
        statistics = client.get_inference_statistics("simple", headers=dict(HTTP))
        assert len(statistics["model_stats"]) == 1
        with pytest.raises(
            InferenceServerException, match="Request for unknown model: 'wrong_model_name' is not found"
        ):
            client.infer("wrong_model_name", inputs_of(module), headers=dict(HTTP))


def test_many_at_once_by_http(http: str) -> None:
    import tritonclient.http as module

    with module.InferenceServerClient(http, concurrency=8) as client:
        waiting = [client.async_infer("simple", inputs_of(module), headers=dict(HTTP)) for _ in range(8)]
        for one in waiting:
            check(one.get_result())


def test_a_loop_by_http(http: str) -> None:
    import tritonclient.http.aio as module

    async def main() -> None:
        async with module.InferenceServerClient(http) as client:
            for answer in await asyncio.gather(
                *(client.infer("simple", inputs_of(module), headers=dict(HTTP)) for _ in range(4))
            ):
                check(answer)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_health_metadata_and_control(kind: str, http: str, address: str) -> None:
    from tritonclient import grpc
    from tritonclient import http as of_http
    from tritonclient.utils import InferenceServerException

    module, url, headers = {"http": (of_http, http, HTTP), "grpc": (grpc, address, GRPC)}[kind]
    with module.InferenceServerClient(url) as client:
        add: Any = partial(dict, headers)
        assert client.is_server_live(headers=add())
        assert client.is_server_ready(headers=add())
        metadata = client.get_model_metadata("simple", headers=add())
        assert (metadata["name"] if kind == "http" else metadata.name) == "simple"
        with pytest.raises(
            InferenceServerException, match="Request for unknown model: 'wrong_model_name' is not found"
        ):
            client.get_model_metadata("wrong_model_name", headers=add())
        client.unload_model("simple", headers=add())
        assert not client.is_model_ready("simple", headers=add())
        client.load_model("simple", headers=add())
        assert client.is_model_ready("simple", headers=add())
        with pytest.raises(
            InferenceServerException, match="Request for unknown model: 'wrong_model_name' is not found"
        ):
            client.load_model("wrong_model_name", headers=add())


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_shared_memory(kind: str, http: str, address: str) -> None:
    import tritonclient.utils.shared_memory as shm
    from tritonclient import grpc
    from tritonclient import http as of_http

    module, url, headers = {"http": (of_http, http, HTTP), "grpc": (grpc, address, GRPC)}[kind]
    names = {"input_data": f"/opbox_simple_in_{kind}", "output_data": f"/opbox_simple_out_{kind}"}
    with module.InferenceServerClient(url) as client:
        client.unregister_system_shared_memory(headers=dict(headers))
        regions = {name: shm.create_shared_memory_region(name, key, 2 * NBYTES) for name, key in names.items()}
        try:
            shm.set_shared_memory_region(regions["input_data"], [FIRST, SECOND])
            for name, key in names.items():
                client.register_system_shared_memory(name, key, 2 * NBYTES, headers=dict(headers))
            inputs = [module.InferInput(name, [1, LENGTH], "INT32") for name in ("INPUT0", "INPUT1")]
            outputs = [module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
            for at, (tensor, output) in enumerate(zip(inputs, outputs, strict=True)):
                tensor.set_shared_memory("input_data", NBYTES, at * NBYTES)
                output.set_shared_memory("output_data", NBYTES, at * NBYTES)
            client.infer("simple", inputs, outputs=outputs, headers=dict(headers))
            for at, wanted in enumerate((FIRST + SECOND, FIRST - SECOND)):
                values = shm.get_contents_as_numpy(regions["output_data"], np.int32, [1, LENGTH], at * NBYTES)
                np.testing.assert_array_equal(values, wanted)
                del values
            client.unregister_system_shared_memory(headers=dict(headers))
        finally:
            for region in regions.values():
                shm.destroy_shared_memory_region(region)


def test_infer_by_grpc(address: str) -> None:
    import tritonclient.grpc as module

    options = module.KeepAliveOptions(keepalive_time_ms=2**31 - 1, keepalive_timeout_ms=20_000)
    with module.InferenceServerClient(address, keepalive_options=options) as client:
        outputs = [module.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
        for wanted in (outputs, None):
            headers = {"test": "1", **GRPC}
            check(client.infer("simple", inputs_of(module), outputs=wanted, client_timeout=60, headers=headers))
        assert len(client.get_inference_statistics("simple", headers=GRPC).model_stats) == 1
        answers: queue.Queue[Any] = queue.Queue()
        client.async_infer(
            "simple", inputs_of(module), lambda result, error: answers.put((result, error)), headers=GRPC
        )
        result, error = answers.get(timeout=60)
        assert error is None
        check(result)


def test_a_loop_by_grpc(address: str) -> None:
    import tritonclient.grpc.aio as module

    async def main() -> None:
        async with module.InferenceServerClient(address) as client:
            check(await client.infer("simple", inputs_of(module), headers=GRPC))

    asyncio.run(main())


def test_integers_in_the_messages_own_fields_by_grpc(address: str) -> None:
    import grpc
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="simple")
    for name, values in (("INPUT0", FIRST), ("INPUT1", SECOND)):
        tensor = request.inputs.add(name=name, datatype="INT32", shape=[1, LENGTH])
        tensor.contents.int_contents.extend(values.reshape(-1).tolist())
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answer = stub.ModelInfer(request, metadata=list(GRPC.items()))
    names = [output.name for output in answer.outputs]
    values = dict(zip(names, (np.frombuffer(raw, np.int32) for raw in answer.raw_output_contents), strict=True))
    np.testing.assert_array_equal(values["OUTPUT0"], (FIRST + SECOND)[0])
    np.testing.assert_array_equal(values["OUTPUT1"], (FIRST - SECOND)[0])
