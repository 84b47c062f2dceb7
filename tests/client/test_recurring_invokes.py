"""Calls that come again are recorded as the first one: their results' shapes, their errors, their lines."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import opbox as mx
from opbox_protocol.errors import MXNetError, ParamError


def test_what_is_known_of_results_is_what_the_engine_makes(embedded: None) -> None:
    nd = mx.nd
    x, row, half = nd.ones((2, 3)), nd.ones((1, 3)), nd.ones((2, 3), dtype="float16")
    counts = nd.array(np.ones((2, 3)), dtype="int32")
    calls = [
        lambda: nd.relu(x),
        lambda: nd.relu(half),
        lambda: nd.exp(counts),
        lambda: x + row,
        lambda: row - x,
        lambda: x * x,
        lambda: 2 / half,
        lambda: nd.sum(x, axis=1),
        lambda: nd.Cast(x, dtype="float64"),
        lambda: nd.zeros_like(half),
        lambda: nd.dot(x, row.T),
        lambda: nd.BatchNorm(x, row[0], row[0], row[0], row[0]),
        lambda: nd.zeros((4, 1), dtype="uint8"),
    ]
    for call in calls:
        for _ in range(3):
            result = call()
            values = result.asnumpy()
            assert result.shape == values.shape, inspect.getsource(call)
            assert result.dtype == values.dtype, inspect.getsource(call)


def test_an_error_names_the_line_of_its_own_call(embedded: None) -> None:
    x, y = mx.nd.ones((2, 3)), mx.nd.ones((4, 5))
    results = [x + x for _ in range(5)]
    here = inspect.currentframe()
    assert here is not None
    line = here.f_lineno + 2
    results.append(
        x + y  # this one
    )
    with pytest.raises(MXNetError, match=rf"test_recurring_invokes\.py:{line}\)"):
        results[-1].asnumpy()


def test_a_line_in_code_without_a_file_is_named(embedded: None) -> None:
    source = "def run(x, y):\n    z = x + x\n    return (z +\n        y)\n"
    names: dict = {}
    exec(compile(source, "cell_7.py", "exec"), names)
    with pytest.raises(MXNetError, match=r"cell_7\.py:3\)"):
        names["run"](mx.nd.ones((2, 3)), mx.nd.ones((4, 5))).asnumpy()


def test_wrong_parameters_are_refused_behind_right_ones(embedded: None) -> None:
    x = mx.nd.ones((2, 3))
    for _ in range(2):
        assert mx.nd.sum(x, axis=1).shape == (2,)
        with pytest.raises(ParamError, match="axis"):
            mx.nd.sum(x, axis="first")
        with pytest.raises(ParamError, match="unknown parameter 'axes'"):
            mx.nd.sum(x, axes=1)
        with pytest.raises(ParamError, match="input 'rhs' is missing"):
            mx.nd.broadcast_add(x)
        with pytest.raises(TypeError, match="must be an NDArray"):
            mx.nd.relu(np.ones(3))


def test_arrays_of_two_sessions_are_not_mixed(embedded: None) -> None:
    from opbox import connection
    from opbox.session import Session

    x = mx.nd.ones((2,))
    other = Session(connection.transport(), "cpu")
    y = mx.nd.NDArray(other, other.new_id(), (2,), np.dtype(np.float32))
    try:
        for first, second in ((x, y), (y, x)):
            with pytest.raises(MXNetError, match="expected all arrays on cpu, got one on cpu"):
                first + second
    finally:
        other.close()


def test_parameters_that_are_equal_and_not_the_same_are_other_calls(embedded: None) -> None:
    x = mx.nd.array([-2.0, 3.0])
    for _ in range(4):
        assert mx.nd._internal._plus_scalar(x, scalar=1).asnumpy().tolist() == [-1, 4]
        assert str((mx.nd._internal._rdiv_scalar(mx.nd.ones(1), scalar=-0.0)).asscalar()) == "-0.0"
        assert str((mx.nd._internal._rdiv_scalar(mx.nd.ones(1), scalar=0.0)).asscalar()) == "0.0"
        assert mx.nd.sum(x, axis=0).shape == (1,)
        with pytest.raises(ParamError, match="keepdims"):
            mx.nd.sum(x, axis=0, keepdims="maybe")


def test_a_recurring_call_writes_where_it_is_asked_to(embedded: None) -> None:
    x, w = mx.nd.ones((2, 3)), mx.nd.ones((4, 3))
    for i in range(4):
        out = mx.nd.zeros((2, 4))
        assert mx.nd.FullyConnected(x * i, w, num_hidden=4, no_bias=True, out=out) is out
        assert (out.asnumpy() == 3 * i).all()
        assert (mx.nd.FullyConnected(x * i, w, num_hidden=4, no_bias=True).asnumpy() == 3 * i).all()
        assert (mx.nd.add_n(x, x, x, num_args=3).asnumpy() == 3).all()
        first, second = mx.nd.split(mx.nd.ones((2, 4)), num_outputs=2, axis=1)
        assert first.shape == second.shape == (2, 2)


def test_arrays_among_the_arguments_are_let_go_of(embedded: None) -> None:
    session = mx.nd.ones((2, 3))._session
    mx.nd.waitall()
    for _ in range(3):
        w = mx.nd.ones((4, 3))
        mx.nd.FullyConnected(mx.nd.ones((2, 3)), weight=w, num_hidden=4, no_bias=True).wait_to_read()
        number = w._id
        del w
        assert number in session._recording.freed
