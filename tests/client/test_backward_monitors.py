"""What a monitor sees of backward, and where zeros flow: as MXNet 1.9.1 shows it for these networks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import opbox as mx

A, B = mx.sym.var("a"), mx.sym.var("b")
X, Y = mx.sym.exp(A, name="x"), mx.sym.exp(A, name="y")
HEAD = "_head_grad_0 _head_grad_0_id_lhs _head_grad_0_id_rhs _head_grad_0_id_output"
HEAD_1 = HEAD.replace("_0", "_1")
EXP = "x_backward_lhs x_backward_rhs x_backward_output"


def residual() -> Any:
    first = mx.sym.Activation(mx.sym.FullyConnected(A, num_hidden=4, name="f1"), act_type="tanh", name="t1")
    second = mx.sym.Activation(mx.sym.FullyConnected(first, num_hidden=4, name="f2"), act_type="relu", name="t2")
    return mx.sym.LinearRegressionOutput(mx.sym.elemwise_add(first, second, name="r"), B, name="lro")


SHOWN: dict[str, tuple[Any, dict[str, tuple[int, ...]], str]] = {
    "a loss": (
        residual(),
        {"a": (2, 3), "b": (2, 4)},
        "b lro_backward_input0 lro_backward_input1 lro_backward_output0 lro_backward_output1 t2_backward_input0 "
        "t2_backward_input1 t2_backward_output f2_backward_input0 f2_backward_input1 f2_weight f2_backward_input2 "
        "f2_backward_output0 f2_backward_output1 f2_backward_output2 sum_grad_arg0 sum_grad_arg1 sum_grad_output "
        "t1_backward_input0 t1_backward_input1 t1_backward_input2 t1_backward_output f1_backward_input0 a "
        "f1_backward_input1 f1_weight f1_backward_input2 f1_backward_output0 f1_backward_output1 f1_backward_output2",
    ),
    "several heads": (
        mx.sym.Group([mx.sym.sin(X, name="sx"), mx.sym.tanh(mx.sym.elemwise_mul(A, B, name="m"), name="t")]),
        {"a": (2, 3)},
        f"{HEAD_1} t_backward_lhs t_backward_rhs t_backward_output m_backward_input0 a m_backward_input1 b "
        f"m_backward_input2 m_backward_output0 m_backward_output1 {HEAD} sx_backward_lhs sx_backward_rhs "
        f"sx_backward_output {EXP} sum_grad_arg0 sum_grad_arg1 sum_grad_output",
    ),
    "equal heads": (
        mx.sym.Group([X, Y]),
        {"a": (2, 3)},
        # MXNet shows y's input as y_input0: it has no name for it.
        f"{HEAD_1} a y_data y_output {EXP.replace('x_', 'y_')} {HEAD} {EXP} sum_grad_arg0 sum_grad_arg1 "
        "sum_grad_output",
    ),
    "three readers": (
        mx.sym.elemwise_add(
            mx.sym.sqrt(X, name="q"), mx.sym.elemwise_add(mx.sym.cbrt(X, name="c"), mx.sym.sin(X, name="s"), name="p")
        ),
        {"a": (2, 3)},
        f"{HEAD} s_backward_lhs s_backward_rhs s_backward_output c_backward_lhs c_backward_rhs c_backward_output "
        "q_backward_lhs q_backward_rhs q_backward_output sum_grad_arg0 sum_grad_arg1 sum_grad_arg2 sum_grad_output "
        f"{EXP}",
    ),
    "softmax": (
        mx.sym.softmax(A, name="sm"),
        {"a": (2, 3)},
        f"{HEAD} sm_backward_ograd sm_backward_output sm_backward_output",
    ),
    "batch normalisation": (
        mx.sym.BatchNorm(A, name="bn", fix_gamma=False),
        {"a": (4, 2)},
        f"{HEAD} bn_backward_input0 bn_backward_input1 bn_backward_input2 a bn_backward_input3 bn_gamma "
        "bn_backward_input4 bn_beta bn_backward_input5 bn_moving_mean bn_backward_input6 bn_moving_var "
        "bn_backward_input7 bn_backward_output0 bn_backward_output1 bn_backward_output2",
    ),
}
B_SHAPE = {"b": (2, 3)}


def bound(symbol: Any, shapes: dict[str, tuple[int, ...]], fill: float | None = None) -> Any:
    names = symbol.list_arguments()
    executor = symbol.simple_bind(mx.cpu(), **{k: v for k, v in {**B_SHAPE, **shapes}.items() if k in names})
    for number, array in enumerate(executor.arg_arrays):
        random = np.random.default_rng(number).uniform(0.5, 1.5, array.shape)
        array[:] = mx.nd.array(random if fill is None else np.full(array.shape, fill))
    return executor


def heads_of(executor: Any) -> list[Any]:
    return [mx.nd.full(array.shape, number + 1) for number, array in enumerate(executor.outputs)]


@pytest.mark.parametrize("case", SHOWN)
def test_inputs_of_backward_are_shown_as_mxnet_does(case: str, engine: str) -> None:
    symbol, shapes, expected = SHOWN[case]
    executor = bound(symbol, shapes)
    shown: list[tuple[str, np.ndarray]] = []
    executor.set_monitor_callback(lambda name, array: shown.append((name, array.asnumpy())), monitor_all=True)
    executor.forward(is_train=True)
    forward = dict(shown)
    shown.clear()
    executor.backward(heads_of(executor))
    assert " ".join(name for name, _ in shown) == expected
    values = dict(shown)
    for name, array in values.items():
        if name in executor.arg_dict:
            np.testing.assert_array_equal(array, executor.arg_dict[name].asnumpy())
        elif name in forward and name not in executor.aux_dict:
            np.testing.assert_array_equal(array, forward[name])
    if "sum_grad_output" in values:
        addends = [array for name, array in shown if name.startswith("sum_grad_arg")]
        np.testing.assert_allclose(values["sum_grad_output"], np.sum(addends, axis=0), rtol=1e-6)
    last = shown[-1][1]
    if case in ("several heads", "equal heads", "three readers", "softmax"):
        np.testing.assert_array_equal(last, executor.grad_dict["a"].asnumpy())


def test_a_pattern_chooses_inputs_of_backward() -> None:
    """Forward's values are copied for them, and nothing else is."""
    executor = bound(residual(), {"a": (2, 3), "b": (2, 4)})
    monitor = mx.mon.Monitor(1, stat_func=lambda array: array, pattern="f2_backward_input[01]", monitor_all=True)
    monitor.install(executor)
    monitor.tic()
    executor.forward(is_train=True)
    executor.backward()
    assert [name for _, name, _ in monitor.toc()] == ["f2_backward_input0", "f2_backward_input1"]


def test_a_monitor_that_comes_behind_forward_sees_what_there_is() -> None:
    executor = bound(mx.sym.tanh(X, name="t"), {"a": (2, 3)})
    executor.forward(is_train=True)
    seen: list[str] = []
    executor.set_monitor_callback(lambda name, array: seen.append(name), monitor_all=True)
    executor.backward(heads_of(executor))
    assert " ".join(seen) == (
        "_head_grad_0 _head_grad_0_id_lhs _head_grad_0_id_output t_backward_lhs t_backward_output x_backward_lhs "
        "x_backward_output"
    )


HALVES = mx.sym.split_v2(X, 2, axis=0)
PART = HALVES.name
FLOOR = mx.sym.floor(X, name="f")
NAN = math.nan
ID = "_head_grad_0_id_output"
ZEROS: dict[str, tuple[Any, list[float], str]] = {
    "all zero": (FLOOR, [0, 0], "x_backward_output"),
    "stopped": (mx.sym.BlockGrad(X, name="f"), [0, 0], "x_backward_output"),
    "zeros are left out of sums": (
        mx.sym.elemwise_add(FLOOR, mx.sym.negative(A, name="n")),
        [-1, -1],
        f"{ID} n_backward_output",
    ),
    "two zeros": (
        mx.sym.elemwise_add(mx.sym.floor(A, name="f1"), mx.sym.ceil(A, name="f2")),
        [0, 0],
        "f2_backward_output",
    ),
    "zeros that are computed": (
        mx.sym.elemwise_mul(X, mx.sym.zeros_like(A, name="z"), name="m"),
        [NAN, NAN],
        f"{ID} m_backward_output0 m_backward_output1 x_backward_output",
    ),
    "an unused output": (
        mx.sym.negative(HALVES[0], name="n"),
        [-math.inf, NAN],
        f"{ID} n_backward_output zeros_without_dtype_output {PART}_backward_output x_backward_output",
    ),
    "zero and unused outputs": (
        mx.sym.floor(HALVES[0], name="f"),
        [NAN, NAN],
        f"f_backward_output zeros_without_dtype_output {PART}_backward_output x_backward_output",
    ),
    "zero outputs": (
        mx.sym.elemwise_add(mx.sym.floor(HALVES[0], name="f"), mx.sym.floor(HALVES[1], name="g")),
        [0, 0],
        "x_backward_output",
    ),
    "a hidden output": (
        mx.sym.floor(mx.sym.Dropout(X, p=0.0, name="d"), name="f"),
        [NAN, NAN],
        "f_backward_output d_backward_output x_backward_output",
    ),
}
"""Gradients where exp is infinite, so that what is computed of zeros is NaN, and the names that are shown."""


@pytest.mark.parametrize("case", ZEROS)
def test_zeros_flow_as_in_mxnet(case: str) -> None:
    symbol, gradient, expected = ZEROS[case]
    executor = bound(symbol, {"a": (2,)}, fill=100)
    seen: list[tuple[str, np.ndarray]] = []
    executor.set_monitor_callback(lambda name, array: seen.append((name, array.asnumpy())))
    executor.forward(is_train=True)
    seen.clear()
    executor.backward(heads_of(executor))
    assert " ".join(name for name, _ in seen) == expected
    np.testing.assert_array_equal(executor.grad_dict["a"].asnumpy(), np.array(gradient, "f"))
    np.testing.assert_array_equal(seen[-1][1], executor.grad_dict["a"].asnumpy())


def test_a_condition_has_no_gradient_to_show() -> None:
    """Also where the operator's step is one with its neighbours."""
    net = mx.sym.where(mx.sym.floor(A, name="f"), X, mx.sym.negative(A, name="n"), name="w")
    executor = bound(net, {"a": (2,)})
    seen: list[str] = []
    executor.set_monitor_callback(lambda name, array: seen.append(name))
    executor.forward(is_train=True)
    seen.clear()
    executor.backward(heads_of(executor))
    expected = f"{ID} w_backward_output0 w_backward_output1 n_backward_output x_backward_output sum_grad_output"
    assert " ".join(seen) == expected
