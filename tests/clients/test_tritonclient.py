"""Triton's own HTTP client, unchanged, against a server with a model: every method that it has."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.models.folders import CLASSES, FEATURES, ROUNDING, expected

pytestmark = pytest.mark.clients

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


@pytest.fixture
def triton(server: Live) -> Iterator[Any]:
    from tritonclient.http import InferenceServerClient

    client = InferenceServerClient(server.url.removeprefix("http://"))
    yield client
    client.close()


def test_every_method_is_called_here() -> None:
    from tritonclient.http import InferenceServerClient
    from tritonclient.http.aio import InferenceServerClient as AsyncClient

    text = Path(__file__).read_text() + Path(__file__).with_name("test_tritonclient_async.py").read_text()
    for client, prefix in ((InferenceServerClient, "."), (AsyncClient, "await client.")):
        names = [name for name in dir(client) if not name.startswith("_")]
        if client is AsyncClient:
            names = [name for name in names if inspect.iscoroutinefunction(getattr(client, name))]
        assert [name for name in names if f"{prefix}{name}(" not in text] == []


def headers(owner: str = "ann") -> dict[str, str]:
    """The client writes into them."""
    return {"Authorization": f"Bearer {TOKENS[owner]}"}


def data(binary: bool = True) -> Any:
    from tritonclient.http import InferInput

    tensor = InferInput("data", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X, binary_data=binary)
    return tensor


def test_health_and_metadata(triton: Any) -> None:
    assert triton.is_server_live(headers=headers())
    assert triton.is_server_ready(headers=headers())
    assert triton.is_model_ready("plain", headers=headers())
    assert triton.is_model_ready("plain", "1", headers=headers())
    assert not triton.is_model_ready("nothing", headers=headers())
    assert triton.get_server_metadata(headers=headers())["name"] == "opbox"
    metadata = triton.get_model_metadata("plain", headers=headers())
    assert metadata["inputs"] == [{"name": "data", "datatype": "FP32", "shape": [-1, FEATURES]}]
    assert triton.get_model_config("plain", headers=headers())["input"][0]["dims"] == [-1, FEATURES]
    assert ("plain", "READY") in [
        (row["name"], row["state"]) for row in triton.get_model_repository_index(headers=headers())
    ]


@pytest.mark.parametrize("binary_in", [False, True])
@pytest.mark.parametrize("binary_out", [False, True])
def test_infer(triton: Any, binary_in: bool, binary_out: bool) -> None:
    from tritonclient.http import InferRequestedOutput

    outputs = [InferRequestedOutput("softmax_output", binary_data=binary_out)]
    answer = triton.infer("plain", [data(binary_in)], outputs=outputs, request_id="7", headers=headers())
    np.testing.assert_array_equal(answer.as_numpy("softmax_output"), expected(X))
    assert answer.get_response()["id"] == "7"


def test_infer_without_outputs_a_version_and_async(triton: Any) -> None:
    by_version = triton.infer("plain", [data()], model_version="1", priority=1, timeout=10**9, headers=headers())
    later = triton.async_infer("plain", [data()], headers=headers())
    for answer in (by_version, later.get_result()):
        np.testing.assert_array_equal(answer.as_numpy("softmax_output"), expected(X))


def test_classification(triton: Any) -> None:
    from tritonclient.http import InferRequestedOutput

    outputs = [InferRequestedOutput("softmax_output", class_count=1)]
    answer = triton.infer("plain", [data()], outputs=outputs, headers=headers())
    values = expected(X)
    best = [f"{row.max():f}:{row.argmax()}".encode() for row in values]
    assert answer.as_numpy("softmax_output")[:, 0].tolist() == best
    assert values.shape == (3, CLASSES)


def test_statistics_and_the_repository(triton: Any) -> None:
    triton.infer("plain", [data()], headers=headers())
    for asked in (("plain",), ("plain", "1"), ()):
        rows = triton.get_inference_statistics(*asked, headers=headers())["model_stats"]
        (row,) = (row for row in rows if row["name"] == "plain")
        assert len(rows) == (1 if asked else 2)
        assert row["inference_stats"]["success"]["count"] > 0
    triton.unload_model("plain", headers=headers("boss"))
    assert not triton.is_model_ready("plain", headers=headers())
    triton.load_model("plain", headers=headers("boss"))
    assert triton.is_model_ready("plain", headers=headers())


def test_errors_are_its_exceptions(triton: Any) -> None:
    from tritonclient.http import InferInput
    from tritonclient.utils import InferenceServerException

    wrong = InferInput("data", [1], "FP32")
    wrong.set_data_from_numpy(np.zeros(1, np.float32))
    with pytest.raises(InferenceServerException, match="input 'data': expected shape"):
        triton.infer("plain", [wrong], headers=headers())
    with pytest.raises(InferenceServerException, match="unknown model: 'nothing' is not found"):
        triton.load_model("nothing", headers=headers("boss"))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_compression(triton: Any, coding: str) -> None:
    from tritonclient.http import InferInput, InferRequestedOutput

    x = np.tile(X, (1000, 1))
    tensor = InferInput("data", list(x.shape), "FP32").set_data_from_numpy(x)
    answer = triton.infer(
        "plain",
        [tensor],
        outputs=[InferRequestedOutput("softmax_output")],
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
        headers=headers(),
    )
    np.testing.assert_allclose(answer.as_numpy("softmax_output")[:3], expected(X), rtol=0, atol=ROUNDING)


def test_requests_and_answers_without_its_connections(triton: Any, server: Live) -> None:
    body, length = triton.generate_request_body([data()], request_id="9", priority=2, timeout=10**9)
    answer = server.clients["ann"].post(
        "/v2/models/plain/infer", content=body, headers={"Inference-Header-Content-Length": str(length)}
    )
    size = int(answer.headers["Inference-Header-Content-Length"])
    result = triton.parse_response_body(answer.content, header_length=size)
    np.testing.assert_array_equal(result.as_numpy("softmax_output"), expected(X))


def test_parameters(triton: Any) -> None:
    from tritonclient.utils import InferenceServerException

    for wishes, sentence in (
        ({"sequence_id": 7, "sequence_start": True}, "sequences are not served"),
        ({"timeout": 1}, "expected a run within the 1 us of parameters.timeout"),
    ):
        with pytest.raises(InferenceServerException, match=sentence):
            triton.infer("plain", [data()], headers=headers(), **wishes)
    answer = triton.infer("plain", [data()], headers=headers(), parameters={"temperature": 1})
    np.testing.assert_array_equal(answer.as_numpy("softmax_output"), expected(X))


def test_texts_are_refused(triton: Any) -> None:
    from tritonclient.http import InferInput
    from tritonclient.utils import InferenceServerException

    text = InferInput("data", [1], "BYTES").set_data_from_numpy(np.array([b"cat"], object))
    with pytest.raises(InferenceServerException, match="tensor 'data': datatype: expected numbers"):
        triton.infer("plain", [text], headers=headers())


def test_settings_of_traces_and_logs(triton: Any) -> None:
    from tritonclient.utils import InferenceServerException

    assert triton.get_trace_settings(headers=headers())["trace_level"] == ["OFF"]
    assert triton.get_trace_settings("plain", headers=headers())["trace_level"] == ["OFF"]
    assert triton.update_trace_settings(settings={"trace_level": None}, headers=headers())["trace_level"] == ["OFF"]
    with pytest.raises(InferenceServerException, match="as this server writes no traces"):
        triton.update_trace_settings("plain", {"trace_level": ["TIMESTAMPS"]}, headers=headers())
    assert triton.get_log_settings(headers=headers())["log_error"] is True
    assert triton.update_log_settings({"log_error": True}, headers=headers())["log_error"] is True
    with pytest.raises(InferenceServerException, match="log_verbose_level: expected 0"):
        triton.update_log_settings({"log_verbose_level": 3}, headers=headers())


def test_system_shared_memory(triton: Any) -> None:
    import tritonclient.utils.shared_memory as shm
    from tritonclient.http import InferInput, InferRequestedOutput
    from tritonclient.utils import InferenceServerException

    triton.unregister_system_shared_memory(headers=headers())
    triton.unregister_cuda_shared_memory(headers=headers())
    size = 4 * 3 * CLASSES
    source = shm.create_shared_memory_region("input", "/opbox_test_input", X.nbytes)
    target = shm.create_shared_memory_region("output", "/opbox_test_output", size + 8)
    try:
        shm.set_shared_memory_region(source, [X])
        triton.register_system_shared_memory("input", "/opbox_test_input", X.nbytes, headers=headers())
        triton.register_system_shared_memory("output", "/opbox_test_output", size + 8, headers=headers())
        rows = triton.get_system_shared_memory_status(headers=headers())
        assert [(row["name"], row["byte_size"]) for row in rows] == [("input", X.nbytes), ("output", size + 8)]
        tensor = InferInput("data", list(X.shape), "FP32").set_shared_memory("input", X.nbytes)
        output = InferRequestedOutput("softmax_output")
        output.set_shared_memory("output", size, 8)
        answer = triton.infer("plain", [tensor], outputs=[output], headers=headers())
        shape = answer.get_output("softmax_output")["shape"]
        values = shm.get_contents_as_numpy(target, np.float32, shape, 8)
        np.testing.assert_array_equal(values, expected(X))
        del values
        triton.unregister_system_shared_memory("input", headers=headers())
        with pytest.raises(InferenceServerException, match="shared memory region: expected one that you registered"):
            triton.get_system_shared_memory_status("input", headers=headers())
        triton.unregister_system_shared_memory(headers=headers())
        assert triton.get_system_shared_memory_status(headers=headers()) == []
    finally:
        shm.destroy_shared_memory_region(source)
        shm.destroy_shared_memory_region(target)


def test_cuda_shared_memory_is_refused(triton: Any) -> None:
    from tritonclient.utils import InferenceServerException

    assert triton.get_cuda_shared_memory_status(headers=headers()) == []
    with pytest.raises(InferenceServerException, match="CUDA shared memory: expected system shared memory"):
        triton.register_cuda_shared_memory("gpu", "AAAA", 0, 64, headers=headers())
    triton.unregister_cuda_shared_memory("gpu", headers=headers())


def test_a_plugin_adds_the_token(triton: Any) -> None:
    from tritonclient.http.auth import BasicAuth

    class Bearer(BasicAuth):  # type: ignore[misc]  # the class has no types
        def __call__(self, request: Any) -> None:
            request.headers.update(headers())

    triton.register_plugin(Bearer("nobody", ""))
    assert triton.plugin() is not None
    answer = triton.infer("plain", [data()])
    np.testing.assert_array_equal(answer.as_numpy("softmax_output"), expected(X))
    triton.unregister_plugin()
