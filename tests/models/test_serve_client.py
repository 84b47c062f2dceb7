"""`mx.serve`: models called with arrays, of an opbox server and of another one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import MXNetError, TransportError, UnknownModelError, WireError
from tests.contract.live import TOKENS, Live
from tests.models.folders import CLASSES, FEATURES, expected

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)


@pytest.fixture
def client(server: Live) -> Any:
    with mx.serve.Client(server.url, TOKENS["ann"]) as client:
        yield client


def test_arrays_of_every_kind(client: mx.serve.Client) -> None:
    plain = client.model("plain")
    for values in (X, mx.nd.array(X), X.tolist(), np.asfortranarray(X)):
        (output,) = plain(data=values).items()
        assert output[0] == "softmax_output"
        np.testing.assert_array_equal(output[1], expected(X))


def test_versions_outputs_and_classes(client: mx.serve.Client) -> None:
    second = client.model("versions", 2)
    np.testing.assert_array_equal(second.infer({"data": X}, ["softmax_output"])["softmax_output"], expected(X, 2.0))
    classes = client.model("anns").infer({"data": X}, classes={"softmax_output": 1})["softmax_output"]
    values = expected(X)
    labels = ["cat", "dog"]
    best = [f"{row.max():f}:{row.argmax()}{''.join(f':{x}' for x in labels[row.argmax() :][:1])}" for row in values]
    assert [text.decode() for text in classes[:, 0]] == best
    assert values.shape == (3, CLASSES)


def test_what_is_known_of_a_model(client: mx.serve.Client) -> None:
    plain = client.model("plain")
    assert plain.ready()
    assert not client.model("nothing").ready()
    assert plain.metadata()["inputs"] == [{"name": "data", "datatype": "FP32", "shape": [-1, FEATURES]}]
    assert plain.config()["backend"] == "opbox"
    plain(data=X)
    assert plain.statistics()[0]["inference_stats"]["success"]["count"] > 0
    assert ("plain", "READY") in [(row["name"], row["state"]) for row in client.models()]
    assert "http://" in repr(client)
    assert "plain" in repr(plain)


def test_from_asyncio(server: Live) -> None:
    async def calls() -> list[Any]:
        async with mx.serve.AsyncClient(server.url, TOKENS["ann"]) as client:
            plain = client.model("plain")
            first = await plain(data=X.tolist())
            together = await asyncio.gather(*(plain.infer({"data": X}, ["softmax_output"]) for _ in range(20)))
            assert await plain.ready()
            assert not await client.model("nothing").ready()
            assert (await plain.metadata())["name"] == "plain"
            assert (await plain.config())["name"] == "plain"
            assert (await plain.statistics())[0]["name"] == "plain"
            assert any(row["name"] == "plain" for row in await client.models())
            assert "plain" in repr(plain) + repr(client)
        return [first, *together]

    for outputs in asyncio.run(calls()):
        np.testing.assert_array_equal(outputs["softmax_output"], expected(X))


def test_errors(client: mx.serve.Client, server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownModelError, match="Request for unknown model: 'nothing' is not found"):
        client.model("nothing")(data=X)
    with pytest.raises(MXNetError, match="input 'data': expected shape"):
        client.model("plain")(data=X[0])
    with pytest.raises(MXNetError, match="output"):
        client.model("plain").infer({"data": X}, ["other"])
    with pytest.raises(WireError, match="expected numbers, bytes or texts in an array, got object"):
        client.model("plain")(data=np.array([object()]))
    with mx.serve.Client(server.url, "wrong") as stranger, pytest.raises(MXNetError, match="token"):
        stranger.model("plain").ready()
    with pytest.raises(TypeError, match=r"expected an httpx\.Client"):
        mx.serve.Client(server.url, http=httpx.AsyncClient())  # type: ignore[arg-type]
    monkeypatch.delenv("OPBOX_URL", raising=False)
    for kind in (mx.serve.Client, mx.serve.AsyncClient):
        with pytest.raises(MXNetError, match="serve: expected the address of a server"):
            kind()


def answered(status: int, body: Any, sent: list[httpx.Request] | None = None) -> mx.serve.Client:
    """A client of another server, which gives this answer."""

    def answer(request: httpx.Request) -> httpx.Response:
        if sent is not None:
            sent.append(request)
        return httpx.Response(status, json=body)

    return mx.serve.Client("http://triton:8000", http=httpx.Client(transport=httpx.MockTransport(answer)))


def test_another_server_answers_in_json_and_gets_texts() -> None:
    rows = [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0]},
        {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["cat"]},
    ]
    sent: list[httpx.Request] = []
    with answered(200, {"model_name": "m", "outputs": rows}, sent) as client:
        outputs = client.model("m").infer({"text": np.array(["a", "bc"]), "x": X}, parameters={"priority": 1})
    np.testing.assert_array_equal(outputs["y"], np.array([[1.5, -2.0]], np.float32))
    assert outputs["t"].tolist() == ["cat"]
    (request,) = sent
    size = int(request.headers["Inference-Header-Content-Length"])
    header = json.loads(request.content[:size])
    assert header["parameters"] == {"binary_data_output": True, "priority": 1}
    assert [row["datatype"] for row in header["inputs"]] == ["BYTES", "FP32"]
    assert request.content[size:] == b"\1\0\0\0a\2\0\0\0bc" + X.tobytes()  # without space between


@pytest.mark.parametrize(
    ("status", "body", "kind", "sentence"),
    [
        (400, {"error": "unexpected shape for input 'x'"}, MXNetError, "unexpected shape for input 'x'"),
        (502, "<html>", TransportError, "was answered 502"),
        (200, {"outputs": [{"name": "y"}]}, WireError, "expected tensors of the Open Inference Protocol"),
    ],
)
def test_another_servers_errors(status: int, body: Any, kind: type[MXNetError], sentence: str) -> None:
    with answered(status, body) as client, pytest.raises(kind, match=sentence):
        client.model("m")(x=X)
