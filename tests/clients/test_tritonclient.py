"""Triton's own HTTP client, unchanged, against a server with a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.contract.live import TOKENS, Live
from tests.models.folders import CLASSES, FEATURES, expected

pytestmark = pytest.mark.clients

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


@pytest.fixture
def triton(server: Live) -> Iterator[Any]:
    from tritonclient.http import InferenceServerClient

    client = InferenceServerClient(server.url.removeprefix("http://"))
    yield client
    client.close()


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
    (row,) = triton.get_inference_statistics("plain", headers=headers())["model_stats"]
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
    with pytest.raises(InferenceServerException, match="model 'nothing'"):
        triton.load_model("nothing", headers=headers("boss"))
