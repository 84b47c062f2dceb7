"""SequentialModule and modules in Python: one request a step, modules of a user's own, and bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opbox as mx

DATA, LABEL = [("data", (4, 5))], [("softmax_label", (4,))]


def layer(name: str, hidden: int = 3) -> mx.Symbol:
    return mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=hidden, name=name)


def gradient(scores: mx.NDArray, labels: mx.NDArray) -> mx.NDArray:
    return mx.nd.softmax(scores) - mx.nd.one_hot(labels, 3)


def chain(*modules: Any, **options: Any) -> mx.mod.SequentialModule:
    chained = mx.mod.SequentialModule()
    for module in modules or (mx.mod.Module(layer("fc1"), label_names=[]),):
        chained.add(module, auto_wiring=True)
    return chained.add(
        mx.mod.PythonLossModule(**{"grad_func": gradient, **options}), take_labels=True, auto_wiring=True
    )


def ready(chained: mx.mod.SequentialModule) -> mx.mod.SequentialModule:
    chained.bind(DATA, LABEL)
    chained.init_params()
    chained.init_optimizer()
    return chained


def batch() -> mx.io.DataBatch:
    rng = np.random.RandomState(1)
    return mx.io.DataBatch([mx.nd.array(rng.randn(4, 5))], [mx.nd.array([0, 1, 2, 1])])


def test_a_step_of_a_chain_is_one_request() -> None:
    chained = ready(chain(mx.mod.Module(layer("fc1", 8), label_names=[]), mx.mod.Module(layer("fc2"), label_names=[])))
    metric = mx.metric.create("acc")
    session = mx.current_context().session
    one = batch()
    session.flush()
    before = session.requests
    for _ in range(6):
        chained.forward_backward(one)
        chained.update()
        chained.update_metric(metric, one.label)
    session.flush()
    assert session.requests - before == 6
    assert metric.get()[1] >= 0


class Doubled(mx.mod.Module):
    """A module of a user's own, which changes what it is fed."""

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        super().forward(mx.io.DataBatch([2 * data_batch.data[0]]), is_train)


def test_a_forward_of_the_users_own_is_called() -> None:
    plain, doubled = (chain(kind(layer("fc1"), label_names=[])) for kind in (mx.mod.Module, Doubled))
    for chained in (plain, doubled):
        chained.bind(DATA, LABEL)
        chained.init_params(arg_params={"fc1_weight": mx.nd.ones((3, 5)), "fc1_bias": mx.nd.zeros((3,))})
        chained.forward(batch())
    np.testing.assert_allclose(doubled.get_outputs()[0].asnumpy(), 2 * plain.get_outputs()[0].asnumpy(), rtol=1e-6)


class Scaled(mx.mod.PythonModule):
    """A module in Python that has an output and no loss."""

    def _compute_output_shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [("scaled_output", self.data_shapes[0][1])]

    def forward(self, data_batch: Any, is_train: bool | None = None) -> None:
        self.out = 3 * data_batch.data[0]

    def get_outputs(self, merge_multi_context: bool = True) -> list[mx.NDArray]:
        return [self.out]


def test_a_module_in_python_scores() -> None:
    chained = Scaled(["data"], ["softmax_label"], ["scaled_output"])
    chained.bind(DATA, LABEL)
    chained.init_params()
    x = np.eye(4, 5, dtype="float32")
    iterator = mx.io.NDArrayIter(x, np.array([0, 1, 2, 0]), 4)
    assert chained.score(iterator, "acc") == [("accuracy", 0.75)]
    np.testing.assert_array_equal(chained.predict(iterator).asnumpy(), 3 * x)
    assert chained.get_params() == ({}, {})


def two_of_one_name() -> None:
    chained = chain(mx.mod.Module(layer("fc", 8), label_names=[]), mx.mod.Module(layer("fc"), label_names=[]))
    chained.bind(DATA, LABEL)
    chained.init_params()


def wired_to_too_many() -> None:
    data = mx.sym.Variable("data")
    pair = mx.sym.Group([mx.sym.FullyConnected(data, num_hidden=3, name=name) for name in ("a", "b")])
    chain(mx.mod.Module(pair, label_names=[])).bind(DATA, LABEL)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: mx.mod.SequentialModule().bind(DATA), AssertionError, "a chain with modules, got an empty one"),
        (lambda: mx.mod.SequentialModule().add(Scaled([], [], []), takes=1), AssertionError, "keywords .* got 'takes'"),
        (lambda: chain().bind(DATA, shared_module=chain()), AssertionError, "shared_module: expected None"),
        (lambda: chain().bind(DATA, for_training=False, inputs_need_grad=True), AssertionError, "inputs_need_grad"),
        (lambda: chain().forward(batch()), AssertionError, r"not bound yet: call bind"),
        (
            two_of_one_name,
            AssertionError,
            "module 1: expected parameters of other names .* 'fc_weight', which module 0",
        ),
        (wired_to_too_many, AssertionError, r"module 1: expected 1 inputs \(data\), got 2 outputs"),
        (lambda: ready(chain()).get_input_grads(), AssertionError, "inputs_need_grad=True"),
        (lambda: ready(chain(grad_func=None)).forward_backward(batch()), NotImplementedError, "give grad_func"),
        (lambda: chain(grad_func=3), AssertionError, "grad_func: expected a function, got int"),
        (lambda: chain(data_names=["a", "b"]), AssertionError, "data_names: expected one name, got 2"),
        (lambda: Scaled(["data"], None, ["o"]).bind([("x", (2,))]), AssertionError, "the names data, got x"),
        (lambda: Scaled(["data"], None, ["o"]).bind(DATA, LABEL), AssertionError, "the names of no input, got softmax"),
        (
            lambda: Scaled(["data"], None, ["o"]).bind(DATA, grad_req="add"),
            AssertionError,
            "expected 'write', got 'add'",
        ),
        (
            lambda: mx.mod.PythonModule(["data"], None, ["o"]).bind(DATA),
            NotImplementedError,
            "PythonModule must define _compute_output_shapes",
        ),
        (lambda: mx.mod.BucketingModule(by_key, "a").save_checkpoint("x", 1), AssertionError, "with buckets, got none"),
        (lambda: bound_by_key().save_checkpoint("x", 1), ValueError, "integers as bucket keys, got 'a'"),
        (
            lambda: mx.mod.BucketingModule.load_dict({}, by_key, 3),
            AssertionError,
            "BucketingModule: arg_params, aux_params: expected a value, got None",
        ),
    ],
)
def test_bad_input_is_one_sentence(call: Callable[[], Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def by_key(key: object) -> tuple[mx.Symbol, list[str], list[str]]:
    return layer("fc"), ["data"], []


def bound_by_key() -> mx.mod.BucketingModule:
    chained = mx.mod.BucketingModule(by_key, "a")
    chained.bind(DATA)
    return chained
