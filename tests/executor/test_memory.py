"""The memory plan: sharing never changes a result, and saves what it should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_ops.backend import backend_for
from opbox_ops.node import Entry
from opbox_service.executor import bind, compile_plan
from opbox_service.graph import Graph
from opbox_service.graph.passes.infer_shape import infer_shape

from . import toy_ops as toy

CPU = backend_for("cpu")
UNARY = [toy.NEG, toy.TANH, toy.SCRATCH, toy.FLAT, toy.DOUBLE, toy.SPLIT]
BINARY = [toy.ADD, toy.MUL]


@st.composite
def graphs(draw):
    """Random graphs of in-place, viewing, multi-output, temporary-using and size-changing operators."""
    shapes = {toy.var("x"): (4, 2), toy.var("y"): (4, 2), toy.var("z"): (8,)}
    entries = dict(shapes)
    for i in range(draw(st.integers(1, 14))):
        left = draw(st.sampled_from(list(entries)))
        partners = [e for e in entries if entries[e] == entries[left]]
        if draw(st.booleans()):
            right = draw(st.sampled_from(partners))
            op = draw(st.sampled_from(BINARY))
            entries[toy.call(op, f"n{i}", left, right)] = entries[left]
            continue
        op = draw(st.sampled_from(UNARY))
        shape = entries[left]
        if (op is toy.SPLIT and shape[0] < 2) or (op is toy.DOUBLE and shape[0] > 32):
            continue
        entry = toy.call(op, f"n{i}", left)
        out = infer_shape(Graph([entry]), {e.node.name: s for e, s in shapes.items() if _uses(entry, e)}).out_shapes[0]
        entries[entry] = out
        if op is toy.SPLIT:
            entries[Entry(entry.node, 1)] = out
    heads = draw(st.lists(st.sampled_from(list(entries)), min_size=1, max_size=3))
    return Graph(heads), {e.node.name: s for e, s in shapes.items()}


def _uses(entry, variable):
    return variable.node in Graph([entry]).nodes


def _run(graph, shapes, reqs, share, seed):
    rng = np.random.default_rng(seed)
    args = {name: rng.uniform(0.5, 1.5, shapes[name]) for name in graph.argument_names}
    grads = {n: rng.uniform(0.5, 1.5, a.shape) for n, a in args.items() if reqs.get(n, "null") != "null"}
    ex = bind(
        graph,
        args=args,
        grads=grads,
        grad_req={n: reqs[n] for n in grads},
        backend=CPU,
        random=CPU.random(0),
        share=share,
    )
    before = {n: a.copy() for n, a in args.items()}
    values = []
    for _ in range(2):
        ex._arena.view(np.uint8)[...] = 0xFF
        ex.forward(is_train=True)
        values += [out.copy() for out in ex.outputs]
        heads = [np.cos(np.arange(o.size, dtype=float)).reshape(o.shape) for o in ex.outputs]
        ex.backward(heads)
        first = {name: grad.copy() for name, grad in grads.items()}
        ex.backward(heads)
        assert all(np.array_equal(grads[name], first[name]) for name in grads if reqs[name] == "write")
        values += [grad.copy() for grad in grads.values()]
        for out, early in zip(ex.outputs, values[-len(grads) - len(ex.outputs) :], strict=False):
            assert np.array_equal(out, early), "backward changed an output"
    for name, array in args.items():
        assert np.array_equal(array, before[name]), f"{name} was overwritten"
    return values, ex.memory


@settings(max_examples=300, deadline=None)
@given(graphs(), st.fixed_dictionaries({n: st.sampled_from(["write", "add", "null"]) for n in "xyz"}))
def test_sharing_memory_changes_no_result(drawn, reqs):
    graph, shapes = drawn
    planned, memory = _run(graph, shapes, reqs, True, 1)
    plain, naive = _run(graph, shapes, reqs, False, 1)
    assert all(np.array_equal(a, b) for a, b in zip(planned, plain, strict=True))
    assert memory.arena_bytes <= naive.arena_bytes
    assert memory.live_bytes <= memory.arena_bytes


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_backward_overwrites_nothing_that_forward_has_left_for_it(drawn):
    graph, shapes = drawn
    shapes = {name: shapes[name] for name in graph.argument_names}
    plan = compile_plan(graph, shapes, dict.fromkeys(shapes, "float64"), dict.fromkeys(shapes, "write"))
    assert plan.memory is not None
    assert not plan.memory.overwritten


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_gradients_are_the_numeric_ones(drawn):
    graph, shapes = drawn
    rng = np.random.default_rng(2)
    args = {name: rng.uniform(0.2, 0.4, shapes[name]) for name in graph.argument_names}
    grads = {name: np.empty_like(array) for name, array in args.items()}
    ex = bind(graph, args=args, grads=grads, backend=CPU, random=CPU.random(0))
    weights = [rng.uniform(-1, 1, out.shape) for out in ex.outputs]

    def loss():
        ex.forward(is_train=True)
        return sum(float((w * out).sum()) for w, out in zip(weights, ex.outputs, strict=True))

    loss()
    ex.backward(weights)
    along = {name: rng.uniform(-1, 1, array.shape) for name, array in args.items()}
    slope = sum(float((grads[name] * step).sum()) for name, step in along.items())
    values, step = [], 1e-5
    for sign in (1, -2):
        for name, array in args.items():
            array += sign * step * along[name]
        values.append(loss())
    numeric = (values[0] - values[1]) / (2 * step)
    assert numeric == pytest.approx(slope, rel=1e-4, abs=1e-4 * max(1.0, abs(values[0])))


def _chain(length, op=toy.NEG):
    entry = toy.var("x")
    for i in range(length):
        entry = toy.call(op, f"n{i}", entry)
    return Graph([entry])


def test_an_in_place_chain_lives_in_the_output():
    _, memory = _run(_chain(10), {"x": (64, 64)}, {}, True, 0)
    assert memory.arena_bytes == 0
    assert memory.naive_bytes == 9 * 64 * 64 * 8


def test_two_buffers_suffice_for_a_chain_that_cannot_work_in_place():
    graph = _chain(10, toy.SCRATCH)
    _, memory = _run(graph, {"x": (64, 64)}, {}, True, 0)
    # Two values alternate; the temporaries of one step lie beside them.
    assert memory.arena_bytes <= 3 * 64 * 64 * 8 + 64


def test_a_view_costs_no_step_and_no_memory():
    x = toy.var("x")
    graph = Graph([toy.call(toy.NEG, "b", toy.call(toy.FLAT, "f", toy.call(toy.TANH, "a", x)))])
    _, memory = _run(graph, {"x": (4, 2)}, {}, True, 0)
    assert memory.steps == 2
    assert memory.arena_bytes == 0


def test_a_strided_argument_is_not_viewed():
    graph = Graph([toy.call(toy.NEG, "b", toy.call(toy.FLAT, "f", toy.var("x")))])
    x = np.arange(16.0).reshape(4, 4)[:, ::2]
    ex = bind(graph, args={"x": x}, backend=CPU, random=CPU.random(0))
    for factor in (1, 2):
        x *= factor
        ex.forward()
        assert np.array_equal(ex.outputs[0], -x.ravel())


def test_gradients_are_written_into_the_given_array():
    graph = Graph([toy.call(toy.MUL, "m", toy.var("x"), toy.var("y"))])
    _, memory = _run(graph, {"x": (4, 2), "y": (4, 2)}, {"x": "write", "y": "write"}, True, 0)
    assert memory.steps == 3
    assert memory.naive_bytes == 4 * 2 * 8


def test_a_gradient_is_added_from_the_arena_unless_its_compute_adds_itself():
    graph = Graph([toy.call(toy.MUL, "m", toy.var("x"), toy.var("y"))])
    _, memory = _run(graph, {"x": (4, 2), "y": (4, 2)}, {"x": "add", "y": "write"}, True, 0)
    assert memory.steps == 4
    assert memory.naive_bytes == 2 * 4 * 2 * 8
    graph = Graph([toy.call(toy.SUM, "s", toy.var("x"))])
    values, memory = _run(graph, {"x": (4, 2)}, {"x": "add"}, True, 0)
    assert memory.steps == 3
    assert memory.naive_bytes == 8
    np.testing.assert_allclose(values[3] - values[1], 2)  # backward has run twice between


def test_forward_does_not_touch_gradient_arrays():
    x = toy.var("x")
    graph = Graph([toy.call(toy.TANH, "s", toy.call(toy.NEG, "n", x))])
    args, grads = {"x": np.ones((4, 2))}, {"x": np.full((4, 2), 7.0)}
    ex = bind(graph, args=args, grads=grads, backend=CPU, random=CPU.random(0))
    ex.forward(is_train=True)
    assert (grads["x"] == 7).all()


@pytest.mark.parametrize("req", ["write", "add"])
def test_a_strided_gradient_array_is_written_in_place(req):
    graph = Graph([toy.call(toy.TANH, "s", toy.call(toy.FLAT, "f", toy.call(toy.NEG, "n", toy.var("x"))))])
    x = np.linspace(0.1, 1, 8).reshape(4, 2)
    base = np.ones((4, 4))
    grad = base[:, ::2]
    ex = bind(graph, args={"x": x}, grads={"x": grad}, grad_req={"x": req}, backend=CPU, random=CPU.random(0))
    ex.forward(is_train=True)
    ex.backward([np.ones(8)])
    np.testing.assert_allclose(grad, (req == "add") - (1 - np.tanh(x) ** 2))
    assert (base[:, 1::2] == 1).all()
