"""`/v2/models/…/backward`: the numbers of an executor's backward, for a model that never changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_protocol.errors import BadRequestError, MXNetError
from opbox_service.carriers import AnswerLimit
from opbox_service.graph.json import load
from opbox_service.models.loaded_model import LoadedModel
from opbox_service.models.model_config import ModelConfig
from opbox_service.models.model_files import ModelNetwork
from opbox_service.models.model_plans import IDLE_PLANS
from opbox_service.quota import Budget
from tests.contract.live import TOKENS, Live
from tests.models.folders import CLASSES, FEATURES, IMAGES, convolutional, perceptron

X = np.random.default_rng(0).normal(size=(3, FEATURES)).astype(np.float32)
LABEL = np.array([0, 2, 1], np.float32)
LOGITS = np.random.default_rng(1).normal(size=(3, CLASSES)).astype(np.float32)
IMAGE = np.random.default_rng(2).normal(size=IMAGES).astype(np.float32)


def loaded(net: mx.sym.Symbol, *params: Mapping[str, mx.nd.NDArray], **config: Any) -> LoadedModel:
    """A model that is served in this process."""
    arrays = {name: array.asnumpy() for group in params for name, array in group.items()}
    network = ModelNetwork(load(net.tojson()), arrays, {}, {})
    return LoadedModel("m", network, ModelConfig(**config), backend_for("cpu"), Budget(1 << 30), "cpu")


def backward(model: LoadedModel, wanted: list[str] | None = None, **values: Any) -> dict[str, np.ndarray]:
    """A model's gradients; `values` are tensors, and `is_train` and `seed`."""
    answers: list[dict[str, np.ndarray]] = []
    options = {name: values.pop(name) for name in ("is_train", "seed") if name in values}

    def take(tensors: Mapping[str, np.ndarray]) -> None:
        answers.append({name: np.array(array) for name, array in tensors.items()})

    model.backward("ann", values, wanted, take, AnswerLimit(), **options)
    return answers[0]


def by_executor(
    net: mx.sym.Symbol,
    params: Mapping[str, mx.nd.NDArray],
    aux: Mapping[str, mx.nd.NDArray],
    inputs: Mapping[str, np.ndarray],
    heads: np.ndarray | None = None,
    is_train: bool = False,
) -> dict[str, np.ndarray]:
    """The gradients of all arguments, by an executor of the client's."""
    args = {name: mx.nd.array(array) for name, array in inputs.items()}
    args |= {name: params[name].copy() for name in net.list_arguments() if name in params}
    grads = {name: mx.nd.zeros(array.shape) for name, array in args.items()}
    states = {name: array.copy() for name, array in aux.items()}
    executor = net.bind(mx.cpu(), args, args_grad=grads, aux_states=states)
    executor.forward(is_train=is_train)
    executor.backward(None if heads is None else [mx.nd.array(heads)], is_train=is_train)
    return {name: array.asnumpy() for name, array in grads.items()}


@pytest.mark.parametrize("is_train", [False, True])
def test_all_gradients_are_the_executors_and_the_model_stays(is_train: bool) -> None:
    net, params, aux = convolutional()
    label = np.arange(len(IMAGE), dtype=np.float32) % CLASSES
    model = loaded(net, params, aux)
    before = {name: np.array(array) for name, array in model._params.items()}
    wanted = by_executor(net, params, aux, {"data": IMAGE, "softmax_label": label}, is_train=is_train)
    del wanted["softmax_label"]
    for _ in range(2):  # the second run finds the states as the first one did
        grads = backward(model, [f"grad:{name}" for name in wanted], data=IMAGE, softmax_label=label, is_train=is_train)
        for name, array in wanted.items():
            np.testing.assert_array_equal(grads[f"grad:{name}"], array, err_msg=name)
    for name, array in before.items():
        np.testing.assert_array_equal(model._params[name], array, err_msg=name)
    model.close()


def test_head_gradients_of_inner_values() -> None:
    net, params = perceptron()
    model = loaded(net, params)
    logits = net.get_internals()["fc2_output"]
    wanted = by_executor(logits, params, {}, {"data": X}, LOGITS)
    grads = backward(model, ["grad:data", "grad:fc1_weight", "fc2_output"], data=X, **{"head_grad:fc2_output": LOGITS})
    np.testing.assert_array_equal(grads["grad:data"], wanted["data"])
    np.testing.assert_array_equal(grads["grad:fc1_weight"], wanted["fc1_weight"])
    hidden = np.tanh(X @ params["fc1_weight"].asnumpy().T + params["fc1_bias"].asnumpy())
    # float32: the sum of 8 products, by NumPy in another order
    np.testing.assert_allclose(
        grads["fc2_output"], hidden @ params["fc2_weight"].asnumpy().T + params["fc2_bias"].asnumpy(), rtol=1e-5
    )
    (only,) = backward(model, data=X, **{"head_grad:fc2_output": LOGITS}).items()
    assert only[0] == "grad:data"
    model.close()


def test_an_output_that_is_no_loss_and_a_seed() -> None:
    net = mx.sym.Dropout(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=50, name="fc"), p=0.5, name="drop")
    params = {"fc_weight": mx.nd.ones((50, FEATURES)), "fc_bias": mx.nd.zeros((50,))}
    model = loaded(net, params)
    with pytest.raises(BadRequestError, match="head gradient of 'drop_output' is missing"):
        backward(model, data=X)
    ones = {"data": X, "head_grad:drop_output": np.ones((3, 50), np.float32)}
    plain = backward(model, **ones)["grad:data"]
    np.testing.assert_array_equal(plain, np.full((3, FEATURES), 50, np.float32))
    first, again, other = (backward(model, **ones, is_train=True, seed=seed)["grad:data"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    model.close()


def test_plans_with_gradients_are_few_and_apart() -> None:
    net, params = perceptron()
    budget_of = loaded(net, params)
    for examples in range(1, 9):
        x = np.zeros((examples, FEATURES), np.float32)
        backward(budget_of, data=x, softmax_label=np.zeros(examples, np.float32))
        budget_of.infer("ann", {"data": x}, ["softmax_output"], lambda outputs: None, print, AnswerLimit())
    idle = budget_of._plans._idle
    assert len(idle["gradients"]) == IDLE_PLANS["gradients"]
    assert len(idle["outputs"]) == 8
    assert not any(plan.grads for plan in idle["outputs"])
    budget_of.close()
    assert budget_of._plans._memory.used == 0


def tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    return {"name": name, "shape": list(array.shape), "datatype": "FP32", "data": array.reshape(-1).tolist()}


def request(*names: str, label: bool = True, **fields: Any) -> dict[str, Any]:
    """A body for the model "plain", which wants these."""
    inputs = [tensor("data", X), *([tensor("softmax_label", LABEL)] if label else [])]
    return {"inputs": inputs, "outputs": [{"name": name} for name in names], **fields}


@pytest.mark.parametrize("path", ["plain", "batched", "plain/versions/1"])
def test_in_json_and_in_bytes(server: Live, path: str) -> None:
    net, params = perceptron()
    wanted = by_executor(net, params, {}, {"data": X, "softmax_label": LABEL})
    client, address = server.clients["ann"], f"/v2/models/{path}/backward"
    answer = client.post(address, json=request("grad:fc1_weight", "grad:data", "softmax_output", id="seven"))
    assert answer.status_code == 200, answer.text
    header = answer.json()
    assert (header["model_name"], header["model_version"], header["id"]) == (path.split("/")[0], "1", "seven")
    assert [row["name"] for row in header["outputs"]] == ["grad:fc1_weight", "grad:data", "softmax_output"]
    for row in header["outputs"][:2]:
        values = np.array(row["data"], np.float32).reshape(row["shape"])
        np.testing.assert_array_equal(values, wanted[row["name"].removeprefix("grad:")])
    body = request() | {"outputs": None, "parameters": {"binary_data_output": True}}
    answer = client.post(address, json=body)
    length = int(answer.headers["Inference-Header-Content-Length"])
    assert [row["name"] for row in json.loads(answer.content[:length])["outputs"]] == ["grad:data"]
    np.testing.assert_array_equal(np.frombuffer(answer.content[length:], np.float32), wanted["data"].reshape(-1))


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (request("grad:data", label=False), 400,
         "input 'softmax_label' is missing: expected the labels that the loss compares with, or a head gradient of a "
         "value before the loss, as head_grad:NAME"),
        (request("softmax_output"), 400, "outputs: expected at least one gradient, such as grad:data, got none"),
        (request("grad:fc1_wieght"), 400,
         "output 'grad:fc1_wieght': expected the gradient of an argument, or an output that it is computed from, such "
         "as grad:fc1_weight"),
        (request("grad:softmax_label"), 400, "output 'grad:softmax_label': expected the gradient of an argument"),
        (request("grad:data") | {"inputs": [tensor("data", X), tensor("head_grad:fc9_output", LOGITS)]}, 400,
         "head gradient 'fc9_output' is none of the model's: expected fc2_output, fc1_output"),
        (request("grad:data") | {"inputs": [tensor("data", X), tensor("head_grad:fc2_output", X)]}, 422,
         "head gradient of 'fc2_output': expected (3, 3), got (3, 4)"),
        (request("grad:data") | {"inputs": [tensor("data", X), tensor("softmax_label", LOGITS)]}, 422,
         "input 'softmax_label': expected shape [3], got [3, 3]"),
        (request("grad:data") | {"inputs": [tensor("softmax_label", LABEL)]}, 400, "input 'data' is missing"),
        (request("grad:data", parameters={"is_train": "yes"}), 400,
         "parameters.is_train: expected true or false, got 'yes'"),
        (request("grad:data", parameters={"grads": []}), 400, "unknown field 'grads'"),
        (request() | {"outputs": [{"name": "grad:data", "parameters": {"classification": 1}}]}, 400,
         "outputs: 'grad:data': parameters: expected binary_data, got 'classification', which is not served for "
         "gradients"),
    ],
)  # fmt: skip
def test_bad_requests(server: Live, body: dict[str, Any], status: int, sentence: str) -> None:
    answer = server.clients["ann"].post("/v2/models/plain/backward", json=body)
    assert answer.status_code == status, answer.text
    assert sentence in answer.json()["error"]


def test_by_the_client(server: Live) -> None:
    net, params = perceptron()
    wanted = by_executor(net, params, {}, {"data": X, "softmax_label": LABEL})
    saliency = by_executor(net.get_internals()["fc2_output"], params, {}, {"data": X}, LOGITS)
    labelled = {"data": X.tolist(), "softmax_label": LABEL.astype(np.int64)}

    async def calls() -> list[dict[str, np.ndarray]]:
        async with mx.serve.AsyncClient(server.url, TOKENS["ann"]) as client:
            plain = client.model("plain")
            assert "fc1_output" in await plain.outputs()
            return [
                await plain.backward(labelled, wanted=["data", "fc2_bias"]),
                await plain.backward({"data": X}, {"fc2_output": LOGITS}, is_train=True, seed=3),
            ]

    with mx.serve.Client(server.url, TOKENS["ann"]) as client:
        plain = client.model("plain")
        answers = [plain.backward(labelled, wanted=["data", "fc2_bias"])]
        answers.append(plain.backward({"data": X}, {"fc2_output": LOGITS}))
        assert {"fc1_output", "softmax_output"} <= set(plain.outputs())
        with pytest.raises(MXNetError, match="output 'grad:nothing'"):
            plain.backward({"data": X}, {"fc2_output": LOGITS}, ["nothing"])
    for of_label, of_head in (answers, asyncio.run(calls())):
        assert list(of_label) == ["data", "fc2_bias"]
        for name, array in of_label.items():
            np.testing.assert_array_equal(array, wanted[name])
        np.testing.assert_array_equal(of_head["data"], saliency["data"])
