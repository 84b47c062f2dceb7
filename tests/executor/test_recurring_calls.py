"""Calls of an operator that come again: they give what the first gives, in memory of their own."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import MXNetError, ParamError
from opbox_service.executor import bind, form_of, invoke
from opbox_service.graph import Graph
from tests.cases import all_cases
from tests.fuzz.draws import Draws, arrays_of

CPU = backend_for("cpu")
RANDOM = np.random.default_rng(0)


def run(op, inputs, params=None, **further):
    return invoke(op, params or {}, inputs, backend=CPU, random=CPU.random(0), **further)


def by_executor(name, inputs, params):
    """The same by a graph of one node, whose computes are bound to their arrays."""
    op = registry.get(name)
    parsed = op.parse(params)
    names = op.input_names(parsed)
    variables = [Entry(Node(None, name)) for name in names]
    graph = Graph([Entry(Node(op, "node", params, parsed, tuple(variables)))])
    arrays = {name: array.copy() for name, array in zip(names, inputs, strict=True)}
    aux = {name: arrays.pop(name) for name in graph.auxiliary_names}
    executor = bind(graph, args=arrays, aux=aux, backend=CPU, random=CPU.random(0))
    executor.forward()
    return executor.outputs[0], [aux[name] for name in graph.auxiliary_names]


def floats(*shape, dtype=np.float32):
    return RANDOM.uniform(-2, 2, shape).astype(dtype)


def ints(*shape):
    return RANDOM.integers(-9, 9, shape).astype(np.int32)


CALLS = {
    "one step of one array": ("negative", {}, lambda: [floats(4, 4)]),
    "one step of two arrays": ("broadcast_sub", {}, lambda: [floats(4, 4), floats(4, 1)]),
    "an array and a number": ("_minus_scalar", {"scalar": "1.5"}, lambda: [floats(3)]),
    "a number and an array": ("_rminus_scalar", {"scalar": "1.5"}, lambda: [floats(3)]),
    "a number that is spread out": ("relu", {}, lambda: [floats(4, 4)]),
    "several steps": ("_hypot_scalar", {"scalar": "3"}, lambda: [floats(5, 2)]),
    "steps with scratch": ("sigmoid", {}, lambda: [floats(4, 4)]),
    "half precision": ("sigmoid", {}, lambda: [floats(4, dtype=np.float16)]),
    "integers": ("_mul_scalar", {"scalar": "3"}, lambda: [ints(2, 3)]),
    "a number alone": ("ones_like", {}, lambda: [floats(2, 2)]),
    "a selection": ("where", {}, lambda: [ints(4) % 2, floats(4), floats(4)]),
    "a selection of rows by booleans": ("where", {}, lambda: [ints(4) % 2 == 0, floats(4, 3), floats(4, 3)]),
    "a slope for each channel": ("LeakyReLU", {"act_type": "prelu"}, lambda: [floats(2, 3, 4), floats(3)]),
    "a sum without NaN": ("nansum", {"axis": "1"}, lambda: [floats(4, 3)]),
    "a product without NaN, in a wider type": ("nanprod", {}, lambda: [floats(4, 3, dtype=np.float16)]),
    "no elements": ("sigmoid", {}, lambda: [floats(0, 3)]),
    "no axes": ("sigmoid", {}, lambda: [floats()]),
    "strides": ("broadcast_add", {}, lambda: [floats(4, 6)[:, ::2], floats(3, 4).T]),
    "a state": ("sgd_mom_update", {"lr": "0.1", "momentum": "0.9"}, lambda: [floats(4), floats(4), floats(4)]),
    "a product and a bias": ("FullyConnected", {"num_hidden": "2"}, lambda: [floats(3, 4), floats(2, 4), floats(2)]),
    "a product in half precision": (
        "FullyConnected",
        {"num_hidden": "2", "no_bias": "True"},
        lambda: [floats(3, 4, dtype=np.float16), floats(2, 4, dtype=np.float16)],
    ),
    "a product of flattened rows": (
        "FullyConnected",
        {"num_hidden": "2", "no_bias": "True"},
        lambda: [floats(3, 2, 2), floats(2, 4)],
    ),
    "a kept context": ("softmax", {}, lambda: [floats(3, 4)]),
    "a kept context with temporaries": ("softmax", {}, lambda: [floats(3, 4, dtype=np.float16)]),
    "a state that writes itself": (
        "BatchNorm",
        {"fix_gamma": "False"},
        lambda: [floats(3, 2), floats(2), floats(2), floats(2), abs(floats(2))],
    ),
    "no formula": ("FullyConnected", {"num_hidden": "2", "no_bias": "True"}, lambda: [floats(3, 4), floats(2, 4)]),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_that_recurs_is_the_call(case):
    name, params, inputs = CALLS[case]
    results = []
    for _ in range(3):
        arrays = inputs()
        expected, states = by_executor(name, arrays, params)
        (out,) = run(name, arrays, params)
        np.testing.assert_array_equal(out, expected)
        assert out.dtype == expected.dtype
        for state, wanted in zip(arrays[-len(states) :], states, strict=False):
            np.testing.assert_array_equal(state, wanted)
        results.append((out, expected))
    for out, expected in results:
        np.testing.assert_array_equal(out, expected)
        assert not any(np.may_share_memory(out, other) for other, _ in results if other is not out)


@pytest.mark.parametrize("name", ["sigmoid", "relu", "sgd_mom_update"])
def test_a_call_in_place_that_recurs(name):
    """Every second call is not in place: what is kept for one is not used for the other."""
    params = {"lr": "0.1", "momentum": "0.9"} if name == "sgd_mom_update" else {}
    for i in range(6):
        arrays = [floats(4, 3) for _ in range(3 if params else 1)]
        expected, _ = by_executor(name, arrays, params)
        target = arrays[0] if i % 2 else np.empty_like(arrays[0])
        (out,) = run(name, arrays, params, outputs=[target])
        assert out is target
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", ["sgd_update", "sgd_mom_update", "adam_update"])
def test_a_number_that_changes_with_every_call_counts(name):
    states = {"sgd_update": 0, "sgd_mom_update": 1, "adam_update": 2}[name]
    mine = [floats(3, 2) for _ in range(2)] + [np.zeros((3, 2), "f") for _ in range(states)]
    theirs = [array.copy() for array in mine]
    for lr in ("0.5", "0.25", "0.5", "0.125", "0.5", "0.5"):
        for clip in ("-1", "0.5"):
            params = {"lr": lr, "clip_gradient": clip}
            expected, left = by_executor(name, theirs, params)
            theirs = [expected, theirs[1], *left]
            run(name, mine, params, outputs=[mine[0]])
            for got, wanted in zip(mine, theirs, strict=True):
                np.testing.assert_array_equal(got, wanted)


def test_threads_do_not_share_scratch():
    arrays = [floats(64, 64) for _ in range(4)]
    expected = [run("sigmoid", [x])[0] for x in arrays]
    wrong = []

    def work(k):
        wrong.extend(k for _ in range(200) if not np.array_equal(run("sigmoid", [arrays[k]])[0], expected[k]))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_values_that_are_equal_and_not_the_same_are_different_forms():
    op = registry.get("sum")
    assert form_of(op, {"axis": 1}) is form_of(op, {"axis": 1})
    with pytest.raises(ParamError, match=r"'axis': expected a tuple of integers or None, got 1\.0"):
        form_of(op, {"axis": 1.0})


def test_a_kept_context_has_the_session_of_its_call():
    """Random numbers and the mode are the caller's, whoever has called before."""
    x = np.ones((8, 8), np.float32)

    def drop(source, is_train):
        (out,) = invoke("Dropout", {"p": "0.5"}, [x], backend=CPU, random=source, is_train=is_train)[:1]
        return out

    draws = [[drop(source, True) for _ in range(4)] for source in (CPU.random(1), CPU.random(2), CPU.random(1))]
    for first, second, again in zip(*draws, strict=True):
        np.testing.assert_array_equal(first, again)
        assert (first != second).any()
        np.testing.assert_array_equal(drop(CPU.random(1), False), x)


def test_nan_is_silent_the_second_time_too(recwarn):
    for _ in range(3):
        assert np.isnan(run("log", [np.full(2, -1.0)])[0]).all()
    assert not recwarn.list


@pytest.mark.parametrize("name", ["relu", "_maximum_scalar", "_minimum_scalar", "tanh"])
def test_steps_of_a_plan_that_are_alike(name):
    """The third of them is made by the maker that the second has left."""
    op = registry.get(name)
    params = {"scalar": "0.5"} if "scalar" in name else {}
    parsed = op.parse(params)
    entry = Entry(Node(None, "x"))
    for number in range(5):
        entry = Entry(Node(op, f"node{number}", params, parsed, (entry,)))
    array = floats(7)
    executor = bind(Graph([entry]), args={"x": array}, backend=CPU, random=CPU.random(0))
    executor.forward()
    expected = array
    for _ in range(5):
        expected = run(op, [expected], params)[0]
    np.testing.assert_array_equal(executor.outputs[0], expected)


def test_every_operator_gives_again_what_it_gave_or_refuses_its_types():
    """The first row of each, in its types, in integers and in booleans."""
    cases = {case.op: case for case in reversed(all_cases()) if not case.random}
    for case in cases.values():
        attrs = {key: str(value) for key, value in case.attrs.items()}
        usual = arrays_of(case, Draws(b"")).values()
        for dtype in (*case.dtypes, "int32", "bool"):
            with np.errstate(invalid="ignore"):  # NaN as an integer
                arrays = [array.astype(dtype) if array.dtype == case.dtypes[0] else array for array in usual]
            answers, refusals = [], []
            for _ in range(4):
                try:
                    outputs = run(case.op, [array.copy() for array in arrays], attrs, is_train=case.is_train)
                    answers.append(tuple(array.tobytes() for array in outputs))
                except MXNetError as error:
                    refusals.append((error.status, str(error)))
            assert len({*answers, *refusals}) == 1, (case.id, dtype, refusals)
            assert all(status != 500 for status, _ in refusals), (case.id, dtype, refusals)
