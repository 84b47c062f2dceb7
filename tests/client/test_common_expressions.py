"""Common expressions are merged as MXNet 1.9.1 merges them, by its own debug_str of these graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import opbox as mx

A, B = mx.sym.var("a"), mx.sym.var("b", shape=(2, 4))
X, Y = mx.sym.exp(A, name="x"), mx.sym.exp(A, name="y")
GROUP = mx.sym.Group


def attributed(**attrs: str) -> Any:
    with mx.AttrScope(**attrs):
        return mx.sym.exp(A, name="attributed")


STATES = [mx.sym.var(variable) for variable in ("gamma", "beta", "mean", "var")]


def normalized(name: str) -> Any:
    return mx.sym.BatchNorm(A, *STATES, name=name)


def split(name: str) -> Any:
    return mx.sym.split(A, num_outputs=2, axis=1, name=name)


MERGED: dict[str, tuple[Any, str]] = {
    "two calls": (X * Y, "x _mul"),
    "chains": (mx.sym.sin(X, name="s1") * mx.sym.sin(Y, name="s2"), "x s1 _mul"),
    "an alias": (mx.sym.broadcast_add(A, B, name="p1") * mx.sym.broadcast_plus(A, B, name="p2"), "p1 _mul"),
    "other order": (mx.sym.elemwise_add(A, B, name="p1") * mx.sym.elemwise_add(B, A, name="p2"), "p1 p2 _mul"),
    "numbers as they are written": (A * 2 + A * 2.0, "_mulscalar _mulscalar _plus"),
    "a default that is written": (
        mx.sym.softmax(A, name="s1") + mx.sym.softmax(A, axis=-1, name="s2"),
        "s1 s2 _plus",
    ),
    "hidden attributes": (attributed(lr_mult="2") + Y, "attributed y _plus"),
    "contexts": (attributed(ctx_group="d1") + Y, "attributed y _plus"),
    "random numbers": (mx.sym.Dropout(A, name="d1") + mx.sym.Dropout(A, name="d2"), "d1 d2 _plus"),
    "auxiliary states": (normalized("b1") + normalized("b2"), "b1 b2 _plus"),
    "without inputs": (mx.sym.zeros((2, 4), name="z1") + mx.sym.zeros((2, 4), name="z2") + A, "z1 z2 _plus _plus"),
    "with a state in MXNet": (split("s1")[0] + split("s2")[1], "s1 s2 _plus"),
    "leaky ones": (mx.sym.LeakyReLU(A, name="l1") + mx.sym.LeakyReLU(A, name="l2"), "l1 _plus"),
    "swapped axes": (mx.sym.SwapAxis(A, name="s1") + mx.sym.SwapAxis(A, name="s2"), "s1 s2 _plus"),
    "one output twice": (GROUP([X, X]), "x"),
    "equal outputs": (GROUP([X, Y]), "x x_0_copy"),
    "equal outputs and more": (GROUP([X, X, X, Y]), "x x_0_copy x_0_copy_0_copy x_0_copy_0_copy_0_copy"),
    "an output that others read": (GROUP([X, Y, mx.sym.sin(Y, name="sy")]), "x x_0_copy sy"),
    "an output that stands for another": (GROUP([mx.sym.sin(Y, name="sy"), mx.sym.cos(X, name="cx"), X]), "y sy cx"),
    "nothing": (X * 3, "x _mulscalar"),
}


def bound(symbol: Any, grad_req: str = "write") -> Any:
    executor = symbol.simple_bind(mx.cpu(), grad_req=grad_req, a=(2, 4))
    for number, array in enumerate(executor.arg_arrays):
        array[:] = mx.nd.array(np.random.default_rng(number).uniform(0.5, 1.5, array.shape))
    return executor


def operators(text: str) -> str:
    names = [line.partition("Name=")[2] for line in text.splitlines() if line.startswith("Op:")]
    return " ".join(name.rstrip("0123456789") if name.startswith("_") else name for name in names)


@pytest.mark.parametrize("case", MERGED)
def test_what_is_merged_is_what_mxnet_merges(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    symbol, expected = MERGED[case]
    monkeypatch.delenv("MXNET_ELIMINATE_COMMON_EXPR", raising=False)
    executor = bound(symbol)
    assert operators(executor.debug_str()) == expected
    assert operators(executor.get_optimized_symbol().debug_str()) == expected
    assert len(executor.forward()) == len(symbol)
    monkeypatch.setenv("MXNET_ELIMINATE_COMMON_EXPR", "0")
    assert operators(bound(symbol).debug_str()) == operators(symbol.debug_str())


def run(executor: Any) -> list[np.ndarray]:
    """Outputs and gradients."""
    outputs = [array.asnumpy() for array in executor.forward(is_train=True)]
    heads = [mx.nd.array(np.random.default_rng(9).uniform(0.1, 1, array.shape)) for array in outputs]
    executor.backward(heads)
    return [*outputs, *(grad.asnumpy() for grad in executor.grad_arrays if grad is not None)]


def network(inner: Sequence[Any]) -> Any:
    """A graph in which two nodes, which may be one, have three readers."""
    first, second = inner
    return mx.sym.sin(first) * second + mx.sym.broadcast_mul(second, B)


def test_gradients_are_those_of_a_graph_that_says_it_once() -> None:
    """To the bit: the gradients of all readers are added up before the node's own gradient is computed."""
    both, once = bound(network([X, Y])), bound(network([X, X]))
    for got, expected in zip(run(both), run(once), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_gradients_are_those_without_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    for symbol in (network([X, Y]), GROUP([X, Y]), GROUP([X, Y, mx.sym.sin(Y)]), GROUP([mx.sym.sin(Y), X * 2, X])):
        monkeypatch.setenv("MXNET_ELIMINATE_COMMON_EXPR", "1")
        merged = run(bound(symbol))
        monkeypatch.setenv("MXNET_ELIMINATE_COMMON_EXPR", "0")
        for got, expected in zip(merged, run(bound(symbol)), strict=True):
            # Sums of gradients in another order.
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_gradients_of_equal_outputs_stay_apart() -> None:
    """To the bit as in MXNet: the gradient of each output is computed, then they are added, the last one first."""
    executor = bound(GROUP([X, Y]))
    x = executor.forward(is_train=True)[0].asnumpy()
    first, second = np.float32(0.1), np.float32(0.7)
    executor.backward([mx.nd.full((2, 4), 0.1), mx.nd.full((2, 4), 0.7)])
    np.testing.assert_array_equal(executor.grad_dict["a"].asnumpy(), second * x + first * x)


def test_equal_outputs_have_arrays_of_their_own() -> None:
    executor = bound(GROUP([X, Y]), "null")
    first, second = executor.forward()
    before = second.asnumpy()
    first[:] = 7
    np.testing.assert_array_equal(second.asnumpy(), before)


def test_names_of_very_many_equal_outputs_stay_short() -> None:
    executor = GROUP([X] * 400 + [Y]).simple_bind(mx.cpu(), grad_req="null", a=(1, 1))
    names = operators(executor.debug_str()).split()
    assert len(names) == 401
    assert len(names[3]) == len("x") + 3 * len("_0_copy")
    assert max(map(len, names)) < 1100
    assert len({array.asnumpy().item() for array in executor.forward()}) == 1


def test_a_monitor_sees_what_runs() -> None:
    """As MXNet 1.9.1 names it."""
    seen: list[str] = []
    executor = GROUP([X, Y, mx.sym.sin(Y, name="sy")]).simple_bind(mx.cpu(), grad_req="null", a=(2, 4))
    executor.set_monitor_callback(lambda name, array: seen.append(name))
    executor.forward()
    assert seen == ["x_output", "x_0_copy_output", "sy_output"]


def test_merging_takes_memory_away(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = [mx.sym.var("a"), mx.sym.var("b")]
    parts = [mx.sym.dot(*variables, name=f"d{number}") for number in range(8)]
    memory = []
    for setting in ("TRUE", "false"):
        monkeypatch.setenv("MXNET_ELIMINATE_COMMON_EXPR", setting)
        executor = mx.sym.sum(mx.sym.add_n(*parts)).simple_bind(mx.cpu(), a=(1024, 8), b=(8, 256))
        memory.append(int(executor.debug_str().split("\n")[-3].split()[1]))
    assert memory[0] < memory[1]


@pytest.mark.parametrize("value", ["2", "yes", " 0"])
def test_another_setting_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MXNET_ELIMINATE_COMMON_EXPR", value)
    with pytest.raises(
        mx.MXNetError, match=f"MXNET_ELIMINATE_COMMON_EXPR: expected 0, 1, true or false, got '{value}'"
    ):
        bound(X)
