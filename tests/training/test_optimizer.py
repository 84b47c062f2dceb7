"""Optimizers step by step against MXNet's weights; rates and decays by name; states written and read."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from tests.training.recorded import VALUES, inputs


def run(row, steps, updater=None, arrays=None):
    """The weights after some of the recorded steps."""
    weights, grads = inputs().optimizer_inputs(row["dtype"])
    if updater is None:
        names = {0: "fc_weight", 1: "fc_bias"}
        updater = mx.optimizer.get_updater(mx.optimizer.create(row["name"], param_idx2name=names, **row["options"]))
    if arrays is None:
        arrays = [mx.nd.array(one, dtype=row["dtype"]) for one in weights]
    seen = []
    for step in grads[steps]:
        updater([0, 1], [mx.nd.array(one, dtype=row["dtype"]) for one in step], arrays)
        seen.append([one.asnumpy() for one in arrays])
    return seen, updater, arrays


@pytest.mark.parametrize("row", VALUES["optimizers"], ids=lambda row: f"{row['name']}{row['options']}{row['dtype']}")
def test_weights_are_mxnets(row):
    seen, _, _ = run(row, slice(None))
    half = row["dtype"] == "float16"
    for got, expected in zip(seen, row["steps"], strict=True):
        for one, wanted in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, wanted, rtol=2e-3 if half else 3e-5, atol=1e-3 if half else 2e-6)


@pytest.mark.parametrize("name", ["sgd", "adam", "nadam", "rmsprop", "dcasgd"])
def test_states_go_through_bytes(name):
    options = {"momentum": 0.9} if name in ("sgd", "dcasgd") else {}
    row = {"name": name, "options": options, "dtype": "float32"}
    straight, _, _ = run(row, slice(None))
    _, updater, arrays = run(row, slice(0, 2))
    raw = updater.get_states(dump_optimizer=True)
    again = mx.optimizer.get_updater(mx.optimizer.create(name))
    again.set_states(raw)
    resumed, _, _ = run(row, slice(2, 4), again, arrays)
    for got, wanted in zip(resumed[-1], straight[-1], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_rates_and_decays_by_name_and_attribute():
    data = mx.sym.Variable("data")
    weight = mx.sym.Variable("fc1_weight", lr_mult=0.5, wd_mult=3.0)
    net = mx.sym.FullyConnected(data, weight=weight, num_hidden=3, name="fc1")
    net = mx.sym.BatchNorm(net, name="bn")
    net = mx.sym.FullyConnected(net, bias=mx.sym.Variable("out", wd_mult=2.0), num_hidden=2, name="fc2")
    names = [name for name in net.list_arguments() if name != "data"]
    optimizer = mx.optimizer.create("sgd", learning_rate=0.1, wd=0.01, sym=net, param_idx2name=dict(enumerate(names)))
    optimizer.set_lr_mult({"fc2_weight": 7.0})
    keys = list(range(len(names)))
    recorded = VALUES["multipliers"]
    assert names == recorded["names"]
    assert optimizer._get_lrs(keys) == pytest.approx(recorded["lrs"])
    assert optimizer._get_wds(keys) == pytest.approx(recorded["wds"])


def test_the_rate_and_its_scheduler():
    optimizer = mx.optimizer.create("sgd", lr_scheduler=mx.lr_scheduler.FactorScheduler(1, 0.5, base_lr=0.8))
    assert optimizer.learning_rate == 0.8
    optimizer._update_count([0, 1])
    optimizer._update_count([0])
    assert optimizer.learning_rate == 0.4
    with pytest.raises(UserWarning, match="rate comes from its lr_scheduler"):
        optimizer.set_learning_rate(0.1)
    with pytest.warns(UserWarning, match="takes the place of the scheduler") as warned:
        mx.optimizer.create("sgd", learning_rate=0.5, lr_scheduler=mx.lr_scheduler.FactorScheduler(1, base_lr=0.8))
    assert warned[0].filename == __file__


def test_warnings_of_an_optimizer_name_the_users_line():
    net = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=2), name="softmax")
    module = mx.mod.Module(net)
    module.bind([("data", (4, 3))], [("softmax_label", (4,))])
    module.init_params()
    with pytest.warns(UserWarning, match="rescale_grad of the optimizer given") as warned:
        module.init_optimizer(optimizer=mx.optimizer.SGD(rescale_grad=1.0))
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match="updated in float16") as warned:
        mx.optimizer.SGD(momentum=0.9).create_state_multi_precision(0, mx.nd.zeros((2,), dtype="float16"))
    assert warned[0].filename == __file__


def test_an_optimizer_of_ones_own():
    @mx.optimizer.register
    class Halving(mx.optimizer.Optimizer):
        def update(self, index, weight, grad, state):
            weight *= 0.5

    array = mx.nd.ones((2,))
    mx.optimizer.get_updater(mx.optimizer.create("halving"))(0, mx.nd.zeros((2,)), array)
    assert array.asnumpy().tolist() == [0.5, 0.5]
    del mx.optimizer.Optimizer.opt_registry["halving"]


def test_an_unknown_name_says_which_there_are():
    with pytest.raises(
        ValueError, match=r"optimizer 'adamx': did you mean .*\badam\b.*\? expected one of .*adam, .*sgd"
    ):
        mx.optimizer.create("adamx")


def test_compensated_delay_with_momentum():
    """MXNet's fails with momentum on; the values are the paper's rule by hand."""
    weight, grad = mx.nd.array([1.0, -2.0]), mx.nd.array([0.5, 0.25])
    updater = mx.optimizer.get_updater(mx.optimizer.create("dcasgd", learning_rate=0.1, momentum=0.5, lamda=0.2))
    w, m, before = np.array([1.0, -2.0]), np.zeros(2), np.array([1.0, -2.0])
    for _ in range(3):
        updater(0, grad, weight)
        g = np.array([0.5, 0.25])
        m = 0.5 * m - 0.1 * (g + 0.2 * g * g * (w - before))
        before, w = w, w + m
    np.testing.assert_allclose(weight.asnumpy(), w, rtol=1e-6)


def test_a_class_without_a_constructor_takes_its_bases_arguments():
    assert mx.optimizer.create("ccsgd", momentum=0.9).momentum == 0.9
