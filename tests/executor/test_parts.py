"""Slices read and joins written in place: the same numbers to the last bit, and nothing that a user could see."""

from __future__ import annotations

import json

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_service.executor import compile_plan
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.fusion import fusion
from opbox_service.executor.passes.parts import parts
from opbox_service.executor.run import BoundPlan
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from tests.switches import set_c_kernels

CPU = backend_for("cpu")
WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not parts)
UNFUSED = tuple(rewrite for rewrite in PASSES if rewrite is not fusion)
BATCH, HIDDEN, STEPS = 3, 16, 4


def dense(data, name, width):
    return mx.sym.FullyConnected(data, num_hidden=width, name=name)


def lstm():
    data = mx.sym.SliceChannel(mx.sym.Variable("data"), num_outputs=STEPS, axis=1, squeeze_axis=True)
    shared = {kind: (mx.sym.Variable(f"{kind}_w"), mx.sym.Variable(f"{kind}_b")) for kind in ("i2h", "h2h")}
    h, c = mx.sym.Variable("h"), mx.sym.Variable("c")
    for t in range(STEPS):
        i2h, h2h = (
            mx.sym.FullyConnected(x, *shared[kind], num_hidden=4 * HIDDEN, name=f"{kind}{t}")
            for kind, x in (("i2h", data[t]), ("h2h", h))
        )
        gates = mx.sym.SliceChannel(i2h + h2h, num_outputs=4, axis=1, name=f"gates{t}")
        i, f, o = (mx.sym.sigmoid(gates[k]) for k in (0, 1, 3))
        c = f * c + i * mx.sym.tanh(gates[2])
        h = o * mx.sym.tanh(c, name=f"squash{t}")
    return mx.sym.MakeLoss(mx.sym.sum(h * h)), {
        "data": (BATCH, STEPS, 5),
        "h": (BATCH, HIDDEN),
        "c": (BATCH, HIDDEN),
    }


def gru():
    """Its candidate reads a slice of each of two products, which are no slices of a sum."""
    data, h = mx.sym.Variable("data"), mx.sym.Variable("h")
    for t in range(STEPS):
        a = mx.sym.SliceChannel(dense(data, f"i2h{t}", 3 * HIDDEN), num_outputs=3, axis=1)
        b = mx.sym.SliceChannel(dense(h, f"h2h{t}", 3 * HIDDEN), num_outputs=3, axis=1, name=f"of_h{t}")
        reset, update = (mx.sym.sigmoid(a[k] + b[k]) for k in (0, 1))
        candidate = mx.sym.tanh(a[2] + reset * b[2])
        h = (1 - update) * candidate + update * h
    return mx.sym.MakeLoss(mx.sym.sum(h * h)), {"data": (BATCH, 5), "h": (BATCH, HIDDEN)}


def of_uneven_sizes():
    x = mx.sym._internal._split_v2(dense(mx.sym.Variable("data"), "fc", 64), indices=(0, 16, 40), axis=1)
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.tanh(x[0])) + mx.sym.sum(x[1] * x[1]) + mx.sym.sum(mx.sym.relu(x[2]))), {
        "data": (BATCH, 5)
    }


def along_rows():
    x = mx.sym.SliceChannel(mx.sym.exp(dense(mx.sym.Variable("data"), "fc", 32)) * 2, num_outputs=2, axis=0)
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.tanh(x[0]) * x[1])), {"data": (6, 5)}


def compiled(symbol, shapes, passes, req="write", dtype=np.float32):
    graph = load(json.loads(symbol.tojson()))
    inferred = infer_shape(graph, shapes)
    rng = np.random.default_rng(0)
    args = {n.name: rng.normal(size=inferred.of(n.entries()[0])).astype(dtype) for n in graph.arguments}
    kinds = {n: a.shape for n, a in args.items()}, {n: a.dtype for n, a in args.items()}
    plan = compile_plan(graph, *kinds, dict.fromkeys(args, req), passes=passes)
    grads = {name: np.ones_like(array) for name, array in args.items()}
    return BoundPlan(plan, args, grads, {}, CPU, CPU.random(0)), grads


def ran(symbol, shapes, passes, req="write", **run):
    """The executor after two steps, `run` given to forward, and its gradients."""
    executor, grads = compiled(symbol, shapes, passes, req)
    for _ in range(2):
        executor.forward(**run)
        if req != "null":
            executor.backward()
    return executor, grads


def operators(executor):
    return [step.node.op.name for step in executor.plan.steps if step.node.op is not None and not step.view]


@pytest.mark.parametrize("kernels", ["0", "now"])
@pytest.mark.parametrize("passes", [PASSES, UNFUSED], ids=["fused", "unfused"])
@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("network", [lstm, gru, of_uneven_sizes, along_rows])
def test_the_same_to_the_last_bit(network, req, passes, kernels, monkeypatch):
    set_c_kernels(monkeypatch, kernels)
    (tested, grads), (plain, expected) = (compiled(*network(), p, req) for p in (passes, WITHOUT))
    for executor in (tested, plain):
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward()
            executor.backward()
    np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])
    for name, array in grads.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    if network is not along_rows:  # whose arena of 3 KB is one slice more: a slice in place is not written over
        assert tested.memory.arena_bytes <= 1.1 * plain.memory.arena_bytes


def test_an_unrolled_lstm_has_no_copies_of_its_gates():
    (tested, _), (plain, _) = (compiled(*lstm(), passes) for passes in (PASSES, WITHOUT))
    names = operators(tested)
    assert operators(plain).count("SliceChannel") == 1 + STEPS
    assert operators(plain).count("_backward_SliceChannel") == 1 + STEPS
    assert names.count("SliceChannel") == names.count("_backward_SliceChannel") == 1  # those of data


def test_slices_of_a_product_are_copied_as_before():
    """A slice in place is not written over, and keeps all of the product: in a small arena that is much."""
    assert operators(compiled(*gru(), PASSES)[0]).count("SliceChannel") == 2 * STEPS


@pytest.mark.parametrize("network", [lstm, gru, of_uneven_sizes, along_rows])
@pytest.mark.parametrize("passes", [PASSES, UNFUSED], ids=["fused", "unfused"])
def test_a_monitor_sees_every_operator(network, passes):
    seen, (symbol, shapes) = [], network()
    for rewrites in (passes, WITHOUT):
        executor, _ = compiled(symbol, shapes, rewrites)
        shown = []
        executor.forward(is_train=True, monitor=lambda name, array, to=shown: to.append((name, array.copy())))
        executor.backward()
        seen.append(shown)
    tested, plain = seen
    assert [name for name, _ in tested] == [name for name, _ in plain]
    for (name, array), (_, expected) in zip(tested, plain, strict=True):
        np.testing.assert_array_equal(array, expected, err_msg=name)


def sliced(width=32, of=2):
    return mx.sym.SliceChannel(dense(mx.sym.Variable("data"), "fc", width), num_outputs=of, axis=1, name="slices")


def short_rows():
    x = sliced(8, 4)
    return mx.sym.tanh(x[0]) + x[1] * x[2] - x[3]


def a_slice_that_is_an_output():
    x = sliced()
    return mx.sym.Group([x[0], mx.sym.tanh(x[1])])


def a_slice_that_a_product_reads():
    x = sliced()
    return mx.sym.tanh(x[0]) + dense(x[1], "of_slice", 16)


def a_slice_that_is_reshaped():
    x = sliced()
    return mx.sym.tanh(x[0]) + mx.sym.Reshape(mx.sym.Reshape(x[1], shape=(-1,)), shape=(BATCH, 16))


def of_an_argument():
    x = mx.sym.SliceChannel(mx.sym.Variable("data"), num_outputs=2, axis=1)
    return mx.sym.tanh(x[0]) * x[1]


def of_what_another_reads():
    y = dense(mx.sym.Variable("data"), "fc", 32)
    x = mx.sym.SliceChannel(y, num_outputs=2, axis=1)
    return mx.sym.Group([mx.sym.tanh(x[0]) * x[1], mx.sym.relu(y)])


@pytest.mark.parametrize(
    "left",
    [
        short_rows,
        a_slice_that_is_an_output,
        a_slice_that_a_product_reads,
        a_slice_that_is_reshaped,
        of_an_argument,
        of_what_another_reads,
    ],
)
def test_slices_that_are_copied_as_before(left):
    symbol = left()
    shapes = {"data": (BATCH, 32 if left is of_an_argument else 5)}
    (tested, grads), (plain, expected) = (compiled(symbol, shapes, passes) for passes in (PASSES, WITHOUT))
    assert "SliceChannel" in operators(tested)
    for executor in (tested, plain):
        executor.forward(is_train=True)
        executor.backward([np.ones_like(array) for array in executor.outputs])
    for out, wanted in zip(tested.outputs, plain.outputs, strict=True):
        np.testing.assert_array_equal(out, wanted)
    for name, array in grads.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
