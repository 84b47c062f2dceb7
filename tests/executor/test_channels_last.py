"""Regions of channels last: the same numbers with and without, few reorders, and nothing that a user could see."""

from __future__ import annotations

import json

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_ops.compute import PLAIN
from opbox_ops.layout import CHANNELS_LAST
from opbox_service.executor import compile_plan
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.channels_last import channels_last
from opbox_service.executor.run import BoundPlan
from opbox_service.graph.json import load
from opbox_service.graph.passes.infer_shape import infer_shape
from tests.allocations import counted

CPU = backend_for("cpu")
WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not channels_last)
NEAR = {"rtol": 2e-4, "atol": 2e-5}
"""float32, sums of some hundred products in another order, through up to ten layers."""


def convolved(data, name, filters=8, **attrs):
    return mx.sym.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=filters, name=name, **attrs)


def plain_chain():
    x = mx.sym.Activation(convolved(mx.sym.Variable("data"), "a"), act_type="relu", name="relu")
    x = mx.sym.Pooling(convolved(x, "b"), kernel=(2, 2), stride=(2, 2), pool_type="max", name="pool")
    return mx.sym.FullyConnected(mx.sym.Flatten(x), num_hidden=5, name="fc")


def residual():
    data = mx.sym.Variable("data")
    x = mx.sym.BatchNorm(convolved(data, "a", no_bias=True), fix_gamma=False, name="norm")
    y = convolved(mx.sym.Activation(x, act_type="relu"), "b") + x
    return mx.sym.Pooling(mx.sym.tanh(y) * 2, global_pool=True, pool_type="avg", name="pool")


def head_within_the_region():
    x = convolved(mx.sym.Variable("data"), "a")
    return mx.sym.Group([mx.sym.relu(x), mx.sym.BlockGrad(x), mx.sym.sum(convolved(x, "b"), axis=1)])


def reader_that_knows_no_layout():
    x = convolved(mx.sym.Variable("data"), "a")
    y = mx.sym.Concat(x, convolved(x, "b"), dim=1)
    return convolved(mx.sym.broadcast_mul(y, mx.sym.mean(y, axis=(2, 3), keepdims=True)), "c", num_group=2)


def joined():
    """As in Inception, SqueezeNet and DenseNet; an array twice, and one that no gradient is wanted of."""
    x = mx.sym.relu(convolved(mx.sym.Variable("data"), "a"))
    y = mx.sym.Concat(convolved(x, "b", filters=5), mx.sym.BlockGrad(x), convolved(x, "c", filters=4), x, dim=1)
    y = mx.sym.Pooling(y, kernel=(2, 2), stride=(2, 2), pool_type="avg", name="pool")
    return mx.sym.Concat(convolved(y, "d"), y, num_args=2, name="last")


def transposed():
    """As in a generator of images, and in a U-Net: with overlapping windows, a bias, groups."""
    x = convolved(mx.sym.Variable("data"), "a")
    y = mx.sym.Deconvolution(x, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=6, name="up")
    y = mx.sym.BatchNorm(y, fix_gamma=False, name="norm")
    # A bias before the normalisation has a gradient of 0, but for rounding.
    return mx.sym.Deconvolution(mx.sym.relu(y), kernel=(3, 3), num_filter=4, num_group=2, no_bias=False, name="last")


def scaled_channels():
    """As in squeeze-and-excitation, and with a factor that is an argument."""
    x = convolved(mx.sym.Variable("data"), "a")
    share = mx.sym.sigmoid(mx.sym.Pooling(x, global_pool=True, kernel=(1, 1), pool_type="avg"))
    y = mx.sym.broadcast_mul(x, share, name="scale") + x
    return convolved(mx.sym.broadcast_add(y, mx.sym.Variable("more", shape=(1, 8, 1, 1)), name="shift"), "b")


def argument_added_to_the_region():
    return convolved(convolved(mx.sym.Variable("data"), "a") + mx.sym.Variable("more"), "b")


def three_dimensions():
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(2, 2, 2), num_filter=4, name="a")
    return mx.sym.Pooling(mx.sym.relu(x), kernel=(2, 2, 2), pool_type="avg", name="pool")


def with_dropout():
    return convolved(mx.sym.Dropout(convolved(mx.sym.Variable("data"), "a"), p=0.5), "b")


NETWORKS = {
    network.__name__: (network, (2, 3, 6, 6, 5) if network is three_dimensions else (2, 3, 10, 8))
    for network in (
        plain_chain,
        residual,
        head_within_the_region,
        reader_that_knows_no_layout,
        joined,
        transposed,
        scaled_channels,
        argument_added_to_the_region,
        three_dimensions,
        with_dropout,
    )
}


def bound(network, passes, req="write", level=None, strided=False):
    """A bound plan of a network, its gradients, and its auxiliary states."""
    build, shape = NETWORKS[network]
    with mx.name.NameManager():
        graph = load(json.loads(build().tojson()))
    shapes = infer_shape(graph, {"data": shape})
    rng = np.random.default_rng(3)
    args, grads = {}, {}
    for name, size in zip(graph.argument_names, shapes.arg_shapes, strict=True):
        args[name] = (rng.normal(size=size) / 3).astype(np.float32)
        grads[name] = np.full(size, 0.5, np.float32)
        if strided and name == "data":
            args[name] = np.repeat(args[name], 2, axis=-1)[..., ::2]
    aux = {n: np.ones(s, np.float32) for n, s in zip(graph.auxiliary_names, shapes.aux_shapes, strict=True)}
    every = {**args, **aux}
    plan = compile_plan(
        graph,
        {name: array.shape for name, array in every.items()},
        {name: array.dtype for name, array in every.items()},
        dict.fromkeys(grads, req),
        passes=passes,
        level=level,
        strided=frozenset({("arg", "data")}) if strided else frozenset(),
    )
    return BoundPlan(plan, args, grads, aux, CPU, CPU.random(0)), grads, aux


def run(network, passes, **choices):
    """Outputs, gradients and states after two training steps.

    The gradients of outputs are drawn: those that are all alike almost vanish in a BatchNorm's gradient, as differences
    of sums that are a thousand times as large, with the rounding of those.
    """
    executor, grads, aux = bound(network, passes, **choices)
    rng = np.random.default_rng(5)
    heads = [rng.normal(size=out.shape).astype(np.float32) for out in executor.outputs]
    for _ in range(2):
        executor.forward(is_train=True)
        executor.backward(heads)
    return executor, [*executor.outputs, *grads.values(), *aux.values()]


def converted(plan):
    return [step for step in plan.steps if any(s.layout != PLAIN for s in step.call.inputs) or step.takes_physical]


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("network", NETWORKS)
def test_numbers_are_the_same(network, req):
    executor, arrays = run(network, PASSES, req=req)
    assert converted(executor.plan)
    _, expected = run(network, WITHOUT, req=req)
    for array, other in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(array, other, **NEAR)


def test_an_argument_that_is_no_contiguous_array():
    _, arrays = run("plain_chain", PASSES, strided=True)
    for array, other in zip(arrays, run("plain_chain", PASSES)[1], strict=True):
        np.testing.assert_allclose(array, other, **NEAR)


def test_reorders_stand_at_the_edges_alone():
    """In a chain: data before, and what is flattened after; in backward its gradient, and data's."""
    executor, _, _ = bound("plain_chain", PASSES)
    reorders = [
        (step.call.inputs[0].layout, step.call.outputs[0].layout)
        for step in executor.plan.steps
        if step.node.op is None and step.call.inputs and step.call.inputs[0].layout != step.call.outputs[0].layout
    ]
    assert reorders == [(PLAIN, CHANNELS_LAST), (CHANNELS_LAST, PLAIN), (PLAIN, CHANNELS_LAST), (CHANNELS_LAST, PLAIN)]


def test_a_residual_network_has_one_region():
    executor, _, _ = bound("residual", PASSES)
    steps = [member for step in converted(executor.plan) for member in step.members or (step,)]
    inside = {step.node.op.name for step in steps if step.node.op is not None}
    assert {"BatchNorm", "Convolution", "_backward_Convolution", "Activation", "elemwise_add", "Pooling"} <= inside


def test_joined_channels_are_inside_of_a_region():
    """But for the gradient of the last, which has its head's from the user."""
    executor, _, _ = bound("joined", PASSES)
    inside = [step.node.op.name for step in converted(executor.plan) if step.node.op is not None]
    assert (inside.count("Concat"), inside.count("_backward_Concat")) == (2, 1)


def test_deconvolutions_are_inside_of_a_region():
    executor, _, _ = bound("transposed", PASSES)
    inside = [step.node.op.name for step in converted(executor.plan) if step.node.op is not None]
    assert inside.count("Deconvolution") == inside.count("_backward_Deconvolution") == 2


def test_channels_that_are_scaled_stay_inside_of_a_region():
    """What is repeated, or summed, is reordered: data and a weight once, and a number for each channel."""
    executor, _, _ = bound("scaled_channels", PASSES)
    members = [member for step in converted(executor.plan) for member in step.members or (step,)]
    inside = {member.node.op.name for member in members if member.node.op is not None}
    assert {"broadcast_mul", "broadcast_add", "_backward_broadcast_mul", "_backward_broadcast_add"} <= inside


def test_what_a_monitor_is_shown_is_as_it_was():
    def watched(passes):
        seen = {}
        bound("residual", passes)[0].forward(True, lambda name, array: seen.setdefault(name, array.copy()))
        return seen

    shown, expected = watched(PASSES), watched(WITHOUT)
    assert list(shown) == list(expected)
    for name, array in shown.items():
        np.testing.assert_allclose(array, expected[name], err_msg=name, **NEAR)


def test_the_reference_has_no_regions():
    executor, _, _ = bound("residual", PASSES, level="reference")
    assert not converted(executor.plan)


def test_a_graph_without_convolutions_is_left_alone():
    graph = load(json.loads(mx.sym.relu(mx.sym.Variable("data")).tojson()))
    plan = compile_plan(graph, {"data": (2, 3, 4, 4)}, {"data": "float32"}, {}, passes=WITHOUT)
    steps = list(plan.steps)
    assert channels_last(plan) is plan
    assert plan.steps == steps


@pytest.mark.parametrize("network", ["plain_chain", "residual", "joined", "transposed", "scaled_channels"])
def test_nothing_is_allocated_in_a_run(network):
    executor, _, _ = bound(network, PASSES)
    heads = [np.ones_like(out) for out in executor.outputs]
    executor.forward(is_train=True)
    executor.backward(heads)
    with counted() as sizes:
        executor.forward(is_train=True)
        executor.backward(heads)
    assert not sizes


@pytest.mark.parametrize("network", ["residual", "reader_that_knows_no_layout"])
def test_results_are_the_same_from_run_to_run(network):
    """To the bit: with as many threads, sums are made in one order."""
    _, arrays = run(network, PASSES)
    _, again = run(network, PASSES)
    for array, other in zip(arrays, again, strict=True):
        assert np.array_equal(array, other)
