"""What newcomers get wrong is one sentence with the remedy; what they expect works: frames, large arrays shown."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox.absent import attribute_error

X = np.random.default_rng(0).random((20, 4), np.float32)
Y = np.zeros(20, np.float32)


def network(name: str = "softmax", **inputs: Any) -> mx.Symbol:
    fc = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc")
    return mx.sym.SoftmaxOutput(fc, name=name, **inputs)


@pytest.mark.parametrize(
    ("place", "name", "near"),
    [
        (mx.sym, "FullyConected", "FullyConnected"),
        (mx.sym, "fullyconnected", "FullyConnected"),
        (mx.nd, "sofmax", "softmax"),
        (mx.nd.linalg, "gem2", "gemm2"),
        (mx, "Contex", "Context"),
        (mx.io, "NDArrayIterator", "NDArrayIter"),
        (mx.optimizer, "Adem", "Adam"),
    ],
)
def test_a_misspelt_name_suggests_names(place: Any, name: str, near: str) -> None:
    with pytest.raises(AttributeError, match=rf"has no attribute {name!r}: did you mean .*\b{near}\b"):
        getattr(place, name)
    assert not hasattr(place, name)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (mx, "gluon"),
        (mx, "autograd"),
        (mx, "np"),
        (mx.kvstore, "KVStoreServer"),
        (mx.executor_manager, "DataParallelExecutorManager"),
        (mx, "amp"),
        (mx.contrib, "tensorrt"),
        (mx.contrib, "quantization"),
        (mx.contrib, "amp"),
        (mx.contrib, "tensorboard"),
        (mx.nd, "cast_storage"),
        (mx.nd.sparse, "csr_matrix"),
        (mx.nd.contrib, "quantized_conv"),
        (mx.io, "ImageRecordIter_v1"),
    ],
)
def test_what_mxnet_has_and_opbox_has_not_says_so(place: Any, name: str) -> None:
    with pytest.raises(AttributeError, match=rf"{name!r}, which MXNet has: .* \(docs/differences\.md\)$"):
        getattr(place, name)


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("import opbox.gluon", "opbox.gluon"),
        ("from opbox import gluon", "opbox.gluon"),
        ("from opbox import nd, autograd", "opbox.autograd"),
        ("from opbox.gluon import nn", "opbox.gluon"),
        ("import opbox.contrib.tensorrt as trt", "opbox.contrib.tensorrt"),
        ("from opbox.contrib import tensorrt", "opbox.contrib.tensorrt"),
    ],
)
def test_imports_of_what_mxnet_has_and_opbox_has_not_say_so(statement: str, name: str) -> None:
    with pytest.raises(ImportError, match=rf"no module named '{name}', which MXNet has: .* \(docs/differences\.md\)$"):
        exec(statement, {})


def test_other_modules_are_not_there_as_anywhere() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'opbox\.nothing'$"):
        importlib.import_module("opbox.nothing")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from opbox import Nothing", {})
    assert not hasattr(mx, "gluon")


def test_names_that_tools_ask_for_cost_nothing() -> None:
    error = attribute_error("opbox.symbol", "_repr_nothing_", iter(()))
    assert str(error) == "module 'opbox.symbol' has no attribute '_repr_nothing_'"


def test_no_label() -> None:
    with pytest.raises(ValueError, match=r"^metric: expected labels to compare 1 prediction with, got none: give the"):
        mx.mod.Module(network()).fit(mx.io.NDArrayIter(X, None, 5), num_epoch=1)


def test_a_label_of_another_name() -> None:
    remedy = "make the iterator with label_name='softmax_label', or the module with label_names=['y']"
    with pytest.warns(UserWarning, match=re.escape(remedy)):
        mx.mod.Module(network()).bind([("data", (5, 4))], [("y", (5,))])


@pytest.mark.parametrize(("name", "label"), [("out", None), ("softmax", "y")])
def test_a_softmax_called_otherwise(name: str, label: str | None) -> None:
    argument = label or f"{name}_label"
    net = network(name) if label is None else network(name, label=mx.sym.Variable(label))
    with pytest.warns(UserWarning, match=re.escape(f"make the module with label_names=[{argument!r}]")):
        module = mx.mod.Module(net)
    with pytest.raises(ValueError, match=re.escape(f"make the module with label_names=[{argument!r}]")):
        module.fit(mx.io.NDArrayIter(X, Y, 5), num_epoch=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = mx.mod.Module(net, label_names=[argument])
        right.fit(mx.io.NDArrayIter(X, Y, 5, label_name=argument), num_epoch=1)


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"lr": 1}, "optimizer 'sgd': expected learning_rate, got 'lr'"),
        ({"weight_decay": 1}, "optimizer 'sgd': expected wd, got 'weight_decay'"),
        ({"momentun": 1}, "optimizer 'sgd': expected momentum, got 'momentun'"),
        ({"colour": 1}, "optimizer 'sgd': expected some of momentum, lazy_update"),
    ],
)
def test_a_wrong_argument_of_an_optimizer(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError, match=re.escape(sentence)):
        mx.optimizer.create("sgd", **params)
    module = mx.mod.Module(network())
    with pytest.raises(TypeError, match=re.escape(sentence)):
        module.fit(mx.io.NDArrayIter(X, Y, 5), num_epoch=1, optimizer_params=params)


class Frame:
    """What pandas' data frames and other libraries' tensors have in common."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.values.astype(dtype or self.values.dtype)


def test_frames_are_iterated_over_as_arrays_are() -> None:
    table = Frame(np.arange(12).reshape(6, 2))
    for data in (table, [table], {"data": table}):
        batches = mx.io.NDArrayIter(data, Frame(np.arange(6)), batch_size=3)
        assert [(desc.name, desc.shape) for desc in batches.provide_data] == [("data", (3, 2))]
        first = next(iter(batches))
        assert first.data[0].asnumpy().tolist() == [[0, 1], [2, 3], [4, 5]]
        assert first.label[0].asnumpy().tolist() == [0, 1, 2]
    np.testing.assert_array_equal(mx.nd.array(table).asnumpy(), table.values)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(2000,), (50, 60), (1, 5000), (10, 7, 300), (1001, 1), (4, 400, 2, 9)])
def test_a_large_array_is_shown_by_its_corners(
    shape: tuple[int, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = (np.random.default_rng(1).standard_normal(shape) * 100).astype(dtype)
    array = mx.nd.array(values, dtype=dtype)
    fetched: list[int] = []
    fetch = mx.NDArray.asnumpy

    def counting(self: mx.NDArray) -> np.ndarray:
        fetched.append(self.size)
        return fetch(self)

    monkeypatch.setattr(mx.NDArray, "asnumpy", counting)
    assert repr(array) == f"\n{values}\n<NDArray {'x'.join(map(str, shape))} @cpu(0)>"
    assert sum(fetched) <= 7 ** len(shape) < values.size


@pytest.mark.parametrize(
    ("make", "op"),
    [
        (lambda: mx.nd.ones((2, 3)).astype("int16"), "Cast"),
        (lambda: mx.nd.ones((2, 3), dtype="int16"), "_ones"),
        (lambda: mx.nd.arange(3, dtype="int16"), "_arange"),
    ],
)
def test_a_type_that_no_array_has_is_refused_by_the_call_that_asks_for_it(make: Any, op: str) -> None:
    with pytest.raises(mx.MXNetError, match=f"^{op}: parameter 'dtype': expected one of 'float32', .*, got 'int16'$"):
        make()


ARRAY = np.zeros((100, 20), np.float32)


def classifier() -> Any:
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3)
    return mx.mod.Module(mx.sym.SoftmaxOutput(net, name="softmax"))


def batches() -> Any:
    return mx.io.NDArrayIter(ARRAY, np.zeros(100), 10)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: mx.sym.FullyConnected(ARRAY, num_hidden=3),
            "FullyConnected: argument data must be a Symbol, got an ndarray of shape (100, 20): "
            "the function of mx.nd takes arrays",
        ),
        (
            lambda: mx.sym.relu(mx.nd.ones((2,))),
            "relu: argument data must be a Symbol, got an NDArray of shape (2,): the function of mx.nd takes arrays",
        ),
        (
            lambda: mx.nd.relu(mx.sym.Variable("x")),
            "relu: argument data must be an NDArray, got <Symbol x>: the function of mx.sym takes Symbols",
        ),
        (
            lambda: mx.sym.Concat([mx.sym.Variable("x")] * 2),
            "Concat: expected Symbols by position, got [<Symbol x>, <Symbol x>]: write Concat(*…)",
        ),
        (
            lambda: mx.nd.concat(mx.sym.Variable("x"), dim=0),
            "concat: expected NDArrays by position, got <Symbol x>: the function of mx.sym takes Symbols",
        ),
        (
            lambda: mx.nd.ones((2,), ctx="cpu"),
            "ctx: expected a Context such as mx.cpu() or mx.gpu(0), got 'cpu'",
        ),
        (lambda: mx.nd.array([1], ctx="gpu"), "ctx: expected a Context such as mx.cpu() or mx.gpu(0), got 'gpu'"),
        (
            lambda: mx.nd.ones((2,)).as_in_context("cpu"),
            "context: expected a Context such as mx.cpu() or mx.gpu(0), got 'cpu'",
        ),
        (
            lambda: mx.sym.Variable("x").simple_bind("cpu", x=(2,)),
            "ctx: expected a Context such as mx.cpu() or mx.gpu(0), got 'cpu'",
        ),
        (lambda: mx.mod.Module(ARRAY), "Module: symbol: expected a Symbol, got an ndarray of shape (100, 20)"),
        (
            lambda: mx.mod.Module(mx.sym.Variable("x"), context="gpu"),
            "context: expected a Context such as mx.cpu() or mx.gpu(0), got 'gpu'",
        ),
        (
            lambda: classifier().fit(ARRAY, num_epoch=1),
            "train_data: expected a DataIter such as mx.io.NDArrayIter(data, label, batch_size), "
            "got an ndarray of shape (100, 20)",
        ),
        (
            lambda: classifier().fit(batches(), eval_data=(1, 2), num_epoch=1),
            "eval_data: expected a DataIter such as mx.io.NDArrayIter(data, label, batch_size), got (1, 2)",
        ),
        (
            lambda: classifier().fit(batches(), num_epoch=1, initializer="xavier"),
            "initializer: expected one such as mx.init.Xavier(), or None, got 'xavier'",
        ),
        (
            lambda: classifier().fit(batches(), num_epoch=1, initializer=mx.init.Xavier),
            "initializer: expected one such as mx.init.Xavier(), or None, got the class Xavier",
        ),
    ],
)
def test_a_thing_of_another_kind_is_named_in_one_short_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(TypeError) as raised:
        call()
    assert str(raised.value) == sentence


def test_a_module_of_no_device() -> None:
    with pytest.raises(ValueError, match=r"^context: expected a Context or a list of them, got an empty list$"):
        mx.mod.Module(mx.sym.Variable("x"), context=[])


def test_scoring_takes_an_iterator() -> None:
    mod = classifier()
    mod.bind([("data", (10, 20))], [("softmax_label", (10,))])
    mod.init_params()
    with pytest.raises(TypeError, match=r"^eval_data: expected a DataIter such as .*, got an ndarray of shape"):
        mod.score(ARRAY, "acc")


def test_a_long_value_is_cut_short() -> None:
    with pytest.raises(TypeError) as raised:
        mx.sym.relu("x" * 1000)
    assert len(str(raised.value)) < 120


@pytest.mark.parametrize(
    ("dtype", "got"),
    [("flaot32", "'flaot32'; did you mean 'float32'?"), ("foo", "'foo'"), (13, "13"), ("", "''")],
)
def test_what_is_no_element_type_is_named_with_those_that_are(dtype: Any, got: str) -> None:
    sentence = f"element type: expected one of float32, float64, float16, .*, got {re.escape(got)}$"
    for make in (mx.nd.ones((2, 3)).astype, lambda kind: mx.nd.zeros((2,), dtype=kind)):
        with pytest.raises(TypeError, match=sentence):
            make(dtype)


@pytest.mark.parametrize("values", ["text", [1, "a"], {"a": 1}, [[1, 2], [3]]])
def test_values_that_make_no_array(values: Any) -> None:
    with pytest.raises(
        TypeError, match=r"array: expected a number, lists of numbers of equal lengths, or an array, got "
    ):
        mx.nd.array(values)


@pytest.mark.parametrize("key", ["a", 1.5, (0, "a")])
def test_an_index_that_is_none(key: Any) -> None:
    x = mx.nd.ones((2, 3))
    sentence = r"index ('a'|1\.5): expected integers, slices, None, or lists and arrays of integers or booleans"
    with pytest.raises(IndexError, match=sentence):
        x[key]
    with pytest.raises(IndexError, match=sentence):
        x[key] = 0
