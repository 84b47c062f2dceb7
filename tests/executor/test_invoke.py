"""One operator at a time."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_protocol.errors import BadRequestError, LimitError, MXNetError, ParamError, ShapeError, UnknownOperatorError
from opbox_service.executor import invoke

from . import toy_ops as toy

CPU = backend_for("cpu")


def run(op, inputs, params=None, **further):
    return invoke(op, params or {}, inputs, backend=CPU, random=CPU.random(0), **further)


def test_outputs_are_made():
    x, w, b = np.ones((2, 3), "f"), np.ones((4, 3), "f"), np.ones(4, "f")
    for params in ({"num_hidden": 4}, {"num_hidden": "4", "no_bias": "False"}):
        (out,) = run("FullyConnected", [x, w, b], params)
        assert out.dtype == np.float32
        assert (out == 4).all()


def test_outputs_may_be_given():
    out = np.zeros(2)
    (returned,) = run(toy.NEG, [np.ones(2)], outputs=[out])
    assert returned is out
    assert out.tolist() == [-1, -1]


def test_an_output_may_be_an_input():
    x, y = np.array([2.0, 3.0]), np.array([5.0, 7.0])
    run(toy.MUL, [x, y], outputs=[x])
    assert x.tolist() == [10, 21]


def test_an_output_may_overlap_an_input():
    base = np.arange(6.0)
    run(toy.NEG, [base[:4]], outputs=[base[2:]])
    assert base.tolist() == [0, 1, 0, -1, -2, -3]
    x = np.array([3.0])
    run(toy.SCRATCH, [x], outputs=[x])
    assert x.tolist() == [18]


def test_temporaries_and_several_outputs():
    assert run(toy.SCRATCH, [np.array([1.0])])[0].tolist() == [6]
    left, right = run(toy.SPLIT, [np.arange(4.0)])
    assert (left.tolist(), right.tolist()) == ([0, 1], [2, 3])


def test_state_lives_for_one_call():
    for _ in range(2):
        assert run(toy.STATEFUL, [np.array([3.0])])[0].tolist() == [3]


@pytest.mark.parametrize(
    ("op", "inputs", "params", "error", "message"),
    [
        ("FullyConected", [], {}, UnknownOperatorError, "did you mean FullyConnected"),
        ("FullyConnected", [np.ones((2, 3))], {"num_hidden": 2}, BadRequestError, "expected 3 inputs"),
        ("FullyConnected", [np.ones((2, 3))], {"num_hidden": -2}, ParamError, "num_hidden"),
        (
            "FullyConnected",
            [np.ones((2, 3)), np.ones((4, 5)), np.ones(4)],
            {"num_hidden": 4},
            ShapeError,
            r"^FullyConnected: weight: expected \(4, 3\), got \(4, 5\)$",
        ),
        (toy.BROKEN, [np.ones(1)], {}, MXNetError, "the operator failed: ValueError: no such luck"),
    ],
)
def test_errors_name_the_operator(op, inputs, params, error, message):
    with pytest.raises(error, match=message):
        run(op, inputs, params)


def test_a_given_output_of_the_wrong_shape_is_refused():
    with pytest.raises(ShapeError, match="_toy_neg"):
        run(toy.NEG, [np.ones(2)], outputs=[np.ones(3)])


def test_memory_is_limited_before_it_is_allocated():
    with pytest.raises(LimitError, match="_toy_neg: the call needs 800 bytes: expected at most 100"):
        run(toy.NEG, [np.ones(100)], max_bytes=100)
    with pytest.raises(LimitError, match="do not fit"):
        run(toy.NEG, [np.broadcast_to(np.ones(1), (1 << 50,))])


def test_a_parameter_that_does_not_fit_is_refused_with_the_operators_name_once():
    with pytest.raises(ParamError, match=r"^Cast: parameter 'dtype': expected one of 'float32', .*, got 'int16'$"):
        run("Cast", [np.ones(2, "f")], {"dtype": "int16"})
