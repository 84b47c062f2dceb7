"""Fusion: the same numbers to the last bit with and without, fewer steps, and nothing that a user could see."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.backend.base import ALIGNMENT
from opbox_ops.expression.fused import FUSED
from opbox_protocol.mxnet import numpy_dtype
from opbox_service.executor import compile_plan
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.fusion import MAX_ARRAYS, MAX_MEMBERS, fusion
from opbox_service.executor.run import BoundPlan
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from opbox_service.graph.passes.infer_type import infer_type
from tests.switches import set_c_kernels, switch_off

CPU = backend_for("cpu")
WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not fusion)
V = cache(mx.sym.Variable)


def chain():
    return mx.sym.tanh(mx.sym.relu(V("a") * 3 - V("b")) / 2, name="last"), {"a": (5, 6), "b": (5, 6)}


def repeated_inputs():
    x = mx.sym.broadcast_add(mx.sym.broadcast_mul(V("a"), V("row")), V("column"), name="sum")
    return mx.sym.sigmoid(x) + mx.sym.LeakyReLU(x, V("slope"), act_type="prelu"), {
        "a": (4, 3, 5),
        "row": (1, 1, 5),
        "column": (4, 1, 1),
        "slope": (3,),
    }


def read_within_and_without():
    x = mx.sym.exp(V("a") - 1, name="exp")
    return mx.sym.broadcast_div(mx.sym.sqrt(x), mx.sym.sum(x, axis=1, keepdims=True)) * x, {"a": (4, 7)}


def gates():
    parts = mx.sym.SliceChannel(V("a") + V("b"), num_outputs=4, axis=1)
    i, f, o = (mx.sym.Activation(parts[k], act_type="sigmoid") for k in range(3))
    c = f * V("c") + i * mx.sym.tanh(parts[3])
    return mx.sym.Group([c, o * mx.sym.tanh(c)]), {"a": (3, 8), "b": (3, 8), "c": (3, 2)}


def conditions():
    x = mx.sym.where(V("yes"), V("a") * 2, mx.sym.square(V("b")))
    return x * mx.sym.abs(x) + (V("a") > V("b")), dict.fromkeys(("yes", "a", "b"), (9,))


def one_array_twice():
    x = V("a") * V("a")
    return x * x + mx.sym.BlockGrad(x) - x, {"a": (6,)}


def longer_than_a_group():
    x = V("a")
    for i in range(3 * MAX_MEMBERS):
        x = mx.sym.tanh(x + i) if i % 2 else x * 1.5
    return x, {"a": (11,)}


def many_inputs():
    x = V("a0")
    for i in range(1, 2 * MAX_ARRAYS):
        x = x + V(f"a{i}")
    return x, {f"a{i}": (3, 2) for i in range(2 * MAX_ARRAYS)}


def several_pieces():
    return mx.sym.sigmoid(V("a")) * V("row") + mx.sym.log(mx.sym.abs(V("a")) + 1), {
        "a": (300, 1100),
        "row": (300, 1100),
    }


CASES = [
    chain,
    repeated_inputs,
    read_within_and_without,
    gates,
    conditions,
    one_array_twice,
    longer_than_a_group,
    many_inputs,
    several_pieces,
]


def compiled(symbol, shapes, passes, *, dtype="float32", req="write", train=True):
    dtype = numpy_dtype(dtype)
    graph = load(json.loads(symbol.tojson()))
    inferred = infer_shape(graph, shapes)
    types = infer_type(graph, dict.fromkeys(shapes, dtype))
    rng = np.random.default_rng(0)
    args = {
        n.name: rng.normal(size=inferred.of(n.entries()[0])).astype(types.of(n.entries()[0])) for n in graph.arguments
    }
    reqs = dict.fromkeys(args, req) if train else {}
    kinds = {n: a.shape for n, a in args.items()}, {n: a.dtype for n, a in args.items()}
    plan = compile_plan(graph, *kinds, reqs, passes=passes)
    grads = {name: np.ones_like(args[name]) for name in reqs}
    return BoundPlan(plan, args, grads, {}, CPU, CPU.random(0)), grads


def run(executor, train=True):
    executor.forward(is_train=train)
    if train:
        rng = np.random.default_rng(1)
        executor.backward([rng.normal(size=out.shape).astype(out.dtype) for out in executor.outputs])


def groups(executor):
    return [step for step in executor.plan.steps if step.node.op is FUSED]


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_forward_and_gradients_are_the_same_to_the_last_bit(case, dtype, req):
    symbol, shapes = case()
    (fused, grads), (plain, expected) = (compiled(symbol, shapes, p, dtype=dtype, req=req) for p in (PASSES, WITHOUT))
    assert groups(fused)
    assert not groups(plain)
    for _ in range(2):
        for executor in (fused, plain):
            run(executor)
        for a, b in zip(fused.outputs, plain.outputs, strict=True):
            np.testing.assert_array_equal(a, b)
        for name, array in grads.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_inference_is_the_same_and_takes_no_more_memory(case):
    symbol, shapes = case()
    (fused, _), (plain, _) = (compiled(symbol, shapes, passes, train=False) for passes in (PASSES, WITHOUT))
    assert len(fused.plan.steps) < len(plain.plan.steps)
    for executor in (fused, plain):
        run(executor, train=False)
    for a, b in zip(fused.outputs, plain.outputs, strict=True):
        np.testing.assert_array_equal(a, b)
    temporaries = fused.memory.temp_bytes + 2 * ALIGNMENT
    assert fused.memory.arena_bytes <= plain.memory.arena_bytes + temporaries


@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_16_bits_flow_in_one_sweep_to_numpys_bits_in_c_too(dtype, train, monkeypatch):
    symbol, shapes = gates()
    outs = []
    for mode in ("0", "now"):
        set_c_kernels(monkeypatch, mode)
        executor, grads = compiled(symbol, shapes, PASSES, dtype=dtype, train=train)
        run(executor, train=train)
        outs.append([*(out.astype("f4") for out in executor.outputs), *(g.astype("f4") for g in grads.values())])
        assert len(executor.plan.steps) < len(compiled(symbol, shapes, WITHOUT, dtype=dtype, train=train)[0].plan.steps)
    for by_numpy, in_c in zip(*outs, strict=True):
        np.testing.assert_array_equal(by_numpy, in_c)


def test_half_precision_is_rounded_where_it_was():
    """Each operator's result is rounded to 11 bits, with casts to and from float32 between them too."""
    x = mx.sym.Cast(V("a"), dtype="float32") * 3
    symbol = mx.sym.sigmoid(mx.sym.Cast(x + 1, dtype="float16")) + mx.sym.log1p(mx.sym.exp(V("a")))
    (fused, grads), (plain, expected) = (
        compiled(symbol, {"a": (64,)}, passes, dtype="float16") for passes in (PASSES, WITHOUT)
    )
    for executor in (fused, plain):
        run(executor)
    assert groups(fused)
    np.testing.assert_array_equal(fused.outputs[0], plain.outputs[0])
    np.testing.assert_array_equal(grads["a"], expected["a"])


def test_integers_come_into_a_group_through_a_cast():
    symbol = mx.sym.Cast(V("a"), dtype="float32") / 255 - 0.5
    (fused, _), (plain, _) = (
        compiled(symbol, {"a": (6, 4)}, passes, dtype="uint8", train=False) for passes in (PASSES, WITHOUT)
    )
    for executor in (fused, plain):
        run(executor, train=False)
    assert len(groups(fused)) == 1
    np.testing.assert_array_equal(fused.outputs[0], plain.outputs[0])


def test_a_monitor_sees_every_operator_in_the_order_of_the_graph():
    symbol, shapes = gates()
    seen = []
    for passes in (PASSES, WITHOUT):
        executor, _ = compiled(symbol, shapes, passes)
        rows: list[tuple[str, np.ndarray]] = []
        executor.forward(True, monitor=lambda name, array, rows=rows: rows.append((name, array.copy())))
        seen.append(rows)
        run(executor)
    assert [name for name, _ in seen[0]] == [name for name, _ in seen[1]]
    for (name, array), (_, expected) in zip(*seen, strict=True):
        np.testing.assert_array_equal(array, expected, err_msg=name)


def test_scalars_of_their_own_do_not_mix():
    """Groups that are alike but for their numbers share a program, and nothing else."""
    a = V("a")
    rows = [mx.sym.sum(mx.sym.square(a + k) * (k + 2), name=f"out{k}") for k in range(4)]
    executor, _ = compiled(mx.sym.Group(rows), {"a": (5,)}, PASSES, train=False)
    run(executor, train=False)
    x = executor._external["arg", "a"]
    assert len(groups(executor)) == 4
    assert len({id(step.node.params.formulas.kernels) for step in groups(executor)}) == 1
    for k, out in enumerate(executor.outputs):
        np.testing.assert_allclose(out, np.sum((x + k) ** 2 * (k + 2)), rtol=1e-5)  # float32 sums of five


def test_what_waits_for_a_group_does_not_pile_up():
    """Sums over 30 products would wait for all of them: the group ends before more is alive than was."""
    total = None
    for i in range(30):
        row = mx.sym.FullyConnected(V("a"), num_hidden=200, no_bias=True, name=f"fc{i}")
        total = row if total is None else total + row
    (fused, _), (plain, _) = (compiled(total * 2, {"a": (300, 3)}, passes, train=False) for passes in (PASSES, WITHOUT))
    assert fused.memory.arena_bytes <= plain.memory.arena_bytes + fused.memory.temp_bytes + 2 * ALIGNMENT


def test_the_pass_can_be_left_out(monkeypatch):
    symbol, shapes = chain()
    switch_off(monkeypatch, "fusion")
    assert not groups(compiled(symbol, shapes, PASSES)[0])


def test_the_pass_says_what_it_has_fused(caplog):
    symbol, shapes = chain()
    with caplog.at_level("DEBUG", "opbox_service.executor.passes.fusion"):
        compiled(symbol, shapes, PASSES, train=False)
    assert "last" in caplog.text
    assert "5 steps in 1 groups" in caplog.text
