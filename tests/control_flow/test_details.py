"""Loops without steps, bodies in every float type, files of older keys, and gradients of gradients."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import UnsupportedError
from opbox_service.graph.json import load
from opbox_service.graph.passes.gradient import gradient


def foreach() -> mx.Symbol:
    def body(x: Any, s: Any) -> Any:
        s = mx.sym.tanh(s * x + mx.sym.Variable("w"))
        return mx.sym.sin(s), s

    return mx.sym.Group(list(mx.sym.contrib.foreach(body, mx.sym.Variable("x"), mx.sym.Variable("s"))))


def while_loop(steps: float = 3) -> mx.Symbol:
    """A loop of `steps` steps; the number of the step has s's type."""
    begin = mx.sym.Variable("s")

    def func(n: Any, s: Any) -> Any:
        s = mx.sym.tanh(s * mx.sym.sum(mx.sym.Variable("x"), axis=0) + mx.sym.Variable("w"))
        return mx.sym.sin(s), (n + 1, s)

    number = mx.sym.sum(begin * 0, keepdims=True)
    out, states = mx.sym.contrib.while_loop(lambda n, s: n < steps, func, (number, begin), max_iterations=4)
    return mx.sym.Group([out, states[1]])


def cond() -> mx.Symbol:
    x, s, w = (mx.sym.Variable(name) for name in ("x", "s", "w"))
    return mx.sym.contrib.cond(mx.sym.sum(s) > 0, lambda: mx.sym.broadcast_mul(x, s + w), lambda: x)


SHAPES = {"x": (3, 4), "s": (4,), "w": (4,)}


def gradients(net: mx.Symbol, dtype: str, shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    """Outputs and gradients, for head gradients of ones."""
    draw = np.random.RandomState(3)
    values = {name: draw.uniform(0.2, 0.9, shape) for name, shape in shapes.items() if name in net.list_arguments()}
    args = {name: mx.nd.array(value, dtype=dtype) for name, value in values.items()}
    grads = {name: mx.nd.ones(value.shape, dtype=dtype) * 9 for name, value in values.items()}
    executor = net.bind(mx.cpu(), args, args_grad=grads)
    executor.forward(is_train=True)
    executor.backward([mx.nd.ones(out.shape, dtype=dtype) for out in executor.outputs])
    arrays = {f"out{k}": out.asnumpy() for k, out in enumerate(executor.outputs)}
    return arrays | {f"grad of {name}": grad.asnumpy() for name, grad in grads.items()}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("make", [foreach, while_loop, cond])
def test_bodies_in_other_float_types(make: Any, dtype: str) -> None:
    wanted = gradients(make(), "float64", SHAPES)
    got = gradients(make(), dtype, SHAPES)
    # A few roundings of a few steps: ten units in the last place of numbers around 1.
    tolerance = 10 * float(np.finfo(dtype).eps)
    for name, array in got.items():
        assert array.dtype == dtype, name
        np.testing.assert_allclose(array, wanted[name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_foreach_without_steps_hands_its_state_on() -> None:
    got = gradients(foreach(), "float32", {**SHAPES, "x": (0, 4)})
    assert got["out0"].shape == got["grad of x"].shape == (0, 4)
    assert got["out1"].all()
    np.testing.assert_array_equal(got["grad of s"], 1)
    np.testing.assert_array_equal(got["grad of w"], 0)


def test_while_loop_without_steps_hands_its_variables_on() -> None:
    got = gradients(while_loop(steps=0), "float32", SHAPES)
    np.testing.assert_array_equal(got["out0"], np.zeros((4, 4)))
    np.testing.assert_array_equal(got["grad of s"], 1)
    np.testing.assert_array_equal(got["grad of w"], 0)
    np.testing.assert_array_equal(got["grad of x"], 0)


def older(part: Any, key: str) -> Any:
    """A document whose nodes, those of subgraphs too, have their attributes under the key of older files."""
    if isinstance(part, dict):
        renamed = {key if name == "attrs" and "nodes" not in part else name: value for name, value in part.items()}
        return {name: older(value, key) for name, value in renamed.items()}
    return [older(item, key) for item in part] if isinstance(part, list) else part


@pytest.mark.parametrize("key", ["attr", "param"])
@pytest.mark.parametrize("make", [foreach, while_loop, cond])
def test_older_keys_inside_of_subgraphs(make: Any, key: str) -> None:
    net = make()
    document = older(json.loads(net.tojson()), key)
    assert f'"{key}"' in json.dumps([node["subgraphs"] for node in document["nodes"] if "subgraphs" in node])
    again = mx.sym.load_json(json.dumps(document))
    assert again.infer_shape(**SHAPES) == net.infer_shape(**SHAPES)
    wanted = gradients(net, "float32", SHAPES)
    for name, array in gradients(again, "float32", SHAPES).items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)


@pytest.mark.parametrize("make", [foreach, while_loop, cond])
def test_the_gradient_has_no_gradient(make: Any) -> None:
    """MXNet 1.9.1 refuses it too: its operators of subgraphs do not support gradients of higher order."""
    first = gradient(load(make().tojson()), ["s", "w"])
    with pytest.raises(UnsupportedError, match="the gradient of the operator has no gradient"):
        gradient(first.graph, ["s"])
