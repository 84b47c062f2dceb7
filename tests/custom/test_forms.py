"""Every form of an operator, on both engines: values, gradients, requests, types, states."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from tests.custom import operators as own

pytestmark = pytest.mark.usefixtures("engine")
X = np.array([[1, -2, 3], [4, 5, -6]], "float32")


def custom(op_type: str, **kwargs: Any) -> Any:
    return mx.sym.Custom(mx.sym.Variable("data"), op_type=op_type, name="op", **kwargs)


def test_state_belongs_to_the_executor_and_both_directions_share_it() -> None:
    net = custom("recording")
    first, second = (net.simple_bind(mx.cpu(), data=(2, 3)) for _ in range(2))
    for executor, runs in ((first, 3), (second, 1)):
        for _ in range(runs):
            [out] = executor.forward(is_train=True, data=X)
        executor.backward(mx.nd.ones((2, 3)))
        assert executor.aux_dict["op_calls"].asnumpy().tolist() == [runs, 1, runs]
        assert np.array_equal(out.asnumpy(), X * 2)
        assert np.array_equal(executor.grad_dict["data"].asnumpy(), np.full((2, 3), 2))
    first.forward(is_train=False)
    assert first.aux_dict["op_calls"].asnumpy().tolist() == [4, 0, 0]


@pytest.mark.parametrize("looped", [False, True])
def test_a_second_backward_does_not_run_forward_again(looped: bool) -> None:
    def body(x: Any, state: Any) -> Any:
        return mx.sym.Custom(x, op_type="recording", name="op") * state, state

    if looped:
        net, _ = mx.sym.contrib.foreach(body, mx.sym.Variable("data"), mx.sym.ones(3))
    else:
        net = custom("recording")
    for _ in range(6):
        net = mx.sym.tanh(net) * net
    executor = net.simple_bind(mx.cpu(), data=(2, 3))
    executor.forward(is_train=True, data=X)
    gradients = []
    for _ in range(3):
        executor.backward(mx.nd.ones((2, 3)))
        gradients.append(executor.grad_dict["data"].asnumpy())
        assert executor.aux_dict["op_calls"].asnumpy()[0] == 1  # a loop has an instance for each step
    assert np.array_equal(gradients, [gradients[0]] * 3)


@pytest.mark.parametrize("req", ["write", "add", "null"])
def test_requests(req: str) -> None:
    net = custom("square_of_mine")
    executor = net.simple_bind(mx.cpu(), data=(2, 3), grad_req=req)
    executor.forward(is_train=True, data=X)
    if req == "null":
        assert executor.grad_dict["data"] is None
        return
    executor.grad_dict["data"][:] = 10
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones((2, 3)))
    expected = 2 * X if req == "write" else 10 + 4 * X
    assert np.allclose(executor.grad_dict["data"].asnumpy(), expected)


def test_in_the_middle_of_a_network() -> None:
    data = mx.sym.Variable("data")
    net = mx.sym.Custom(data * 2, op_type="square_of_mine")
    net = mx.sym.Custom(net, op_type="square_of_mine") + data
    executor = net.simple_bind(mx.cpu(), data=(2, 3))
    [out] = executor.forward(is_train=True, data=X)
    executor.backward(mx.nd.ones((2, 3)))
    assert np.allclose(out.asnumpy(), 16 * X**4 + X)
    assert np.allclose(executor.grad_dict["data"].asnumpy(), 64 * X**3 + 1)


def test_keyword_arguments_are_strings_or_what_annotations_say() -> None:
    net = custom("power_of_mine", exponent=3, scale=0.5, axes=(1, 2), keep=True)
    assert net.attr("exponent") == "3"
    assert net.attr("scale") == "0.5"
    [out] = net.eval(mx.cpu(), data=mx.nd.array(np.abs(X)))
    assert np.allclose(out.asnumpy(), np.abs(X) ** 1.5, rtol=1e-5)
    with pytest.raises(mx.MXNetError, match="unexpected keyword argument 'power'"):
        custom("power_of_mine", power=3)
    with pytest.raises(mx.MXNetError, match=r"parameter 'scale': expected float, got 'much'"):
        custom("power_of_mine", scale="much")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "int32"])
def test_types(dtype: str) -> None:
    net = custom("square_of_mine")
    values = np.array([[1, 2, 3]], dtype)
    executor = net.simple_bind(mx.cpu(), data=(1, 3), type_dict={"data": dtype})
    [out] = executor.forward(is_train=True, data=values)
    assert out.dtype == np.dtype(dtype).type
    assert out.asnumpy().tolist() == [[1, 4, 9]]
    executor.backward(mx.nd.ones((1, 3), dtype=dtype))
    assert executor.grad_dict["data"].asnumpy().tolist() == [[2, 4, 6]]
    assert executor.grad_dict["data"].dtype == np.dtype(dtype).type


def test_several_inputs_states_and_outputs_of_several_types() -> None:
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="mixed", name="m")
    assert net.list_arguments() == ["data", "m_index"]
    assert net.list_auxiliary_states() == ["m_runs", "m_seen"]
    assert net.list_outputs() == ["m_sum", "m_twice"]
    assert net.infer_shape(data=(2, 3)) == ([(2, 3), (4,)], [(2, 3), (4,)], [(1,), (2,)])
    assert net.infer_type(data="float16") == (
        [np.float16, np.uint8],
        [np.float16, np.int32],
        [np.float64, np.int32],
    )
    executor = net.simple_bind(mx.cpu(), data=(2, 3), type_dict={"data": "float64"})
    for _ in range(2):
        total, twice = executor.forward(is_train=True, data=X, m_index=np.array([1, 2, 3, 200], "uint8"))
    executor.backward([mx.nd.ones((2, 3), dtype="float64"), mx.nd.zeros((4,), dtype="int32")])
    assert np.array_equal(total.asnumpy(), X + 1)
    assert twice.asnumpy().tolist() == [2, 4, 6, 400]
    assert executor.aux_dict["m_runs"].asnumpy().tolist() == [2]
    assert executor.aux_dict["m_seen"].asnumpy().tolist() == [8, 8]
    assert executor.grad_dict["data"].asnumpy().tolist() == [[1] * 3] * 2
    assert executor.grad_dict["m_index"].asnumpy().tolist() == [0] * 4


def test_without_inputs() -> None:
    net = mx.sym.Custom(op_type="ones_of_mine", name="o") * mx.sym.Variable("data")
    assert net.infer_shape()[1] == [(2, 2)]
    [out] = net.eval(mx.cpu(), data=mx.nd.full((2, 2), 3))
    assert out.asnumpy().tolist() == [[3, 3], [3, 3]]


def test_what_backward_does_not_read_need_not_be_kept() -> None:
    def arena(op_type: str) -> int:
        net = mx.sym.Variable("data")
        for _ in range(6):
            net = mx.sym.Custom(net, op_type=op_type)
        executor = net.simple_bind(mx.cpu(), data=(256, 256))
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones((256, 256)))
        assert executor.grad_dict["data"].asnumpy()[0, 0] == (3**6 if op_type == "frugal" else 0)
        memory = executor._session.describe(executor._id, "describe_executor")
        return int(memory["arena_bytes"])

    assert arena("frugal") < 0.6 * arena("square_of_mine")


def test_reading_what_was_not_declared_is_told() -> None:
    executor = custom("frugal", reads="in_data").simple_bind(mx.cpu(), data=(2, 3))
    executor.forward(is_train=True)
    executor.backward(mx.nd.ones((2, 3)))
    with pytest.raises(mx.MXNetError, match=r"in_data\[0\] \(data\) is not given to backward: expected declare_back"):
        executor.grad_dict["data"].asnumpy()


def test_a_loss_needs_no_head_gradient() -> None:
    data, label = mx.sym.Variable("data"), mx.sym.Variable("label")
    net = own.ArraySoftmax()(data=data, label=label, name="softmax")
    executor = net.simple_bind(mx.cpu(), data=(2, 3), label=(2,), grad_req={"data": "write"})
    [out] = executor.forward(is_train=True, data=X, label=np.array([0, 2]))
    executor.backward()
    expected = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
    assert np.allclose(out.asnumpy(), expected, atol=1e-6)
    assert np.allclose(executor.grad_dict["data"].asnumpy(), expected - np.eye(3)[[0, 2]], atol=1e-6)


def test_instances_with_different_state_in_one_graph() -> None:
    data = mx.sym.Variable("data")
    second = own.Tile(np.int64(2), scale=1)
    second.scale = 5
    net = mx.sym.Group([own.Tile(3)(data, name="a"), second(data=data, name="b")])
    second.scale = 7  # after it was called: the symbol has noted 5
    assert net.list_outputs() == ["a_output", "b_output"]
    assert net.infer_shape(data=(2, 3))[1] == [(2, 3, 3), (2, 3, 2)]
    executor = net.simple_bind(mx.cpu(), data=(2, 3))
    a, b = executor.forward(is_train=True, data=X)
    assert np.array_equal(a.asnumpy(), np.repeat(X[..., None], 3, -1))
    assert np.array_equal(b.asnumpy(), np.repeat(X[..., None] * 5, 2, -1))
    executor.backward([mx.nd.ones((2, 3, 3)), mx.nd.ones((2, 3, 2))])
    assert np.array_equal(executor.grad_dict["data"].asnumpy(), np.full((2, 3), 3 + 10))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_numpy_op_requests_and_types(dtype: str) -> None:
    net = own.Tile(2)(data=mx.sym.Variable("data"), name="t")
    executor = net.simple_bind(mx.cpu(), data=(2, 3), grad_req="add", type_dict={"data": dtype})
    executor.grad_dict["data"][:] = 10
    [out] = executor.forward(is_train=True, data=X.astype(dtype))
    executor.backward(mx.nd.ones((2, 3, 2), dtype=dtype))
    assert out.dtype == np.dtype(dtype).type
    assert executor.grad_dict["data"].asnumpy().tolist() == [[12] * 3] * 2


def test_the_json_of_a_native_operator_is_readable() -> None:
    net = own.Tile(3, scale=2)(data=mx.sym.Variable("data"), name="t")
    attrs = net.attr_dict()["t"]
    assert attrs["op_type"] == "Tile"
    assert attrs["args"] == "[3]"
    assert attrs["kwargs"] == "{'scale': 2}"
    again = mx.sym.load_json(net.tojson())
    assert again.tojson() == net.tojson()
    assert again.infer_shape(data=(2,))[1] == [(2, 3)]


def test_constructor_arguments_are_plain_values() -> None:
    with pytest.raises(mx.MXNetError, match="Tile: constructor arguments: expected plain values"):
        own.Tile(3, scale=np.array([object()]))(data=mx.sym.Variable("data"))


def test_imperative() -> None:
    x = mx.nd.array(X)
    assert np.array_equal(mx.nd.Custom(x, op_type="square_of_mine").asnumpy(), X * X)
    assert np.array_equal(mx.nd.Custom(data=x, op_type="power_of_mine", exponent=3).asnumpy(), X**3)
    calls = mx.nd.zeros((3,))
    out = mx.nd.zeros((2, 3))
    for _ in range(2):
        mx.nd.Custom(x, calls, op_type="recording", out=out)
    assert np.array_equal(out.asnumpy(), X * 2)
    assert calls.asnumpy().tolist() == [1, 0, 0]
    a, b = mx.nd.Custom(
        x, mx.nd.ones((4,), dtype="uint8"), mx.nd.zeros((1,), dtype="float64"), mx.nd.zeros((2,), dtype="int32"),
        op_type="mixed",
    )  # fmt: skip
    assert b.asnumpy().tolist() == [2] * 4
    assert np.array_equal(a.asnumpy(), X + 1)
    assert mx.nd.Custom(op_type="ones_of_mine").asnumpy().tolist() == [[1, 1], [1, 1]]
    with pytest.raises(mx.MXNetError, match="expected the inputs data, calls, got 1 by position"):
        mx.nd.Custom(x, op_type="recording")


def test_inference_with_what_is_known() -> None:
    net = mx.sym.Custom(mx.sym.Variable("data"), op_type="mixed", name="m")
    assert net.infer_shape_partial()[0] == [(), (4,)]
    with pytest.warns(UserWarning, match="infer_shape: give more shapes"):
        assert net.infer_shape() == (None, None, None)
    fc = mx.sym.FullyConnected(custom("square_of_mine"), num_hidden=4)
    assert fc.infer_shape_partial(data=(0, 3))[:2] == ([(0, 3), (4, 3), (4,)], [(0, 4)])


def test_empty_batches() -> None:
    x = mx.nd.array(np.zeros((0, 3), "float32"))
    assert mx.nd.Custom(x, op_type="square_of_mine").shape == (0, 3)
