"""The client that is generated of the Open Inference Protocol's own OpenAPI file: its models check every answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.contract.live import Live
from tests.models.folders import CLASSES, FEATURES, ROUNDING, expected

pytestmark = pytest.mark.clients

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


@pytest.fixture
def client(server: Live) -> Any:
    from open_inference.openapi.client import OpenInferenceClient

    return OpenInferenceClient(base_url=server.url, httpx_client=server.clients["ann"])


def request(**fields: Any) -> Any:
    from open_inference.openapi.types import InferenceRequest

    tensor = {"name": "data", "shape": list(X.shape), "datatype": "FP32", "data": X.reshape(-1).tolist(), **fields}
    return InferenceRequest.parse_obj({"id": "7", "inputs": [tensor], "outputs": [{"name": "softmax_output"}]})


def test_health_and_metadata(client: Any) -> None:
    client.check_server_liveness()
    client.check_server_readiness()
    client.check_model_readiness("plain")
    client.check_model_version_readiness("plain", "1")
    server = client.read_server_metadata()
    assert (server.name, bool(server.version)) == ("opbox", True)
    for model in (client.read_model_metadata("plain"), client.read_model_version_metadata("plain", "1")):
        assert (model.name, model.versions, bool(model.platform)) == ("plain", ["1"], True)
        assert [(one.name, one.datatype, one.shape) for one in model.inputs] == [("data", "FP32", [-1, FEATURES])]
        assert [(one.name, one.shape) for one in model.outputs] == [("softmax_output", [-1, CLASSES])]


def test_infer(client: Any) -> None:
    by_version = client.model_version_infer("plain", "1", request=request())
    for answer in (client.model_infer("plain", request=request()), by_version):
        assert (answer.model_name, answer.model_version, answer.id) == ("plain", "1", "7")
        (output,) = answer.outputs
        assert (output.name, output.datatype, output.shape) == ("softmax_output", "FP32", [3, CLASSES])
        values = np.array(output.data.__root__, np.float32).reshape(output.shape)
        np.testing.assert_allclose(values, expected(X), atol=ROUNDING)


@pytest.mark.parametrize("wrong", [{"shape": [3]}, {"datatype": "FP64"}, {"name": "date"}, {"data": ["cat"]}])
def test_errors_have_the_protocols_form(client: Any, wrong: dict[str, Any]) -> None:
    from open_inference.openapi.errors import BadRequestError

    with pytest.raises(BadRequestError) as caught:
        client.model_infer("plain", request=request(**wrong))
    assert caught.value.body["error"]


def test_a_model_that_is_none(client: Any) -> None:
    from open_inference.openapi.core import ApiError

    for ask in (client.check_model_readiness, client.read_model_metadata):
        with pytest.raises(ApiError) as caught:
            ask("nothing")
        assert (caught.value.status_code, "model: 'nothing'" in caught.value.body["error"]) == (404, True)
