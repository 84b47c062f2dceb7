"""ReLU as the last step of a convolution or product: the bits of two steps, and only where ReLU alone reads it."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_ops.compute import highest_level
from opbox_ops.cpu.computes import product, winograd_convolution
from opbox_ops.nn.relu_epilogue import WITH_RELU
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.relu_epilogues import relu_epilogues
from tests.allocations import counted
from tests.executor.test_parts import compiled, operators, ran
from tests.executor.test_shared_products import with_growth
from tests.machine import needs_onednn, needs_vectors
from tests.switches import switch_off

WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not relu_epilogues)
SHAPES = {"data": (2, 32, 7, 9)}
NAMES = {op.name for op in WITH_RELU.values()}

pytestmark = [needs_onednn, needs_vectors]


@pytest.fixture(autouse=True)
def _of_every_size(monkeypatch):
    """Whatever the kernels would take they compute; products as without AVX-512."""
    monkeypatch.setattr(product, "has_fast_kernels", lambda: False)
    monkeypatch.setattr(product, "MIN_MULTIPLICATIONS", 1)
    for limit in ("MIN_SIDE", "MIN_ROWS_IN_BLOCKS"):
        monkeypatch.setattr(product, limit, 1)
    monkeypatch.setattr(winograd_convolution, "WORTH", 1e9)


def convolved(data, name, kernel=3, filters=32, **attrs):
    return mx.sym.Convolution(
        data, kernel=(kernel, kernel), pad=(kernel // 2, kernel // 2), num_filter=filters, name=name, **attrs
    )


def dense(data, name, hidden, **attrs):
    return mx.sym.FullyConnected(data, num_hidden=hidden, name=name, **attrs)


def activated(x, name):
    return mx.sym.Activation(x, act_type="relu", name=name)


def network(**attrs):
    """Winograd's convolution, one of 1 x 1, with a stride too, and two products."""
    x = activated(convolved(mx.sym.Variable("data"), "wide", **attrs), "a")
    x = mx.sym.relu(convolved(x, "narrow", 1, 48, **attrs), name="b")
    x = activated(convolved(x, "halved", 1, 32, stride=(2, 2), **attrs), "c")
    x = activated(dense(x, "first", 40, **attrs), "d")
    x = mx.sym.relu(dense(x, "second", 17, **attrs), name="e")
    return mx.sym.MakeLoss(mx.sym.sum(mx.sym.square(x, name="squared"), name="summed"), name="loss")


def runs(symbol, passes, req="null", shapes=SHAPES, **run):
    return ran(symbol, shapes, passes, req, **run)


def joined(executor):
    return [name for name in operators(executor) if name in NAMES]


@pytest.mark.parametrize("attrs", [{}, {"no_bias": True}], ids=["bias", "no bias"])
@pytest.mark.parametrize(("req", "is_train"), [("write", True), ("add", True), ("write", False), ("null", False)])
def test_the_bits_of_two_steps(attrs, req, is_train):
    (tested, grads), (plain, expected) = (
        runs(network(**attrs), passes, req, is_train=is_train) for passes in (PASSES, WITHOUT)
    )
    assert joined(tested) == ["_rectified_Convolution"] * 3 + ["_rectified_FullyConnected"] * 2
    assert not joined(plain)
    assert not {"relu", "Activation"} & {*operators(tested)}
    assert tested.memory.arena_bytes <= plain.memory.arena_bytes
    np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])
    assert plain.outputs[0] != 0
    for name, array in grads.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def last(kind):
    """A network that ends in a ReLU behind `kind`."""
    data = mx.sym.Variable("data")
    of = {
        "3 x 3": lambda: convolved(data, "last"),
        "1 x 1": lambda: convolved(data, "last", 1, 48),
        "product": lambda: dense(data, "last", 40),
    }
    return activated(of[kind](), "out")


KINDS = pytest.mark.parametrize("kind", ["3 x 3", "1 x 1", "product"])


@KINDS
def test_what_is_not_a_number_stays(kind):
    outs = []
    for passes in (PASSES, WITHOUT):
        executor, _ = compiled(last(kind), SHAPES, passes, "null")
        data = executor._external["arg", "data"]
        data[0, 0, 3, 3], data[0, 1, 6, 6] = np.nan, np.inf
        executor.forward()
        outs.append(executor.outputs[0].copy())
        assert len(joined(executor)) == (passes is PASSES)
    assert np.isnan(outs[0][0]).any()
    assert not np.isnan(outs[0][1]).any()
    assert outs[0][1].min() == 0 < outs[0][1].max()
    np.testing.assert_array_equal(*outs)


@KINDS
@pytest.mark.parametrize("parameters", [None, 1], ids=["lying", "packed"])
def test_weights_that_change(kind, parameters):
    """A packed weight is packed anew where the number says that it may have been written to."""
    (tested, _), (plain, _) = (compiled(last(kind), SHAPES, passes, "null") for passes in (PASSES, WITHOUT))
    assert tested.plan.packed_arguments == plain.plan.packed_arguments
    for run in range(3):
        for executor in (tested, plain):
            executor._external["arg", "last_weight"][...] *= -1
            executor.forward(parameters=None if parameters is None else parameters + run)
        np.testing.assert_array_equal(tested.outputs[0], plain.outputs[0])


def test_a_monitor_sees_both():
    seen = []
    for passes in (PASSES, WITHOUT):
        executor, _ = compiled(network(), SHAPES, passes, "null")
        shown = {}
        executor.forward(monitor=lambda name, array, to=shown: to.update({name: array.copy()}))
        seen.append(shown)
    assert list(seen[0]) == list(seen[1])
    assert "wide_output" in seen[0]
    for name, array in seen[0].items():
        np.testing.assert_array_equal(array, seen[1][name], err_msg=name)
    assert seen[0]["wide_output"].min() < 0 == seen[0]["a_output"].min()


def test_a_run_allocates_nothing():
    executor, _ = runs(network(), PASSES)
    with counted() as sizes:
        executor.forward()
    assert not sizes


def test_half_of_a_step_is_no_step():
    """A negative slope, another function, another reader, an output of the network, a sum in between."""
    x = convolved(mx.sym.Variable("data"), "x")
    for symbol in (
        mx.sym.LeakyReLU(x, act_type="leaky", slope=0.1),
        mx.sym.Activation(x, act_type="softrelu"),
        mx.sym.relu(x) + x,
        mx.sym.Group([mx.sym.relu(x), x]),
        mx.sym.relu(x + 1),
    ):
        (tested, _), (plain, _) = (runs(symbol, passes) for passes in (PASSES, WITHOUT))
        assert not joined(tested)
        for array, expected in zip(tested.outputs, plain.outputs, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_a_reader_in_backward_keeps_the_sum():
    """The gradient of the square reads what ReLU reads."""
    x = dense(mx.sym.Variable("data"), "x", 40)
    symbol = mx.sym.MakeLoss(mx.sym.sum(mx.sym.relu(x)) + mx.sym.sum(mx.sym.square(x)))
    (tested, grads), (_, expected) = (runs(symbol, passes, "write", is_train=True) for passes in (PASSES, WITHOUT))
    assert not joined(tested)
    for name, array in grads.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_calls_that_share_a_weight_keep_it_packed():
    """Four products that wait for one another: their weight is packed once, and their ReLUs are steps."""
    x, weight = mx.sym.Variable("data"), mx.sym.Variable("weight")
    for step in range(4):
        x = mx.sym.relu(dense(x, f"step{step}", 32, weight=weight, no_bias=True))
    executor, _ = runs(x, with_growth(packed=10), shapes={"data": (16, 32)})  # of memory, which is small here
    assert operators(executor).count("_packed_FullyConnected") == 4
    assert not joined(executor)


@pytest.mark.parametrize("level", ["reference", "library"])
def test_without_such_kernels_there_are_two_steps(level, monkeypatch):
    """NumPy's products and oneDNN's convolutions have none."""
    monkeypatch.setenv("OPBOX_COMPUTE_LEVEL", level)
    switch_off(monkeypatch, "winograd")
    monkeypatch.setattr(product, "blocked_product", lambda: None)
    monkeypatch.setattr("opbox_ops.cpu.computes.blocked_product_kernel.blocked_product", lambda: None)
    highest_level.cache_clear()
    try:
        executor, _ = runs(network(), PASSES)
        assert not joined(executor)
        assert operators(executor)
    finally:
        monkeypatch.undo()
        highest_level.cache_clear()
