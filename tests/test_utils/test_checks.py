"""What the checks of `mx.test_utils` accept, and what they catch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox import test_utils as tu

RNG = np.random.default_rng(3)
X = mx.sym.Variable("x")


def biased(scale: float = 1.0) -> Any:
    """tanh(x), whose gradient is `scale` times what it should be."""
    forward = mx.sym.tanh(X)
    return mx.sym.BlockGrad(forward - scale * forward) + scale * forward


def test_numeric_gradients_of_right_and_wrong_ones() -> None:
    at = [RNG.normal(size=(3, 4))]
    tu.check_numeric_gradient(mx.sym.tanh(X), at, rtol=1e-2, atol=1e-3)
    tu.check_numeric_gradient(mx.sym.tanh(X), at, dtype=np.float64)
    tu.check_numeric_gradient(biased(1.0), at, dtype=np.float64)
    with pytest.raises(AssertionError, match="NUMERICAL_x and BACKWARD_x differ in 12 of 12 elements"):
        tu.check_numeric_gradient(biased(1.1), at, dtype=np.float64)


def test_numeric_gradients_by_request() -> None:
    y = mx.sym.Variable("y")
    net = mx.sym.broadcast_mul(X, y)
    at = {"x": RNG.normal(size=(3, 4)), "y": RNG.normal(size=(1, 4))}
    for nodes in (["x"], {"x": "add", "y": "null"}, {"y": "write", "x": "add"}):
        tu.check_numeric_gradient(net, at, grad_nodes=nodes, dtype=np.float64)
    with pytest.raises(ValueError, match="expected 'write', 'add' or 'null', got 'inplace'"):
        tu.check_numeric_gradient(net, at, grad_nodes={"x": "inplace"})
    with pytest.raises(ValueError, match="arguments: expected x, y, got x"):
        tu.check_numeric_gradient(net, {"x": at["x"]})
    with pytest.raises(ValueError, match="all arrays are dense"):
        tu.check_numeric_gradient(net, at, grad_stype_dict={"x": "row_sparse"})


def test_numeric_gradients_with_auxiliary_states() -> None:
    net = mx.sym.BatchNorm(mx.sym.Variable("data"), fix_gamma=False, name="bn")
    at = {"data": RNG.normal(size=(4, 3)), "bn_gamma": np.ones(3), "bn_beta": np.zeros(3)}
    states = {"bn_moving_mean": np.zeros(3), "bn_moving_var": np.ones(3)}
    tu.check_numeric_gradient(net, at, states, rtol=1e-2, atol=1e-3, dtype=np.float64)


def test_symbolic_forward() -> None:
    net = mx.sym.dot(mx.sym.Variable("lhs"), mx.sym.Variable("rhs"), name="dot")
    one, other = RNG.normal(size=(2, 3)), RNG.normal(size=(3, 4))
    tu.check_symbolic_forward(net, [one, other], [one @ other])
    [got] = tu.check_symbolic_forward(net, {"rhs": other, "lhs": one}, {"dot_output": one @ other}, dtype=np.float64)
    assert got.dtype == np.float64
    with pytest.raises(AssertionError, match="EXPECTED_dot_output and FORWARD_dot_output differ"):
        tu.check_symbolic_forward(net, [one, other], [one @ other + 1])


@pytest.mark.parametrize("request_", ["write", "add", "null"])
def test_symbolic_backward(request_: str) -> None:
    net, y = X * mx.sym.Variable("y"), RNG.normal(size=(2, 3))
    x, head = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3))
    tu.check_symbolic_backward(net, [x, y], [head], [head * y, head * x], grad_req=request_)
    grads = tu.check_symbolic_backward(net, {"x": x, "y": y}, [head], {"y": head * x}, grad_req=[request_] * 2)
    assert list(grads) == ["y"]
    if request_ != "null":
        with pytest.raises(AssertionError, match="EXPECTED_x and BACKWARD_x differ"):
            tu.check_symbolic_backward(net, [x, y], [head], {"x": head}, grad_req=request_)


def test_consistency_of_types() -> None:
    runs = [{"ctx": mx.cpu(), "x": (3, 4), "type_dict": {"x": dtype}} for dtype in (np.float64, np.float32, np.float16)]
    truth = tu.check_consistency(mx.sym.tanh(X, name="t"), runs)
    assert {name: array.dtype.name for name, array in truth.items()} == {"t_output": "float64", "x": "float64"}
    tu.check_consistency(mx.sym.tanh(X), runs, grad_req="add", use_uniform=True, rand_type=np.float16)


def test_consistency_of_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    runs = [{"ctx": mx.cpu(), "x": (3, 4)}] * 2
    pair = [biased(1.0), biased(2.0)]
    with pytest.raises(ValueError, match="same arguments and outputs"):
        tu.check_consistency([mx.sym.tanh(X), mx.sym.tanh(mx.sym.Variable("z"))], runs)
    named = [mx.sym.identity(sym, name="same") for sym in pair]
    with pytest.raises(AssertionError, match="Train: run 1: RUN_1_x and TRUTH_x differ"):
        tu.check_consistency(named, runs)
    tu.check_consistency(named, runs, raise_on_err=False)
    assert "TRUTH_x differ" in capsys.readouterr().out


def test_simple_forward_and_speed() -> None:
    np.testing.assert_allclose(tu.simple_forward(mx.sym.tanh(X), x=np.ones(3)), np.tanh(np.ones(3)), rtol=1e-6)
    one, other = tu.simple_forward(mx.sym.Group([X + 1, X * 2]), x=np.ones(3))
    assert one.tolist() == other.tolist() == [2, 2, 2]
    assert tu.check_speed(mx.sym.tanh(X), N=2, x=(3, 4)) > 0
    assert tu.check_speed(mx.sym.tanh(X), {"x": np.ones((3, 4))}, N=2, typ="forward") > 0
    with pytest.raises(ValueError, match="typ: expected 'whole' or 'forward'"):
        tu.check_speed(mx.sym.tanh(X), typ="backward", x=(3, 4))


def test_comparing() -> None:
    one = np.array([1.0, 2.0, np.nan])
    assert tu.same(mx.nd.array([1, 2]), [1, 2])
    assert not tu.almost_equal(one, one)
    assert tu.almost_equal(one, one, equal_nan=True)
    assert not tu.almost_equal(np.ones((1, 3)), np.ones(3), use_broadcast=False)
    tu.assert_almost_equal_ignore_nan(one, [1, 2, 3])
    tu.assert_almost_equal_with_err(np.ones(10), np.r_[np.ones(9), 2], etol=0.11)
    with pytest.raises(AssertionError, match="differ in 1 of 10"):
        tu.assert_almost_equal_with_err(np.ones(10), np.r_[np.ones(9), 2], etol=0.05)
    tu.assert_almost_equal(np.float32([1.0]), np.float32([1.04]), rtol={np.float32: 0.1})
    tu.assert_exception(int, ValueError, "x")
    with pytest.raises(AssertionError, match="expected ValueError, got no error"):
        tu.assert_exception(int, ValueError, "1")
    tu.compare_ndarray_tuple((mx.nd.ones(2), (mx.nd.ones(2), None)), (np.ones(2), (np.ones(2), None)))


def test_the_looser_tolerance_of_two_types_holds() -> None:
    assert tu.get_tols(np.float16(1), np.float64(1), None, None) == (1e-2, 1e-1)
    assert tu.get_tols(np.int32(1), np.int32(1), None, None) == (0, 0)
    assert tu.default_numeric_eps()[np.dtype("float32")] == 2.0**-9
    assert tu.get_rtol() == 1e-5
    assert tu.get_atol(dtype=np.float32) == 1e-3


def test_arrays_that_share_memory() -> None:
    x = mx.nd.ones((4, 3))
    assert tu.same_array(x[1:3], x[1:3])
    assert not tu.same_array(x, x.copy())


def test_same_structure() -> None:
    assert tu.same_symbol_structure(mx.sym.tanh(X, name="a"), mx.sym.tanh(mx.sym.Variable("y"), name="b"))
    assert not tu.same_symbol_structure(mx.sym.tanh(X), mx.sym.exp(X))


def test_making_arrays() -> None:
    assert tu.rand_ndarray((2, 3), dtype="float16").dtype == np.float16
    with pytest.raises(mx.MXNetError, match="all arrays are dense"):
        tu.rand_ndarray((2, 3), "csr")
    one, other = tu.random_arrays((2, 3), ())
    assert (one.shape, other.shape, one.dtype.name) == ((2, 3), (), "float32")
    assert len(tu.rand_shape_nd(5)) == 5
    assert all(1 <= d <= 3 for d in tu.rand_shape_nd(50, 3))
    assert sorted(tu.random_sample(range(5), 5)) == [0, 1, 2, 3, 4]
    assert tu.np_reduce(np.ones((2, 3, 4)), (0, -1), True, np.sum).shape == (1, 3, 1)
    assert tu.collapse_sum_like(np.ones((2, 3, 4)), (3, 1)).tolist() == [[8], [8], [8]]
    assert tu.assign_each(np.arange(4).reshape(2, 2), lambda v: v + 1).tolist() == [[1, 2], [3, 4]]
    assert tu.assign_each2(np.ones(2), np.ones(2), lambda a, b: a + b).tolist() == [2, 2]
    assert tu.create_2d_tensor(2, 3).asnumpy().tolist() == [[0] * 3, [1] * 3]


def test_surroundings() -> None:
    assert tu.default_context() == mx.cpu()
    tu.set_default_context(mx.gpu(3))
    try:
        assert tu.default_context() == mx.gpu(3)
    finally:
        tu.set_default_context(None)
    with tu.environment({"OPBOX_A_TEST": "1"}), tu.environment("OPBOX_B_TEST", "2"):
        assert (os.environ["OPBOX_A_TEST"], os.environ["OPBOX_B_TEST"]) == ("1", "2")
    assert "OPBOX_A_TEST" not in os.environ
    attempts = []

    @tu.retry(3)
    def flaky() -> None:
        attempts.append(1)
        assert len(attempts) == 3

    flaky()
    assert len(attempts) == 3


def test_too_few_expected_values_are_told() -> None:
    net = mx.sym.Variable("x") * 2
    with pytest.raises(ValueError, match=r"expected: expected 1 \(.*output\), got 0"):
        tu.check_symbolic_forward(net, [np.ones(2)], [])
    with pytest.raises(ValueError, match=r"expected: expected 1 \(x\), got 2"):
        tu.check_symbolic_backward(net, [np.ones(2)], [np.ones(2)], [np.ones(2), np.ones(2)])
