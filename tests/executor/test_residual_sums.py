"""Residual sums that a convolution writes itself: the same numbers, only where nobody else reads what is added to."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_ops.compute import highest_level
from opbox_ops.cpu.computes import product
from opbox_ops.nn.summed_convolution import SUMMED
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.residual_sums import residual_sums
from tests.allocations import counted
from tests.executor.test_parts import compiled, operators, ran
from tests.machine import needs_onednn, needs_vectors

WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not residual_sums)
SHAPES = {"data": (2, 8, 6, 5)}
NEAR = {"rtol": 2e-4, "atol": 2e-5}
"""float32, sums of some hundred products in another order, through a few layers."""

pytestmark = needs_onednn


def convolved(data, name, kernel=3, **attrs):
    attrs = {"num_filter": 8, "no_bias": True, **attrs}
    return mx.sym.Convolution(data, kernel=(kernel, kernel), pad=(kernel // 2, kernel // 2), name=name, **attrs)


def pre_activated(**attrs):
    """Two units of ReLU and two convolutions around a shortcut, the first of which has a convolution."""
    x = convolved(mx.sym.Variable("data"), "stem")
    first = mx.sym.relu(x)
    x = convolved(convolved(first, "a"), "b", **attrs) + convolved(first, "shortcut", 1, **attrs)
    x = x + convolved(mx.sym.relu(convolved(mx.sym.relu(x), "c")), "d", **attrs)
    return mx.sym.relu(x)


def runs(symbol, passes, req="null", **run):
    return ran(symbol, SHAPES, passes, req, **run)


@pytest.mark.parametrize("attrs", [{}, {"no_bias": False}, {"num_group": 2}], ids=["plain", "bias", "groups"])
def test_convolutions_add(attrs):
    (tested, _), (plain, _) = (runs(pre_activated(**attrs), passes) for passes in (PASSES, WITHOUT))
    assert operators(tested).count(SUMMED.name) == 2
    assert "elemwise_add" not in operators(tested)
    assert tested.memory.arena_bytes <= plain.memory.arena_bytes
    np.testing.assert_allclose(tested.outputs[0], plain.outputs[0], **NEAR)


@pytest.mark.parametrize("req", ["write", "add"])
def test_training_keeps_what_backward_reads(req):
    """tanh's gradient reads the shortcut's convolution, so that sum stays."""
    x = mx.sym.tanh(convolved(mx.sym.Variable("data"), "stem"))
    x = convolved(mx.sym.relu(x), "a") + x
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(x)))
    (tested, grads), (_, expected) = (runs(symbol, passes, req, is_train=True) for passes in (PASSES, WITHOUT))
    assert operators(tested).count(SUMMED.name) == 0
    for name, array in grads.items():
        np.testing.assert_allclose(array, expected[name], **NEAR, err_msg=name)


def test_training_adds_where_backward_reads_neither():
    symbol = mx.sym.MakeLoss(mx.sym.sum(pre_activated()))
    (tested, grads), (plain, expected) = (runs(symbol, passes, "write", is_train=True) for passes in (PASSES, WITHOUT))
    assert operators(tested).count(SUMMED.name) >= 1
    assert tested.memory.arena_bytes <= plain.memory.arena_bytes
    for name, array in grads.items():
        np.testing.assert_allclose(array, expected[name], **NEAR, err_msg=name)


def pointwise(**attrs):
    """A unit that ends in a convolution of 1 x 1, and whose input backward reads."""
    x = convolved(mx.sym.Variable("data"), "stem", num_filter=16)
    unit = mx.sym.relu(convolved(mx.sym.sin(x), "wide", num_filter=32))
    x = x + convolved(unit, "narrow", 1, num_filter=16, **attrs)
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(x)))


@needs_vectors
@pytest.mark.parametrize("attrs", [{}, {"no_bias": False}], ids=["plain", "bias"])
@pytest.mark.parametrize("req", ["write", "add"])
def test_training_adds_to_what_backward_reads(attrs, req, monkeypatch):
    """Products in blocks write the sum beside the shortcut."""
    monkeypatch.setattr(product, "has_fast_kernels", lambda: False)
    monkeypatch.setattr(product, "MIN_MULTIPLICATIONS", 1)
    symbol = pointwise(**attrs)
    (tested, grads), (plain, expected) = (runs(symbol, passes, req, is_train=True) for passes in (PASSES, WITHOUT))
    (step,) = [step for step in tested.plan.steps if step.node.op is SUMMED]
    assert step.node.params.apart
    inferring, _ = compiled(symbol, SHAPES, PASSES, "null")
    assert "narrow_weight" in inferring.plan.packed_arguments
    assert "narrow_weight" in tested.plan.packed_arguments, "else inference could not lie in this plan's memory"
    assert "elemwise_add" not in operators(tested)
    assert tested.memory.arena_bytes <= plain.memory.arena_bytes
    np.testing.assert_allclose(tested.outputs[0], plain.outputs[0], **NEAR)
    for name, array in grads.items():
        scale = max(1, float(np.abs(expected[name]).max()))
        np.testing.assert_allclose(array / scale, expected[name] / scale, **NEAR, err_msg=name)


def read_later():
    x = convolved(mx.sym.Variable("data"), "a")
    return (x + convolved(mx.sym.relu(x), "b")) * x


def read_by_the_convolution():
    x = convolved(mx.sym.Variable("data"), "a")
    return x + convolved(x, "b")


def an_output_of_its_own():
    x = convolved(mx.sym.Variable("data"), "a")
    y = convolved(mx.sym.relu(x), "b")
    return mx.sym.Group([x + y, y])


def an_argument():
    return mx.sym.Variable("more") + convolved(mx.sym.Variable("data"), "a")


def twice_the_same():
    x = convolved(mx.sym.Variable("data"), "a")
    return x + x


@pytest.mark.parametrize(
    "network", [read_later, read_by_the_convolution, an_output_of_its_own, an_argument, twice_the_same]
)
def test_what_others_read_is_not_written_over(network):
    (tested, _), (plain, _) = (runs(network(), passes) for passes in (PASSES, WITHOUT))
    assert SUMMED.name not in operators(tested)
    for array, expected in zip(tested.outputs, plain.outputs, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_nan_goes_through():
    executor, _ = compiled(pre_activated(), SHAPES, PASSES, "null")
    executor._external["arg", "data"][0, 0, 3, 3] = np.nan
    executor.forward()
    assert np.isnan(executor.outputs[0][0]).any()
    assert not np.isnan(executor.outputs[0][1]).any()


@pytest.mark.parametrize("shape", [SHAPES["data"], (2, 8, 8, 8)], ids=["uneven", "even"])
def test_a_monitor_sees_the_sums(shape):
    """Where height, width and channels are equal, the layout shows in no shape."""
    symbol, seen = pre_activated(), []
    for passes in (PASSES, WITHOUT):
        executor, _ = compiled(symbol, {"data": shape}, passes, "null")
        shown = {}
        executor.forward(monitor=lambda name, array, to=shown: to.update({name: array.copy()}))
        seen.append(shown)
    assert list(seen[0]) == list(seen[1])
    for name, array in seen[0].items():
        np.testing.assert_allclose(array, seen[1][name], **NEAR, err_msg=name)


def test_a_run_allocates_nothing():
    executor, _ = runs(pre_activated(), PASSES)
    with counted() as sizes:
        executor.forward()
    assert not sizes


def test_the_reference_adds_in_a_step(monkeypatch):
    monkeypatch.setenv("OPBOX_COMPUTE_LEVEL", "reference")
    highest_level.cache_clear()
    try:
        assert SUMMED.name not in operators(runs(pre_activated(), PASSES)[0])
    finally:
        monkeypatch.undo()
        highest_level.cache_clear()
