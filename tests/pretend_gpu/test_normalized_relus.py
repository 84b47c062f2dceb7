"""BatchNorm and ReLU as one step on the device: the bits of two steps, and of a sum of gradients behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opbox as mx
from opbox_ops.compute import PLAIN
from opbox_ops.layout import CHANNELS_LAST
from opbox_ops.nn.normalized_relu import NORMALIZED_RELU, NORMALIZED_RELU_BACKWARD
from opbox_service.executor.passes import PASSES
from opbox_service.executor.passes.normalized_relus import normalized_relus

from . import test_channels_last
from .test_channels_last import BFLOAT16, HALF, SINGLE, normed, resnet, run

WITHOUT = tuple(rewrite for rewrite in PASSES if rewrite is not normalized_relus)


def preactivated() -> Any:
    """Units that add what they compute to what they read: the gradient of that is a sum."""
    x = mx.sym.Convolution(mx.sym.Variable("data"), kernel=(3, 3), pad=(1, 1), num_filter=40, name="first")
    for i in range(2):
        norm = mx.sym.BatchNorm(x, fix_gamma=bool(i), name=f"norm{i}")
        y = normed(mx.sym.Activation(norm, act_type="relu"), f"a{i}", kernel=(3, 3), pad=(1, 1), num_filter=40)
        x = x + mx.sym.Convolution(mx.sym.Activation(y, act_type="relu"), kernel=(1, 1), num_filter=40, name=f"b{i}")
    return mx.sym.sum(mx.sym.square(x))


@pytest.mark.parametrize("req", ["write", "add"])
@pytest.mark.parametrize("dtype", [HALF, BFLOAT16, SINGLE], ids=str)
@pytest.mark.parametrize("network", [resnet, preactivated])
def test_the_bits_of_two_steps(gpu: Any, network: Any, dtype: Any, req: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(test_channels_last.NETWORKS, preactivated, (3, 3, 9, 7))
    (plan, results), (_, expected), (_, again) = (
        run(network, dtype, passes, times=2, req=req) for passes in (PASSES, WITHOUT, PASSES)
    )
    names = [step.node.op.name for step in plan.steps if step.node.op is not None]
    layouts = {step.call.inputs[0].layout for step in plan.steps if step.node.op is NORMALIZED_RELU}
    assert layouts == {PLAIN if dtype == SINGLE else CHANNELS_LAST}, names
    pairs = {resnet: 3, preactivated: 4}[network]
    assert names.count(NORMALIZED_RELU.name) == names.count(NORMALIZED_RELU_BACKWARD.name) == pairs
    summed = [step for step in plan.steps if step.node.op is NORMALIZED_RELU_BACKWARD and step.node.params.adds]
    # What is added to the user's gamma and beta stands between the gradient and its sum.
    assert len(summed) == (2 if network is preactivated and req == "write" else 0)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array, err_msg=name)
        np.testing.assert_array_equal(again[name], array, err_msg=name)
        np.testing.assert_array_equal(np.signbit(results[name]), np.signbit(array), err_msg=name)
