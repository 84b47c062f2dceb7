"""Binding and running: reqs, heads, states, errors."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import (
    BadRequestError,
    ConflictError,
    DTypeError,
    LimitError,
    MXNetError,
    ShapeError,
    UnsupportedError,
)
from opbox_service.executor import bind
from opbox_service.graph import Graph
from tests.ops.one_call import call_graph

from . import toy_ops as toy

CPU = backend_for("cpu")


def bound(graph, grad_req=None, **arrays):
    args = {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}
    wanted = [n for n, req in (grad_req or {}).items() if req != "null"]
    grads = {n: np.full(args[n].shape, 100.0) for n in wanted}
    ex = bind(graph, args=args, grads=grads, grad_req=grad_req, backend=CPU, random=CPU.random(0))
    return ex, args, grads


def product():
    return Graph([toy.call(toy.MUL, "m", toy.var("x"), toy.var("y"))])


def test_write_add_and_null():
    ex, _, grads = bound(product(), {"x": "write", "y": "add"}, x=[2, 3], y=[5, 7])
    for turn in (1, 2):
        ex.forward(is_train=True)
        ex.backward([np.array([1.0, 10.0])])
        assert ex.outputs[0].tolist() == [10, 21]
        assert grads["x"].tolist() == [5, 70]
        assert grads["y"].tolist() == [100 + 2 * turn, 100 + 30 * turn]
    ex, _, grads = bound(product(), {"x": "null", "y": "write"}, x=[2, 3], y=[5, 7])
    ex.forward()
    ex.backward([np.ones(2)])
    assert list(grads) == ["y"]
    assert grads["y"].tolist() == [2, 3]


@pytest.mark.parametrize("dtype", ["int64", "float16"])
def test_an_empty_array_is_cast_in_place(dtype):
    graph = call_graph("Cast", {"dtype": dtype}, ["data"])
    ex = bind(graph, args={"data": np.empty((0, 3), np.float32)}, backend=CPU, random=CPU.random(0))
    ex.forward()
    assert ex.outputs[0].shape == (0, 3)
    data = np.empty((0, 3), np.float32)
    grads = {"data": data.copy()}
    ex = bind(graph, args={"data": data}, grads=grads, backend=CPU, random=CPU.random(0))
    ex.forward(is_train=True)
    ex.backward([np.empty((0, 3), dtype)])
    assert ex.outputs[0].dtype == dtype


def test_an_argument_that_nothing_flows_to_gets_zeros_or_keeps_its_sum():
    graph = Graph([toy.call(toy.NEG, "n", toy.var("x")), toy.var("y")])
    ex, _, grads = bound(graph, {"x": "write", "y": "write"}, x=[1], y=[1])
    ex.forward()
    ex.backward([np.ones(1), np.ones(1)])
    assert grads["x"].tolist() == [-1]
    assert grads["y"].tolist() == [1]


def test_one_gradient_for_two_arguments():
    graph = Graph([toy.call(toy.ADD, "a", toy.var("x"), toy.var("y"))])
    for reqs in (("write", "write"), ("add", "write"), ("write", "add"), ("add", "add")):
        ex, _, grads = bound(graph, dict(zip("xy", reqs, strict=True)), x=[1, 2], y=[3, 4])
        ex.forward()
        ex.backward([np.array([5.0, 6.0])])
        for name, req in zip("xy", reqs, strict=True):
            assert grads[name].tolist() == ([5, 6] if req == "write" else [105, 106])


def test_one_gradient_for_two_arguments_by_a_compute_that_accumulates():
    """The step that computes it may not add to one argument's array, from which the other would take the sum."""
    graph = Graph([toy.call(toy.SUM, "s", toy.call(toy.ADD, "a", toy.var("x"), toy.var("y")))])
    for reqs in (("add", "add"), ("add", "write"), ("write", "add")):
        ex, _, grads = bound(graph, dict(zip("xy", reqs, strict=True)), x=[1, 2], y=[3, 4])
        for turn in (1, 2):
            ex.forward(is_train=True)
            ex.backward([np.array([5.0])])
            for name, req in zip("xy", reqs, strict=True):
                assert grads[name].tolist() == [5 if req == "write" else 100 + 5 * turn] * 2, (name, reqs)


@pytest.mark.parametrize("req", ["write", "add"])
def test_a_compute_writes_to_no_gradient_array_with_gaps(req):
    """It goes there by a copy: computes, those that accumulate too, write to one piece of memory."""
    graph = Graph([toy.call(toy.SUM, "s", toy.var("x"))])
    base = np.ones((3, 4))
    grad = base[:, ::2]
    args, options = {"x": np.ones((3, 2))}, {"backend": CPU, "random": CPU.random(0)}
    ex = bind(graph, args=args, grads={"x": grad}, grad_req={"x": req}, **options)
    ex.forward(is_train=True)
    ex.backward([np.array([5.0])])
    assert (grad == (6 if req == "add" else 5)).all()
    assert (base[:, 1::2] == 1).all()


def test_outputs_are_the_same_arrays_every_run():
    x = toy.var("x")
    n = toy.call(toy.NEG, "n", x)
    ex, args, _ = bound(Graph([n, x, n]), x=[1, 2])
    before = list(ex.outputs)
    for value in (1, 2):
        args["x"][...] = value
        ex.forward()
        assert all(a is b for a, b in zip(ex.outputs, before, strict=True))
        assert ex.outputs[0].tolist() == [-value, -value]
    assert ex.outputs[1] is args["x"]
    assert ex.outputs[2] is ex.outputs[0]


def test_a_head_that_is_read_on_is_kept():
    n = toy.call(toy.NEG, "n", toy.var("x"))
    ex, _, _ = bound(Graph([toy.call(toy.TANH, "s", n), n]), x=[0, 0])
    ex.forward()
    assert ex.outputs[1].tolist() == [0, 0]
    assert ex.outputs[0].tolist() == [0, 0]


def test_state_is_made_once_and_seen_by_backward():
    graph = Graph([toy.call(toy.STATEFUL, "s", toy.var("x"))])
    ex, _, grads = bound(graph, {"x": "write"}, x=[1])
    for turn in (1, 2, 3):
        ex.forward()
        ex.backward([np.ones(1)])
        assert ex.outputs[0].tolist() == grads["x"].tolist() == [turn]
    other, _, _ = bound(graph, {"x": "write"}, x=[1])
    other.forward()
    assert other.outputs[0].tolist() == [1]


def test_head_gradients_are_checked():
    ex, _, _ = bound(product(), {"x": "write"}, x=[2, 3], y=[5, 7])
    ex.forward()
    with pytest.raises(BadRequestError, match="head gradient of 'm_output' is missing"):
        ex.backward()
    with pytest.raises(ShapeError, match=r"head gradient of 'm_output': expected \(2,\), got \(3,\)"):
        ex.backward([np.ones(3)])
    with pytest.raises(BadRequestError, match="expected at most 1, one for each output, got 2"):
        ex.backward([np.ones(2), None])
    ex.backward([np.ones(2)])


def test_backward_needs_a_forward():
    x = toy.var("x")
    entry = x
    for i in range(4):
        entry = toy.call(toy.MUL, f"m{i}", entry, toy.call(toy.TANH, f"s{i}", entry))
    ex, _, _ = bound(Graph([entry]), {"x": "write"}, x=[2, 3])
    with pytest.raises(ConflictError, match="call forward"):
        ex.backward([np.ones(2)])
    ex.forward()
    ex.backward([np.ones(2)])


@pytest.mark.parametrize(
    "net",
    [
        mx.sym.tile(mx.sym.repeat(mx.sym.Variable("x"), repeats=2), reps=(2,)),
        mx.sym.mean(mx.sym.Variable("x") * 2 + 3),
        mx.sym.square(mx.sym.Variable("x")),
    ],
    ids=["repeat, tile", "mean", "square"],
)
def test_backward_without_a_forward_where_it_reads_nothing_of_one(net):
    gradients = []
    for runs_forward in (False, True):
        ex = net.simple_bind(mx.cpu(), x=(3,))
        ex.arg_dict["x"][:] = [1, 2, 3]
        if runs_forward:
            ex.forward(is_train=True)
        (shape,) = net.infer_shape(x=(3,))[1]
        ex.backward(mx.nd.arange(1, 1 + np.prod(shape)).reshape(shape))
        gradients.append(ex.grad_dict["x"].asnumpy())
    np.testing.assert_array_equal(*gradients)


def test_backward_again_gives_the_same():
    entry = toy.var("x")
    for i in range(6):
        entry = toy.call(toy.MUL, f"m{i}", entry, toy.call(toy.TANH, f"s{i}", entry))
    entry = toy.call(toy.MUL, "b", toy.call(toy.TANH, "a", entry), toy.var("y"))
    ex, _, grads = bound(Graph([entry]), {"x": "write", "y": "write"}, x=[2, 3], y=[4, 5])
    ex.forward()
    ex.backward([np.ones(2)])
    before = {n: g.copy() for n, g in grads.items()}
    ex.backward([np.ones(2)])
    assert not ex.plan.memory.overwritten
    assert all(np.array_equal(grads[n], before[n]) for n in grads)
    ex.backward([np.full(2, 3.0)])
    for name in grads:
        np.testing.assert_allclose(grads[name], 3 * before[name], rtol=1e-12)


def test_backward_again_drops_what_forward_has_dropped():
    entry = toy.var("x")
    for i in range(6):
        op = registry.get("Dropout")
        entry = toy.call(toy.MUL, f"m{i}", entry, Entry(Node(op, f"d{i}", {}, op.parse({"p": 0.1}), (entry,))))
    ex, _, grads = bound(Graph([entry]), {"x": "write"}, x=np.linspace(0.5, 2, 40))
    seen = []
    for _ in range(2):
        ex.forward(is_train=True)
        ex.backward([np.ones(40)])
        seen.append(grads["x"].copy())
        ex.backward([np.full(40, 3.0)])
        np.testing.assert_allclose(grads["x"], 3 * seen[-1], rtol=1e-12)
    assert (seen[0] != seen[1]).any()


def test_backward_again_is_of_the_last_forward_whatever_arguments_are_now():
    entry = toy.var("x")
    for i in range(6):
        entry = toy.call(toy.TANH, f"t{i}", entry)
    ex, args, grads = bound(Graph([entry]), {"x": "write"}, x=[2, 3])
    ex.forward(is_train=True)
    ex.backward([np.ones(2)])
    before = grads["x"].copy()
    args["x"][:] = 7  # tanh's gradient is computed from its output
    ex.backward([np.ones(2)])
    assert np.array_equal(grads["x"], before)


def test_a_failure_names_the_node_and_the_line():
    ex, _, _ = bound(Graph([toy.call(toy.BROKEN, "oops", toy.var("x"))]), x=[1])
    with pytest.raises(
        MXNetError, match=r"oops \(_toy_broken, toy.py:1\): the operator failed: ValueError: no such luck"
    ):
        ex.forward()


def test_a_missing_compute_names_the_operator():
    graph = Graph([toy.call(toy._op("_toy_nowhere"), "n", toy.var("x"))])
    with pytest.raises(UnsupportedError, match=r"n \(_toy_nowhere, toy.py:1\): .* no compute for device 'cpu'"):
        bound(graph, x=[1])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"args": {"x": np.ones(2)}}, BadRequestError, "argument 'y' has no array"),
        ({"args": {n: np.ones(2) for n in "xyz"}}, BadRequestError, "'z' is no argument of the graph"),
        ({"aux": {"m": np.ones(2)}}, BadRequestError, "'m' is no auxiliary state of the graph"),
        ({"grads": {"z": np.ones(2)}}, BadRequestError, "'z' is no argument of the graph"),
        ({"grads": {"x": np.ones(3)}}, ShapeError, r"gradient of 'x': expected \(2,\), got \(3,\)"),
        ({"grads": {"x": np.ones(2, "f")}}, DTypeError, "gradient of 'x': expected type float64, got float32"),
        ({"grad_req": {"x": "write"}}, BadRequestError, "'x' is 'write': expected an array for its gradient"),
        ({"grad_req": {"x": "wrote"}}, BadRequestError, "expected write, add or null, got 'wrote'"),
        ({"args": {"x": np.ones(2), "y": np.ones(3)}}, ShapeError, r"m \(_toy_mul, toy.py:1\)"),
        ({"args": {"x": np.ones(2), "y": np.ones(2, "f")}}, DTypeError, r"m \(_toy_mul, toy.py:1\): b: expected type"),
    ],
)
def test_bad_arrays_are_refused(change, error, message):
    options = {"args": {"x": np.ones(2), "y": np.ones(2)}, **change}
    with pytest.raises(error, match=message):
        bind(product(), **options, backend=CPU, random=CPU.random(0))


def test_nan_passes_without_a_warning():
    ex, _, _ = bound(product(), x=[np.nan, np.inf], y=[1, 0])
    ex.forward()
    assert np.isnan(ex.outputs[0]).all()


def test_empty_arrays_run():
    ex, _, grads = bound(product(), {"x": "write"}, x=np.ones((0, 3)), y=np.ones((0, 3)))
    ex.forward(is_train=True)
    ex.backward([np.ones((0, 3))])
    assert grads["x"].shape == (0, 3)


def test_memory_is_limited_before_it_is_allocated():
    options = {"args": {n: np.ones((1000, 1000)) for n in "xy"}, "backend": CPU, "random": CPU.random(0)}
    with pytest.raises(LimitError, match="the executor needs 8,000,000 bytes: expected at most 1,000"):
        bind(product(), **options, max_bytes=1000)
    assert bind(product(), **options, max_bytes=8_000_000).memory.output_bytes == 8_000_000


def test_a_monitor_sees_every_output_in_order():
    graph = Graph([toy.call(toy.NEG, "b", toy.call(toy.FLAT, "f", toy.call(toy.NEG, "a", toy.var("x"))))])
    ex, _, _ = bound(graph, x=[[1, 2]])
    seen = []
    ex.forward(monitor=lambda name, array: seen.append((name, array.tolist())))
    assert seen == [("a_output", [[-1, -2]]), ("f_output", [-1, -2]), ("b_output", [1, 2])]
