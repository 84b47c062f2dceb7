"""Batch normalisation with ReLU as one step: the same numbers, only where nobody else reads what is between the two."""

from __future__ import annotations

import json

import numpy as np
import pytest

import opbox as mx
from opbox_ops.cpu.runtime import c_compiler
from opbox_ops.nn.normalized_relu import NORMALIZED_RELU, NORMALIZED_RELU_BACKWARD
from opbox_service.executor import compile_plan
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.normalized_relus import normalized_relus
from opbox_service.executor.run import BoundPlan
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from tests.allocations import counted
from tests.executor.test_parts import CPU, operators
from tests.machine import needs_compiler, needs_onednn
from tests.switches import set_c_kernels

WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not normalized_relus)
SHAPES = {"data": (3, 4, 6, 5)}
NEAR = {"rtol": 1e-3, "atol": 2e-4}
"""float32: sums of 90 numbers in another order, through a few layers and their gradients."""

pytestmark = [needs_onednn, needs_compiler]


def convolved(data, name):
    return mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=8, no_bias=True, name=name)


def network(depth=2, **attrs):
    x = convolved(mx.sym.Variable("data"), "first")
    for i in range(depth):
        norm = mx.sym.BatchNorm(x, name=f"norm{i}", **attrs)
        x = convolved(mx.sym.Activation(norm, act_type="relu", name=f"relu{i}"), f"conv{i}")
    return mx.sym.sum(mx.sym.square(x))


def compiled(symbol, passes=PASSES, req="null", level=None):
    """The executor, its gradients, and its auxiliary states."""
    graph = load(json.loads(symbol.tojson()))
    inferred = infer_shape(graph, SHAPES)
    rng = np.random.default_rng(0)
    args = {n.name: rng.normal(size=inferred.of(n.entries()[0])).astype(np.float32) for n in graph.arguments}
    aux = dict(zip(graph.auxiliary_names, (np.ones(s, np.float32) for s in inferred.aux_shapes), strict=True))
    arrays = {**args, **aux}
    kinds = {n: a.shape for n, a in arrays.items()}, {n: a.dtype for n, a in arrays.items()}
    plan = compile_plan(graph, *kinds, dict.fromkeys(args, req), passes=passes, level=level)
    grads = {name: np.ones_like(array) for name, array in args.items()}
    return BoundPlan(plan, args, grads, aux, CPU, CPU.random(0)), grads, aux


def ran(symbol, passes, req="write", runs=2, is_train=False, differentiates_as=True):
    """The executor after some steps, its gradients, and its auxiliary states; the modes of both runs."""
    executor, grads, aux = compiled(symbol, passes, req)
    for _ in range(runs):
        executor.forward(is_train=is_train)
        if req != "null":
            executor.backward([np.ones((1,), np.float32)], is_train=differentiates_as)
    return executor, grads, aux


@pytest.mark.parametrize("attrs", [{}, {"fix_gamma": False}, {"use_global_stats": True, "fix_gamma": False}], ids=str)
@pytest.mark.parametrize("req", ["write", "add", "null"])
@pytest.mark.parametrize("is_train", [True, False], ids=["train", "infer"])
@pytest.mark.parametrize("differentiates_as", [True, False], ids=["backward trains", "backward infers"])
def test_same_numbers(attrs, req, is_train, differentiates_as):
    symbol = network(**attrs)
    modes = {"is_train": is_train, "differentiates_as": differentiates_as}
    tested, plain = (ran(symbol, passes, req, **modes) for passes in (PASSES, WITHOUT))
    assert operators(tested[0]).count(NORMALIZED_RELU.name) == 2
    assert "BatchNorm" not in operators(tested[0])
    assert operators(tested[0]).count(NORMALIZED_RELU_BACKWARD.name) == (0 if req == "null" else 2)
    assert tested[0].memory.arena_bytes <= plain[0].memory.arena_bytes * 1.05
    np.testing.assert_allclose(tested[0].outputs[0], plain[0].outputs[0], **NEAR)
    for k in (1, 2):
        assert tested[k].keys() == plain[k].keys()
        for name in plain[k]:
            scale = max(1, float(np.abs(plain[k][name]).max()))
            np.testing.assert_allclose(tested[k][name] / scale, plain[k][name] / scale, **NEAR, err_msg=name)


def residual(depth=3):
    """Units that add what they compute to what they read: the gradient of it is a sum."""
    x = convolved(mx.sym.Variable("data"), "first")
    for i in range(depth):
        norm = mx.sym.BatchNorm(x, name=f"norm{i}", fix_gamma=False)
        x = x + convolved(mx.sym.Activation(norm, act_type="relu", name=f"relu{i}"), f"conv{i}")
    return mx.sym.sum(mx.sym.square(x))


@pytest.mark.parametrize("is_train", [True, False], ids=["train", "infer"])
def test_sums_of_gradients_are_written_at_once(is_train):
    tested, plain = (ran(residual(), passes, is_train=is_train) for passes in (PASSES, WITHOUT))
    assert operators(tested[0]).count(NORMALIZED_RELU_BACKWARD.name) == 3
    assert operators(plain[0]).count("_grad_add") == 3
    assert "_grad_add" not in operators(tested[0])
    assert tested[0].memory.arena_bytes <= plain[0].memory.arena_bytes * 1.05
    for k in (1, 2):
        for name in plain[k]:
            scale = max(1, float(np.abs(plain[k][name]).max()))
            np.testing.assert_allclose(tested[k][name] / scale, plain[k][name] / scale, **NEAR, err_msg=name)


def test_a_gradient_that_is_wanted_by_itself_is_not_summed_at_once():
    """data's gradient is the norm's alone: nothing is added."""
    x = mx.sym.BatchNorm(convolved(mx.sym.Variable("data"), "first"), name="norm")
    symbol = mx.sym.sum(mx.sym.square(convolved(mx.sym.Activation(x, act_type="relu"), "last")))
    executor, *_ = compiled(symbol, req="write")
    assert operators(executor).count(NORMALIZED_RELU_BACKWARD.name) == 1
    (step,) = [s for s in executor.plan.steps if s.node.op is NORMALIZED_RELU_BACKWARD]
    assert not step.node.params.adds


def test_what_else_is_read_stays():
    """The normalised array by a second reader or as an output; another function than relu; a single channel."""
    x = convolved(mx.sym.Variable("data"), "first")
    norm = mx.sym.BatchNorm(x, name="norm")
    relu = mx.sym.Activation(norm, act_type="relu")
    one = mx.sym.Convolution(relu, kernel=(1, 1), num_filter=1, name="one")
    for symbol, count in (
        (convolved(relu, "last"), 1),
        (convolved(relu + norm, "last"), 0),
        (mx.sym.Group([convolved(relu, "last"), norm]), 0),
        (convolved(mx.sym.Activation(norm, act_type="tanh"), "last"), 0),
        (convolved(mx.sym.Activation(mx.sym.BatchNorm(one, name="of_one"), act_type="relu"), "last"), 1),
    ):
        assert operators(compiled(symbol)[0]).count(NORMALIZED_RELU.name) == count


def test_no_pairs_without_a_compiler_or_onednn(monkeypatch):
    symbol = network()
    assert NORMALIZED_RELU.name not in operators(compiled(symbol, level="reference")[0])
    set_c_kernels(monkeypatch, "0")
    assert NORMALIZED_RELU.name not in operators(compiled(symbol)[0])
    set_c_kernels(monkeypatch, "1")
    monkeypatch.setattr(c_compiler, "_compiler", lambda: None)
    assert NORMALIZED_RELU.name not in operators(compiled(symbol)[0])


def test_nan_stays_nan():
    executor, *_ = compiled(network())
    executor._external["arg", "data"][0, 0, 0, 0] = np.nan
    executor.forward(is_train=True)
    assert np.isnan(executor.outputs[0]).all()


def test_a_monitor_sees_both():
    shown = {}
    tested, *_ = compiled(network())
    tested.forward(is_train=True, monitor=lambda name, array: shown.__setitem__(name, array.copy()))
    norm, relu = shown["norm0_output"], shown["relu0_output"]
    assert (norm < 0).any()
    np.testing.assert_allclose(relu, np.maximum(norm, 0), rtol=1e-5, atol=1e-5)  # two ways of normalising


def test_runs_allocate_nothing():
    executor, _, _ = ran(network(fix_gamma=False), PASSES, is_train=True)
    with counted() as sizes:
        executor.forward(is_train=True)
        executor.backward([np.ones((1,), np.float32)])
    assert not [size for size in sizes if size > 64]
