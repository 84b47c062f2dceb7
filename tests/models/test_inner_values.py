"""Values inside a model: asked for by name, computed without the rest, batched where they have the batch axis."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import BadRequestError, ForbiddenError, MXNetError
from opbox_service.carriers import AnswerLimit
from opbox_service.graph.json import load
from opbox_service.models.inner_values import InnerValues
from opbox_service.models.model_config import ModelConfig
from opbox_service.models.model_plans import IDLE_PLANS, PlanKind
from tests.contract.live import TOKENS, Live
from tests.models.folders import FEATURES, IMAGES, convolutional, perceptron
from tests.models.test_gradients import backward, loaded

IMAGE = np.random.default_rng(2).normal(size=IMAGES).astype(np.float32)
INNER = ["conv0_output", "bn0_output", "relu0_output", "fc0_output", "back0_output", "forth0_output"]


def by_executor(names: list[str], x: np.ndarray = IMAGE) -> dict[str, np.ndarray]:
    """Inner values of the convolutional network, by an executor of the client's that computes these alone."""
    net, params, aux = convolutional()
    group = mx.sym.Group([net.get_internals()[name] for name in names])
    args = {name: params[name] for name in group.list_arguments() if name in params}
    executor = group.bind(mx.cpu(), {"data": mx.nd.array(x), **args}, aux_states=aux if "bn0_gamma" in args else {})
    return dict(zip(names, (output.asnumpy() for output in executor.forward(is_train=False)), strict=True))


def test_each_inner_value_is_the_executors() -> None:
    net, params, aux = convolutional()
    model = loaded(net, params, aux)
    answers: list[dict[str, np.ndarray]] = []

    def take(outputs: dict[str, np.ndarray]) -> None:
        answers.append({name: np.array(array) for name, array in outputs.items()})

    for names in [*([name] for name in INNER), ["back0_output", "conv0_output"]]:
        model.infer("ann", {"data": IMAGE}, names, take, print, AnswerLimit())
        answer = answers.pop()
        assert list(answer) == names
        for name, array in by_executor(names).items():
            np.testing.assert_array_equal(answer[name], array, err_msg=name)
    model.close()


def test_an_early_layer_does_not_compute_the_rest() -> None:
    net, params, aux = convolutional()
    model = loaded(net, params, aux)
    kind = PlanKind(("conv0_output",))
    graph = model._inner.graph_of(kind.names)
    with model._plans.running(graph, kind, {"data": (IMAGES, np.dtype(np.float32))}) as plan:
        steps = {step.node.name for step in plan.bound.plan.steps}
        assert "conv0" in steps
        assert not steps & {"bn0", "relu0", "fc0", "back0", "softmax"}
        assert "fc0_weight" not in plan.bound.plan.graph.argument_names
    model.close()


def test_plans_of_inner_values_are_bounded_and_push_out_no_others() -> None:
    net, params = perceptron()
    model = loaded(net, params)
    for examples in range(1, 12):
        x = np.zeros((examples, FEATURES), np.float32)
        for names in (["fc1_output"], ["softmax_output"]):
            model.infer("ann", {"data": x}, names, lambda outputs: None, print, AnswerLimit())
    assert {purpose: len(idle) for purpose, idle in model._plans._idle.items()} == {
        "outputs": 11,
        "inner": IDLE_PLANS["inner"],
        "gradients": 0,
    }
    model.close()


def test_some_outputs_do_not_compute_the_others() -> None:
    """But outputs that need every node share the network's own plan, so that such requests run together."""
    hidden = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=3, name="shared")
    heads = [mx.sym.FullyConnected(hidden, num_hidden=2, name=name) for name in ("left", "right")]
    heads.append(mx.sym.Activation(heads[1], act_type="relu", name="last"))
    net = mx.sym.Group(heads)
    rng = np.random.default_rng(6)
    shapes = {"shared": (3, FEATURES), "left": (2, 3), "right": (2, 3)}
    params = {f"{name}_weight": mx.nd.array(rng.normal(size=shape)) for name, shape in shapes.items()}
    params |= {f"{name}_bias": mx.nd.array(rng.normal(size=shape[0])) for name, shape in shapes.items()}
    model = loaded(net, params, inputs={"data": {"shape": [-1, FEATURES]}}, max_batch=2, outputs=["left_output"])
    model.warm_up(ModelConfig())
    x = rng.normal(size=(2, FEATURES)).astype(np.float32)
    whole = ["left_output", "right_output", "last_output"]
    executor = net.bind(mx.cpu(), {"data": mx.nd.array(x), **params})
    by_name = dict(zip(whole, (output.asnumpy() for output in executor.forward(is_train=False)), strict=True))
    steps: dict[tuple[str, ...], set[str]] = {}
    for names in (["left_output"], ["last_output", "right_output"], ["left_output", "last_output"], whole):
        answers: SimpleQueue[dict[str, np.ndarray]] = SimpleQueue()
        model.infer("ann", {"data": x}, names, answers.put, print, AnswerLimit())
        answer = answers.get(timeout=120)  # a run of several requests answers from any thread, with copies
        assert list(answer) == names
        for name in names:
            np.testing.assert_array_equal(answer[name], by_name[name], err_msg=name)
    for plan in model._plans._idle["outputs"]:
        steps[plan.kind.names] = {step.node.name for step in plan.bound.plan.steps}
    assert steps == {
        ("left_output",): {"shared", "left"},
        ("right_output", "last_output"): {"shared", "right", "last"},
        (): {"shared", "left", "right", "last"},
    }
    assert not model._plans._idle["inner"]
    model.close()


def test_names() -> None:
    one = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2, name="fc")
    net = mx.sym.FullyConnected(mx.sym.Activation(one, act_type="tanh", name="act"), num_hidden=2, name="out")
    graph = load(net.tojson())
    inner = InnerValues(graph, ["answer"])  # as an ONNX file calls it
    assert list(inner.entries) == ["fc_output", "act_output", "out_output", "answer"]
    assert inner.beyond_outputs(["answer"]) == ()
    assert inner.beyond_outputs(["act_output", "fc_output"]) == ("fc_output", "act_output")
    assert inner.graph_of(("fc_output",)).argument_names == ["data", "fc_weight", "fc_bias"]
    with pytest.raises(BadRequestError, match="output 'actoutput' is none of the model's: expected act_output"):
        inner.check("output", ["actoutput"])
    with pytest.raises(BadRequestError, match="output 'zzz' is none of the model's: expected answer, or another name"):
        inner.check("output", ["zzz"])


def test_a_model_may_keep_them_to_itself() -> None:
    net, params = perceptron()
    model = loaded(net, params, inner_values=False)
    x = np.zeros((1, FEATURES), np.float32)
    with pytest.raises(BadRequestError, match="output 'fc1_output' is none of the model's: expected softmax_output"):
        model.infer("ann", {"data": x}, ["fc1_output"], print, print, AnswerLimit())
    with pytest.raises(ForbiddenError, match=r"gradients: .* got one with inner_values = false"):
        backward(model, data=x)
    rows, gradients, labels = model.list_outputs("ann")
    assert ([row.name for row in rows], gradients, labels) == (["softmax_output"], [], [])
    model.close()


def test_the_list_of_names(server: Live) -> None:
    for path in ("deep", "deep/versions/1"):
        answer = server.clients["ann"].get(f"/v2/models/{path}/outputs").json()
        assert (answer["model_name"], answer["model_version"]) == ("deep", "1")
        assert [row["name"] for row in answer["outputs"]] == [*INNER, "softmax_output"]
        assert answer["outputs"][0] == {"name": "conv0_output", "datatype": "FP32", "shape": [-1, 2, 4, 4]}
        assert answer["gradients"][0] == "grad:data"
        assert "grad:softmax_label" not in answer["gradients"]
        assert answer["labels"] == ["softmax_label"]
    assert {"opbox_backward", "opbox_inner_values"} <= set(server.clients["ann"].get("/v2").json()["extensions"])


def test_requests_for_other_values_at_once(server: Live) -> None:
    """Those that keep the batch axis run together, the others alone; everybody gets what was asked for."""
    rng = np.random.default_rng(5)
    images = [rng.normal(size=(1 + i % 3, *IMAGES[1:])).astype(np.float32) for i in range(24)]
    asked = [[INNER[i % len(INNER)]] for i in range(len(images))]
    with mx.serve.Client(server.url, TOKENS["ann"]) as client, ThreadPoolExecutor(8) as pool:
        deep = client.model("deep")
        answers = list(pool.map(lambda i: deep.infer({"data": images[i]}, asked[i]), range(len(images))))
        for image, names, answer in zip(images, asked, answers, strict=True):
            for name, array in by_executor(names, image).items():
                # float32: sums of up to 32 products, in another order in a larger batch
                np.testing.assert_allclose(answer[name], array, rtol=1e-5, atol=1e-5, err_msg=name)
        with pytest.raises(MXNetError, match="output 'conv0' is none of the model's: expected conv0_output"):
            deep.infer({"data": images[0]}, ["conv0"])
