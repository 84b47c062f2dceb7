"""Inference by an executor with gradients: by a plan without backward, in the same memory, and nobody notices."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.executor.calls import Calls
from opbox_service.graph.json import load

CPU = backend_for("cpu")
BATCH, WIDTH = 8, 32


def network():
    x = mx.sym.Variable("data")
    for t in range(3):
        x = mx.sym.FullyConnected(x, num_hidden=WIDTH, name=f"fc{t}")
        x = mx.sym.BatchNorm(x, fix_gamma=False, name=f"bn{t}")
        x = mx.sym.sigmoid(x) * mx.sym.tanh(x)
    return mx.sym.MakeLoss(mx.sym.sum(x * x, axis=1))


def dropping():
    """Operators that draw in training alone."""
    x = mx.sym.Dropout(mx.sym.Variable("data"), p=0.4)
    for kind in ("gelu", "rrelu"):
        x = mx.sym.LeakyReLU(mx.sym.FullyConnected(x, num_hidden=WIDTH, name=f"{kind}_fc"), act_type=kind)[0]
    return mx.sym.MakeLoss(mx.sym.sum(x * x, axis=1))


def bound(symbol, *, trains=True, **options):
    shapes, _, aux_shapes = symbol.infer_shape(data=(BATCH, WIDTH))
    draw = np.random.RandomState(3)
    args = {
        name: draw.uniform(-1, 1, shape).astype("f")
        for name, shape in zip(symbol.list_arguments(), shapes, strict=True)
    }
    names = symbol.list_auxiliary_states()
    aux = {name: np.ones(shape, "f") for name, shape in zip(names, aux_shapes, strict=True)}
    grads = {name: np.zeros_like(array) for name, array in args.items()} if trains else {}
    random = CPU.random(0)
    executor = bind(load(symbol.tojson()), args=args, grads=grads, aux=aux, backend=CPU, random=random, **options)
    return executor, args, grads, aux


@pytest.fixture
def steps(monkeypatch):
    """How many steps each run had."""
    counts = []
    run = Calls.run

    def counted(self, profile=None):
        counts.append(len(self.calls))
        run(self, profile)

    monkeypatch.setattr(Calls, "run", counted)
    return counts


def test_runs_what_an_executor_without_gradients_runs(steps):
    (training, _, _, _), (plain, _, _, _) = bound(network()), bound(network(), trains=False)
    for executor in (training, plain):
        executor.forward(is_train=False)
    training.forward(is_train=True)
    assert steps[0] == steps[1] <= steps[2]
    training.forward(is_train=False)
    np.testing.assert_array_equal(training.outputs[0], plain.outputs[0])


def test_takes_no_memory_of_its_own():
    executor, _, _, _ = bound(network())
    begin = executor._arena.__array_interface__["data"][0]
    executor.forward(is_train=False)
    own = executor._inferring
    assert own is not None
    assert own._arena.__array_interface__["data"][0] == begin
    assert own._arena.nbytes <= executor._arena.nbytes
    assert own.outputs[0] is executor.outputs[0]


def test_between_training_steps_it_reads_the_weights_as_they_are():
    executor, args, grads, aux = bound(network())
    other, their_args, their_grads, their_aux = bound(network(), share=False)
    for _ in range(3):
        for one, weights, gradients in ((executor, args, grads), (other, their_args, their_grads)):
            one.forward(is_train=True)
            one.backward()
            for name in weights:
                if name != "data":
                    weights[name] -= 0.01 * gradients[name]
            one.forward(is_train=False)
        # Plans with other fusions: float32 within the rounding of a few sums.
        np.testing.assert_allclose(executor.outputs[0], other.outputs[0], rtol=1e-5)
    for name in aux:
        np.testing.assert_allclose(aux[name], their_aux[name], rtol=1e-5)
    assert executor._inferring is not None


@pytest.mark.parametrize("make", [network, dropping])
def test_backward_after_it_has_its_values(steps, make):
    """Those of a run that drops nothing."""
    executor, _, grads, _ = bound(make())
    other, _, expected, _ = bound(make(), share=False)
    for one in (executor, other):
        one.forward(is_train=True)
        one.forward(is_train=False)
        one.backward()
        one.backward()
    for name, array in grads.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
    assert executor._inferring is None  # such an executor keeps what backward reads
    steps.clear()
    executor.forward(is_train=True)
    executor.forward(is_train=False)
    assert steps[0] == steps[1]


def test_a_monitor_sees_every_operator():
    executor, _, _, _ = bound(network())
    executor.forward(is_train=False)
    seen = []
    executor.forward(is_train=False, monitor=lambda name, array: seen.append(name))
    assert {"fc0_output", "bn1_output", "fc2_output"} <= set(seen)


def test_operators_that_draw_stay_in_one_plan():
    executor, _, _, _ = bound(mx.sym.MakeLoss(mx.sym.Dropout(network(), mode="always")))
    executor.forward(is_train=False)
    assert executor._inferring is None
    executor.backward()


def test_operators_that_draw_in_training_alone_have_two_plans():
    """Inference between two training runs changes nothing of what they draw."""
    executor, _, grads, _ = bound(dropping())
    other, _, expected, _ = bound(dropping(), share=False)
    outputs = []
    for one in (executor, other):
        for is_train in (True, False, True, False, False, True):
            one.forward(is_train=is_train)
            outputs.append(one.outputs[0].copy())
        one.backward()
    assert executor._inferring is not None
    assert other._inferring is None
    drawn = outputs[0], outputs[2], outputs[5]
    assert not np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[1], drawn[2])
    # Plans with other fusions: float32 within the rounding of a few sums.
    for one, two in zip(outputs[:6], outputs[6:], strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4)
    for name, array in grads.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_its_plan_is_counted():
    (training, _, _, _), (plain, _, _, _) = bound(network()), bound(network(), trains=False)
    own = len(training.plan.values) + len(training.plan.steps)
    of_one = plain.plan.object_bytes / (len(plain.plan.values) + len(plain.plan.steps))
    assert training.plan.object_bytes >= of_one * own + plain.plan.object_bytes
