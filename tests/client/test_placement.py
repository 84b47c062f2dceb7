"""`group2ctx`: the contexts of arrays by the groups of `AttrScope(ctx_group=…)`, as MXNet 1.9.1 reports them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx

GROUPS = {"dev1": mx.cpu(1), "dev2": mx.cpu(2)}
BY_ARGUMENT = {
    "data": mx.cpu(1),
    "fc1_weight": mx.cpu(1),
    "fc1_bias": mx.cpu(1),
    "fc2_weight": mx.cpu(2),
    "fc2_bias": mx.cpu(2),
    "softmax_label": mx.cpu(2),
}


def layers() -> Any:
    with mx.AttrScope(ctx_group="dev1"):
        first = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name="fc1")
    with mx.AttrScope(ctx_group="dev2"):
        second = mx.sym.FullyConnected(first, num_hidden=2, name="fc2")
        return first, second, mx.sym.SoftmaxOutput(second, name="softmax")


def network() -> Any:
    return layers()[2]


def test_simple_bind_puts_arrays_where_their_groups_are() -> None:
    executor = network().simple_bind(mx.cpu(0), group2ctx=GROUPS, data=(4, 5))
    assert {name: array.context for name, array in executor.arg_dict.items()} == BY_ARGUMENT
    assert {name: array.context for name, array in executor.grad_dict.items()} == BY_ARGUMENT
    assert executor.outputs[0].context == mx.cpu(2)


def test_an_operator_without_a_group_is_where_its_first_input_is() -> None:
    first, second, loss = layers()
    executor = mx.sym.Group([first, second, second * 2, loss]).simple_bind(mx.cpu(0), group2ctx=GROUPS, data=(4, 5))
    assert [array.context.device_id for array in executor.outputs] == [1, 2, 2, 2]
    free = mx.sym.Variable("x") + 1
    executor = free.simple_bind(mx.cpu(3), group2ctx=GROUPS, x=(2,))
    assert executor.outputs[0].context == executor.arg_dict["x"].context == mx.cpu(3)


def test_groups_change_no_number() -> None:
    results = []
    for groups in (None, GROUPS):
        net = network()
        executor = net.simple_bind(mx.cpu(0), group2ctx=groups, data=(4, 5))
        for number, array in enumerate(executor.arg_arrays):
            array[:] = np.linspace(-1, 1, array.size).reshape(array.shape) + number
        executor.forward(is_train=True)
        executor.backward()
        results.append([executor.outputs[0].asnumpy(), *(array.asnumpy() for array in executor.grad_arrays)])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_bind_puts_outputs_where_their_groups_are() -> None:
    net = network()
    shapes = zip(net.list_arguments(), net.infer_shape(data=(4, 5))[0], strict=True)
    arrays = [mx.nd.ones(shape, BY_ARGUMENT[name]) for name, shape in shapes]
    grads = [mx.nd.zeros(array.shape, array.context) for array in arrays]
    executor = net.bind(mx.cpu(0), arrays, grads, group2ctx=GROUPS)
    executor.forward(is_train=True)
    executor.backward()
    assert (executor.outputs[0].context, executor.grad_arrays[1].context) == (mx.cpu(2), mx.cpu(1))
    np.testing.assert_allclose(executor.outputs[0].asnumpy(), 0.5)


def test_a_module_takes_groups_for_each_device() -> None:
    groups = {"dev1": mx.cpu(1), "dev2": [mx.cpu(2), mx.cpu(4)]}
    mod = mx.mod.Module(network(), context=[mx.cpu(0), mx.cpu(3)], group2ctxs=groups)
    mod.bind([("data", (4, 5))], [("softmax_label", (4,))])
    mod.init_params(mx.init.One())
    mod.init_optimizer()
    group = mod._exec_group
    assert [[array.context.device_id for array in row] for row in group.param_arrays] == [
        [1, 1],
        [1, 1],
        [2, 4],
        [2, 4],
    ]
    mod.forward_backward(mx.io.DataBatch([np.ones((4, 5))], [np.zeros(4)]))
    mod.update()
    assert [array.context.device_id for array in mod.get_outputs(False)[0]] == [2, 4]
    assert mod.get_outputs()[0].context == mx.cpu(2)
    first, second = (array.asnumpy() for array in group.param_arrays[2])
    np.testing.assert_array_equal(first, second)
    assert (first != 1).any()


def module(groups: Any) -> None:
    mod = mx.mod.Module(network(), context=[mx.cpu(0), mx.cpu(3)], group2ctxs=groups)
    mod.bind([("data", (4, 5))], [("softmax_label", (4,))])


@pytest.mark.parametrize(
    ("groups", "error", "message"),
    [
        (
            {"dev1": mx.cpu(1)},
            RuntimeError,
            "expected a context for the group 'dev2' of node 'fc2_weight', got .* dev1",
        ),
        ({"dev1": 3}, AttributeError, r"group2ctx: dev1: expected a Context such as mx.cpu\(1\), got 3"),
        (3, AttributeError, "group2ctx: expected a dict of contexts by group, got 3"),
    ],
)
def test_wrong_groups_are_told(groups: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        network().simple_bind(mx.cpu(0), group2ctx=groups, data=(4, 5))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([GROUPS], "expected a dict for each of 2 devices, got 1"),
        ({"dev1": [mx.cpu(1)] * 3}, "dev1: expected a context, or one for each of 2 devices, got 3"),
        (3, "expected a dict of contexts by group, or a list, got 3"),
    ],
)
def test_wrong_groups_of_a_module_are_told(groups: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=f"group2ctxs: {message}"):
        module(groups)
