"""Hidden outputs that nobody reads are not computed, of operators that say so, as RNN's last states and its reserve."""

from __future__ import annotations

import numpy as np
import pytest

import opbox as mx
from opbox_ops import attribute
from opbox_ops.backend import backend_for
from opbox_service.executor import bind
from opbox_service.executor.plan import UNWANTED
from opbox_service.graph.json import load
from tests.contract.live import symbol as graph_json
from tests.contract.live import var

CPU = backend_for("cpu")
TIME, BATCH, INPUTS, HIDDEN = 12, 6, 5, 16


def layers(**attrs):
    inputs = [mx.sym.Variable(name) for name in ("data", "parameters", "state", "state_cell")]
    return mx.sym.RNN(*inputs, state_size=HIDDEN, num_layers=2, mode="lstm", name="rnn", **attrs)


def bound(symbol, *, trains=False, **options):
    shapes, _, _ = symbol.infer_shape(data=(TIME, BATCH, INPUTS))
    draw = np.random.RandomState(3)
    args = {n: draw.uniform(-1, 1, s).astype("f") for n, s in zip(symbol.list_arguments(), shapes, strict=True)}
    grads = {name: np.zeros_like(array) for name, array in args.items()} if trains else {}
    return bind(load(symbol.tojson()), args=args, grads=grads, backend=CPU, random=CPU.random(0), **options), grads


def written(executor):
    (step,) = [step for step in executor.plan.steps if step.node.name == "rnn"]
    return [value != UNWANTED for value in step.writes]


@pytest.mark.parametrize("level", ["reference", "library"])
def test_inference_writes_what_is_read(level):
    executor, _ = bound(layers(), level=level)
    shown, _ = bound(layers(state_outputs=True), level=level)
    assert written(executor) == [True, False, False, False]
    assert written(shown) == [True, True, True, False]
    executor.forward()
    shown.forward()
    np.testing.assert_array_equal(executor.outputs[0], shown.outputs[0])
    assert executor.outputs[0].any()


def test_training_writes_what_backward_reads():
    executor, grads = bound(layers(), trains=True)
    shown, expected = bound(layers(state_outputs=True), trains=True)
    assert written(executor)[-1]
    for one in (executor, shown):
        one.forward(is_train=True)
        one.backward([np.ones_like(one.outputs[0]), *[np.zeros_like(array) for array in one.outputs[1:]]])
    for name, array in grads.items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.any()


def test_a_state_that_another_operator_reads_is_written():
    executor, _ = bound(mx.sym.sum(layers(state_outputs=True)[1]))
    assert written(executor) == [True, True, True, False]


def test_memory_is_less_than_what_backward_would_read():
    executor, _ = bound(layers())
    trained, _ = bound(layers(), trains=True)
    assert executor.plan.memory.arena_bytes < trained.plan.memory.arena_bytes / 2


def test_a_monitor_sees_what_is_written():
    executor, _ = bound(layers())
    seen = {}
    executor.forward(monitor=lambda name, array: seen.update({name: array.copy()}))
    assert list(seen) == ["rnn_output"]
    np.testing.assert_array_equal(seen["rnn_output"], executor.outputs[0])


OTHERS = {
    "Dropout": ({"data": (8, 6)}, {"p": 0.5}),
    "CTCLoss": ({"data": (5, 3, 7), "label": (3, 2)}, {}),
    "sort": ({"data": (8, 6)}, {"axis": 0}),
    "LRN": ({"data": (2, 7, 5, 3)}, {"nsize": 5}),
    "topk": ({"data": (8, 6)}, {"k": 2, "ret_typ": "value"}),
    "BatchNorm": ({"data": (2, 3, 4, 5), "gamma": (3,), "beta": (3,)}, {}),
    "_contrib_BatchNormWithReLU": ({"data": (2, 3, 4, 5), "gamma": (3,), "beta": (3,)}, {}),
    "_npi_normal": ({"data": (8, 6), "scale": (8, 6)}, {"loc": None, "scale": None, "dtype": "float32"}),
    "_npi_logistic": ({"data": (8, 6), "scale": (8, 6)}, {"loc": None, "scale": None}),
    "_npi_gumbel": ({"data": (8, 6), "scale": (8, 6)}, {"loc": None, "scale": None}),
    "_npi_exponential": ({"data": (8, 6)}, {"scale": None}),
    "_npi_rayleigh": ({"data": (8, 6)}, {"scale": None}),
}


def test_all_operators_that_say_so_are_tried():
    # _npi_uniform has no gradient that would read its noise.
    assert set(attribute("TSkipsUnread")) == {"RNN", "_npi_uniform", *OTHERS}


def composed(name, inputs, attrs):
    """The JSON of a call of an operator, and the names of its auxiliary states."""
    if name.startswith("_npi_"):  # files have these operators, and `mx.sym` has no function for them
        call = name, "it", {key: str(value) for key, value in attrs.items()}, list(range(len(inputs)))
        return graph_json(*map(var, inputs), call), []
    compose = getattr(mx.sym.contrib if name.startswith("_contrib_") else mx.sym, name.removeprefix("_contrib_"))
    symbol = compose(*map(mx.sym.Variable, inputs), name="it", **attrs)
    return symbol.tojson(), symbol.list_auxiliary_states()


@pytest.mark.parametrize("level", ["reference", "library", "generated"])
@pytest.mark.parametrize("name", OTHERS)
def test_others(name, level):
    """The output is that of a training executor, which writes what its backward reads."""
    shapes, attrs = OTHERS[name]
    draw = np.random.RandomState(3)
    args = {n: draw.uniform(1, 6, shape).astype("f") for n, shape in shapes.items()}
    args |= {"label": np.floor(args["label"])} if "label" in args else {}
    text, states = composed(name, list(shapes), attrs)
    aux = {n: draw.uniform(1, 6, 3).astype("f") for n in states}
    outputs, steps = [], []
    for trains in (False, True):
        grads = {"data": np.zeros(shapes["data"], "f")} if trains else {}
        options = {"backend": CPU, "random": CPU.random(0), "level": level}
        executor = bind(load(text), args=args, grads=grads, aux=aux, **options)
        executor.forward(is_train=False)
        outputs.append(executor.outputs[0].copy())
        (step,) = [step for step in executor.plan.steps if step.node.name == "it"]
        steps.append([value != UNWANTED for value in step.writes])
    hidden = len(steps[0]) - 1
    assert hidden
    assert steps == [[True, *[False] * hidden], [True, *[True] * hidden]]
    np.testing.assert_array_equal(*outputs)
    assert np.isfinite(outputs[0]).all()
