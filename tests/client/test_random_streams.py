"""Random numbers in graphs: a stream for each node of each executor, begun anew by the seed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import opbox as mx

pytestmark = pytest.mark.usefixtures("engine")

X = np.linspace(1, 2, 64, dtype=np.float32)


def dropped_twice() -> mx.Symbol:
    """Two masks, beside each other."""
    x = mx.sym.Variable("x")
    return mx.sym.Group([mx.sym.Dropout(x, p=0.5, name="a"), mx.sym.Dropout(x, p=0.5, name="b")])


def bind(net: mx.Symbol) -> Any:
    executor = net.simple_bind(mx.cpu(), x=X.shape)
    executor.arg_dict["x"][:] = X
    return executor


def outputs(executor: Any, is_train: bool = True) -> np.ndarray:
    return np.array([out.asnumpy() for out in executor.forward(is_train=is_train)])


@pytest.mark.parametrize("seed", [5, -5, 2**63 + 1])
def test_the_same_calls_after_the_same_seed_draw_the_same(seed: int) -> None:
    mx.random.seed(seed)
    first, second = bind(dropped_twice()), bind(dropped_twice())
    seen = [outputs(executor) for executor in (first, second, first)]
    masks = [mask for pair in seen for mask in pair]
    for i, mask in enumerate(masks):  # no node, executor or run draws what another has drawn
        assert all((mask != other).any() for other in masks[:i])
    third = bind(dropped_twice())
    mx.random.seed(seed)
    # Executors are counted as they draw, whenever they were bound.
    again = [outputs(executor) for executor in (third, first, third)]
    np.testing.assert_array_equal(again, seen)
    mx.random.seed(-seed)
    assert (outputs(first) != seen[0]).any()


def test_streams_do_not_touch_one_another() -> None:
    mx.random.seed(3)
    executor = bind(dropped_twice())
    plain = mx.nd.random.uniform(shape=(4,)).asnumpy()
    seen = [outputs(executor) for _ in range(2)]
    mx.random.seed(3)
    executor = bind(dropped_twice())
    again = [outputs(executor)]
    outputs(executor, is_train=False)  # draws nothing, and moves nothing
    np.testing.assert_array_equal(mx.nd.random.uniform(shape=(4,)).asnumpy(), plain)
    again.append(outputs(executor))
    np.testing.assert_array_equal(again, seen)


def gamma_noise() -> mx.Symbol:
    """Numbers that take as many draws as they happen to, between layers whose memory backward reuses."""
    x = mx.sym.Variable("x")
    for i in range(5):
        noise = mx.sym.random.gamma(alpha=0.3, shape=X.shape, name=f"noise{i}")
        x = mx.sym.sin(x) * noise + mx.sym.Dropout(x, p=0.3, name=f"drop{i}")
    return x


def loop_of_noise() -> mx.Symbol:
    def body(x: Any, state: Any) -> Any:
        state = mx.sym.Dropout(state * x, p=0.3, name="drop") + mx.sym.random.normal(shape=(16,), name="noise")
        return mx.sym.sin(state), state

    x = mx.sym.reshape(mx.sym.Variable("x"), shape=(4, 16))
    out, last = mx.sym.contrib.foreach(body, x, mx.sym.sum(x, axis=0))
    return mx.sym.reshape(out, shape=X.shape) + mx.sym.tile(last, reps=(4,))


def loop_in_loop() -> mx.Symbol:
    def inner(x: Any, state: Any) -> Any:
        state = mx.sym.Dropout(state + x, p=0.4, name="drop")
        return state, state

    def outer(x: Any, state: Any) -> Any:
        out, last = mx.sym.contrib.foreach(inner, mx.sym.reshape(x, shape=(4, 4)), state)
        return mx.sym.reshape(out, shape=(16,)), last

    x = mx.sym.reshape(mx.sym.Variable("x"), shape=(4, 16))
    out, _ = mx.sym.contrib.foreach(outer, x, mx.sym.zeros(4))
    return mx.sym.reshape(out, shape=X.shape)


@pytest.mark.parametrize("make", [gamma_noise, loop_of_noise, loop_in_loop])
def test_a_second_backward_has_the_draws_of_its_forward(make: Any) -> None:
    mx.random.seed(11)
    executor = bind(make())
    seen = []
    for _ in range(3):
        executor.forward(is_train=True)
        executor.backward(mx.nd.ones(X.shape))
        grad = executor.grad_dict["x"].asnumpy()
        value = executor.outputs[0].asnumpy()
        for factor in (1, 2):
            executor.backward(factor * mx.nd.ones(X.shape))
            np.testing.assert_allclose(executor.grad_dict["x"].asnumpy(), factor * grad, rtol=1e-5, atol=1e-7)
        np.testing.assert_array_equal(executor.outputs[0].asnumpy(), value)
        assert all((value != other).any() for other in seen)
        seen.append(value)
    # The second backward has taken nothing from the next forward.
    mx.random.seed(11)
    for value in seen:
        np.testing.assert_array_equal(executor.forward(is_train=True)[0].asnumpy(), value)


def test_every_step_of_a_loop_draws_anew() -> None:
    executor = bind(loop_in_loop())
    steps = (outputs(executor)[0].reshape(16, 4) == 0).astype(int)
    assert len({tuple(row) for row in steps}) > 4
    alone = bind(mx.sym.Dropout(mx.sym.Variable("x"), p=0.5))
    masks = [outputs(alone)[0] != 0 for _ in range(200)]
    share = np.mean(masks)
    assert abs(share - 0.5) < 4.5 * 0.5 / np.sqrt(200 * X.size)
    # Of one run with the next, half of the mask agrees.
    assert abs(np.mean([a == b for a, b in pairwise(masks)]) - 0.5) < 0.03
