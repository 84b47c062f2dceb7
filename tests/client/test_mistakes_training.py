"""Mistakes around training, files and kernels: each is one sentence with the remedy, before any work is done."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opbox as mx

X = np.random.default_rng(0).random((20, 4), np.float32)
Y = np.zeros(20, np.float32)


def network(layer: str = "fc") -> mx.Symbol:
    fc = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name=layer)
    return mx.sym.SoftmaxOutput(fc, name="softmax")


def batches(label: Any = Y, **options: Any) -> Any:
    return mx.io.NDArrayIter(X, label, **{"batch_size": 5, **options})


def fit(**options: Any) -> None:
    mx.mod.Module(network()).fit(batches(), num_epoch=1, **options)


def ready(layer: str = "fc") -> Any:
    module = mx.mod.Module(network(layer))
    module.bind([("data", (5, 4))], [("softmax_label", (5,))])
    module.init_params()
    return module


def batch(*shapes: tuple[int, ...]) -> Any:
    return mx.io.DataBatch([mx.nd.ones(shape) for shape in shapes], [mx.nd.ones((5,))])


def one_argument(name: str) -> None:
    """A callback of another signature than any."""


WORDS: Any = [["a", "b"]]
WHICH: Any = "all"
ARRAY: Any = mx.nd.ones((2,))
CLASSES = ": np.unique(labels, return_inverse=True)[1] numbers classes"
DESCRIPTIONS = "expected a list of names with their shapes such as [('data', (100, 784))], got "


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        # What is fed.
        (
            lambda: batches(np.array(["cat", "dog"] * 10)),
            TypeError,
            f"softmax_label: expected numbers, got 'cat' among them{CLASSES}",
        ),
        (
            lambda: batches(["cat", "dog"] * 10),
            TypeError,
            f"softmax_label: expected numbers, got 'cat' among them{CLASSES}",
        ),
        (
            lambda: batches([0, 1] * 10),
            TypeError,
            "softmax_label: expected an array or a list of arrays, got a list of numbers: np.array(…) makes it one",
        ),
        (
            lambda: batches([[0], [1, 2]]),
            ValueError,
            "_0_softmax_label: expected 20 samples along axis 0 as in data, got shape (1,): a list stands for several "
            "arrays, np.array(…) makes it one",
        ),
        (lambda: batches(batch_size=0), ValueError, "batch_size: expected an integer of at least 1, got 0"),
        (lambda: batches(batch_size=2.5), ValueError, "batch_size: expected an integer of at least 1, got 2.5"),
        (
            lambda: mx.mod.Module(network()).bind((5, 4), (5,)),
            TypeError,
            f"data_shapes: {DESCRIPTIONS}(5, 4)",
        ),
        (
            lambda: mx.mod.Module(network()).bind([("data", (5, 4))], [("softmax_label", 5)]),
            TypeError,
            f"label_shapes: {DESCRIPTIONS}[('softmax_label', 5)]",
        ),
        (
            lambda: ready().forward(mx.nd.ones((5, 4))),
            TypeError,
            "data_batch: expected one such as mx.io.DataBatch([array], [label]), got an NDArray of shape (5, 4)",
        ),
        (
            lambda: ready().forward(X),
            TypeError,
            "data_batch: expected one such as mx.io.DataBatch([array], [label]), got an ndarray of shape (20, 4)",
        ),
        (
            lambda: ready().forward(batch((5, 4), (5, 4))),
            ValueError,
            "batch: expected 1 arrays (data), got 2",
        ),
        (lambda: ready().predict("x.csv"), ValueError, "eval_data: expected a DataIter or an array, got 'x.csv'"),
        (
            lambda: mx.rnn.BucketSentenceIter(WORDS, 1),
            TypeError,
            "sentences: expected lists of numbers, got ['a', 'b']: mx.rnn.encode_sentences numbers words",
        ),
        # How it is trained.
        (
            lambda: fit(eval_metric=mx.metric.Accuracy),
            TypeError,
            "metric: expected one such as Accuracy(), got the class: call it",
        ),
        (
            lambda: fit(optimizer=mx.optimizer.Adam),
            AssertionError,
            "optimizer: expected a name, or one such as mx.optimizer.SGD(), got the class Adam",
        ),
        (
            lambda: fit(optimizer_params=[0.1]),
            TypeError,
            "optimizer_params: expected a dict such as {'learning_rate': 0.1}, got [0.1]",
        ),
        (
            lambda: fit(optimizer_params={"learning_rate": "0.1"}),
            TypeError,
            "optimizer: learning_rate: expected a number, got '0.1'",
        ),
        (lambda: fit(optimizer_params={"wd": [1]}), TypeError, "optimizer: wd: expected a number, got [1]"),
        (
            lambda: fit(optimizer_params={"lr_scheduler": 0.1}),
            TypeError,
            "optimizer: lr_scheduler: expected one such as mx.lr_scheduler.FactorScheduler(1000, 0.5), got 0.1",
        ),
        (
            lambda: fit(optimizer_params={"lr_scheduler": mx.lr_scheduler.FactorScheduler}),
            TypeError,
            "optimizer: lr_scheduler: expected one such as mx.lr_scheduler.FactorScheduler(1000, 0.5), "
            "got the class FactorScheduler",
        ),
        (
            lambda: fit(batch_end_callback=lambda: None),
            TypeError,
            "batch_end_callback: expected a function of (param), or a list of them, got <lambda>()",
        ),
        (
            lambda: fit(epoch_end_callback=[one_argument]),
            TypeError,
            "epoch_end_callback: expected a function of (epoch, symbol, arg_params, aux_params), or a list of them, "
            "got one_argument(name: 'str') -> 'None'",
        ),
        (
            lambda: fit(eval_end_callback=5),
            TypeError,
            "eval_end_callback: expected a function of (param), or a list of them, got 5",
        ),
        (
            lambda: fit(batch_end_callback=mx.callback.Speedometer),
            TypeError,
            "batch_end_callback: expected a function of (param), or a list of them, got the class Speedometer",
        ),
        (lambda: mx.mon.Monitor(WHICH), ValueError, "interval: expected a number of batches, got 'all'"),
        # What is composed and bound.
        (
            lambda: network().simple_bind(mx.cpu(), grad_reqs="add", data=(5, 4)),
            TypeError,
            "simple_bind: 'grad_reqs': expected the shape of an argument, or one of ctx, grad_req, type_dict, "
            "got 'add'",
        ),
        (
            lambda: network().simple_bind(mx.cpu(), data=5),
            TypeError,
            "simple_bind: data: expected a shape such as (2, 3), got 5",
        ),
        (
            lambda: (mx.sym.Variable("a") + 1).bind(mx.cpu(), {"a": X}),
            TypeError,
            "args: expected an NDArray for 'a', got an ndarray of shape (20, 4): mx.nd.array(…) makes one",
        ),
        (
            lambda: mx.rnn.LSTMCell(4)(mx.sym.Variable("x"), []),
            ValueError,
            "LSTMCell: states: expected 2, got 0: begin_state() makes the first",
        ),
        (
            lambda: mx.sym.Variable("x") + ARRAY,
            TypeError,
            "lhs + rhs: type <class 'opbox.ndarray.array.NDArray'> not supported: expected a Symbol or a number beside "
            "a Symbol, got an NDArray of shape (2,): mx.sym.Variable stands for an array",
        ),
        (
            lambda: mx.nd.ones((2,)) * "a",
            TypeError,
            "lhs * rhs: type <class 'str'> not supported: expected an NDArray or a number beside an NDArray, got 'a'",
        ),
        (lambda: mx.nd.zeros("2,3"), TypeError, "shape: expected an integer or a tuple of integers, got '2,3'"),
        (lambda: mx.nd.ones((2, 0.5)), TypeError, "shape: expected an integer or a tuple of integers, got (2, 0.5)"),
        (
            lambda: mx.nd.random.uniform(0, 1, "2"),
            TypeError,
            "shape: expected an integer or a tuple of integers, got '2'",
        ),
    ],
)
def test_it_is_one_sentence(call: Callable[[], Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind) as raised:
        call()
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("call", "beginning"),
    [
        (lambda: fit(eval_metric="acuracy"), "metric 'acuracy': did you mean accuracy or "),
        (lambda: fit(optimizer="adm"), "optimizer 'adm': did you mean adam or "),
        (lambda: fit(optimizer="what"), "optimizer 'what': expected one of adadelta, adagrad, adam, "),
    ],
)
def test_a_misspelt_name_of_a_metric_or_optimizer(call: Callable[[], Any], beginning: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=f"^{re.escape(beginning)}"):
        call()


def test_parameters_of_another_network(tmp_path: Path) -> None:
    file = str(tmp_path / "a.params")
    ready("other").save_params(file)
    with pytest.raises(RuntimeError) as raised:
        ready().load_params(file)
    assert str(raised.value) == (
        "fc_bias is not presented: parameters: 'other_weight' is none of the arguments (data, fc_weight, fc_bias, "
        "softmax_label): are they of another network? allow_extra=True leaves it out"
    )


def test_files_of_another_kind(tmp_path: Path) -> None:
    parameters, text = tmp_path / "a.params", tmp_path / "a.json"
    mx.nd.save(str(parameters), [mx.nd.array(np.full((3,), -1e30))])
    text.write_text("no graph")
    with pytest.raises(mx.MXNetError) as raised:
        mx.sym.load(str(parameters))
    sentence = f"{parameters}: expected a symbol's JSON, got bytes that are no text: mx.nd.load reads parameters"
    assert str(raised.value) == sentence
    with pytest.raises(mx.MXNetError, match=rf"^{re.escape(str(text))}: symbol JSON: the graph is not JSON"):
        mx.sym.load(str(text))
    with pytest.raises(mx.MXNetError, match=r"it is cut off, or no file of mx\.nd\.save's$"):
        mx.nd.load(str(text))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"w": X}, "save: expected NDArrays only, got an ndarray of shape (20, 4): mx.nd.array(…) makes one"),
        ([3], "save: expected NDArrays only, got 3: mx.nd.array(…) makes one"),
        ({1: mx.nd.ones((1,))}, "save: expected names that are strings, got 1"),
    ],
)
def test_only_arrays_are_saved(data: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError) as raised:
        mx.nd.save(str(tmp_path / "a.params"), data)
    assert str(raised.value) == sentence


def test_floats_of_numpy_beside_an_array_take_its_type() -> None:
    for array in (mx.nd.ones((2,)), mx.nd.ones((2,), dtype="float16")):
        for out in (array + np.ones(2), np.ones(2) + array, array * np.ones(2, np.float16)):
            assert out.dtype == array.dtype
    with pytest.raises(mx.MXNetError, match="expected type float32, got int64"):
        (mx.nd.ones((2,)) + np.ones(2, np.int64)).asnumpy()


def test_a_prop_may_forget_its_base_class() -> None:
    class Twice(mx.operator.CustomOp):
        def forward(self, is_train: Any, req: Any, in_data: Any, out_data: Any, aux: Any) -> None:
            self.assign(out_data[0], req[0], in_data[0] * 2)

        def backward(self, req: Any, out_grad: Any, in_data: Any, out_data: Any, in_grad: Any, aux: Any) -> None:
            self.assign(in_grad[0], req[0], out_grad[0] * 2)

    @mx.operator.register("twice_without_base")
    class TwiceProp(mx.operator.CustomOpProp):
        def __init__(self) -> None:
            pass

        def create_operator(self, ctx: Any, shapes: Any, dtypes: Any) -> Any:
            return Twice()

    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="twice_without_base")
    executor = net.simple_bind(mx.cpu(), data=(2,))
    executor.arg_dict["data"][:] = 3
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((2,)))
    assert executor.outputs[0].asnumpy().tolist() == [6, 6]
    gradient = executor.grad_dict["data"]
    assert gradient is not None
    assert gradient.asnumpy().tolist() == [2, 2]
