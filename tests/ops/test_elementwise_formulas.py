"""Formulas: what they may hold, what they compile to, and that blocks, aliases and requests change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.compute import OpContext, OpReq
from opbox_ops.elementwise.evaluate import BLOCK, evaluate, scratch
from opbox_ops.elementwise.expression import Expression
from opbox_ops.elementwise.family import derivative

from .harness import write_outputs

CPU = backend_for("cpu")
CONTEXT = OpContext(CPU.xp, CPU.special, None, CPU)


def _run(formula: Expression, arrays: list[Any], out: Any, req: OpReq = OpReq.WRITE, temp: Any = None) -> Any:
    evaluate(formula, CONTEXT, arrays, req, out, temp=temp)
    return out


def test_numbers_are_folded_and_equal_parts_computed_once() -> None:
    formula = Expression("(180 / pi) * x + exp(x) * exp(x)", ("x",))
    assert [step.function for step in formula.steps] == ["multiply", "exp", "multiply", "add"]
    assert formula.constants == [pytest.approx(57.29577951)]
    assert formula.names == {"pi", "exp", "x"}


def test_registers_are_reused() -> None:
    assert Expression("exp(sin(cos(x)))", ("x",)).registers == 1
    assert Expression("exp(x) + sin(x)", ("x",)).registers == 2


@pytest.mark.parametrize("text", ["x if y else z", "x.T", "eval(x)", "unknown + x", "x < 1 < 2", "'a' + x", "x @ x"])
def test_only_formulas(text: str) -> None:
    with pytest.raises(ValueError, match="formula"):
        Expression(text, ("x",))


def test_exact_means_that_integers_stay_integers() -> None:
    assert Expression("maximum(a, b) * 2 - a", ("a", "b")).exact
    assert not Expression("0.5 * a", ("a",)).exact
    assert not Expression("exp(a)", ("a",)).exact
    large = np.array([2**62 + 1], np.int64)
    assert _run(Expression("x + 1", ("x",)), [large], np.empty_like(large))[0] == 2**62 + 2


def test_a_derivative_is_truncated_before_it_meets_an_integer_gradient() -> None:
    real, whole = derivative("0.75 * x", ("x", "y"))
    g, x = np.array([2, 2], np.int32), np.array([1, 2], np.int32)
    assert real.arrays == whole.arrays == ("g", "x")
    assert _run(whole, [g, x], np.empty_like(g)).tolist() == [0, 2]
    assert _run(real, [g.astype("f"), x.astype("f")], np.empty(2, "f")).tolist() == [1.5, 3]


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5]),
    dtype=st.sampled_from(["float32", "float64", "float16", "int32"]),
    req=st.sampled_from([OpReq.WRITE, OpReq.ADD]),
    planned=st.booleans(),
    strided=st.booleans(),
    alias=st.booleans(),
)
def test_blocks_agree_with_numpy(size: int, dtype: str, req: OpReq, planned: bool, strided: bool, alias: bool) -> None:
    formula = Expression("a * (1 + square(b)) - maximum(a, b)", ("a", "b"))
    random = np.random.default_rng(size)
    a, b = (random.integers(-3, 4, size).astype(dtype) for _ in "ab")
    expected = (a * (1 + b * b) - np.maximum(a, b)).astype(dtype)
    out = np.full((size, 2), 5, dtype)[:, 1] if strided else np.full(size, 5, dtype)
    if req == OpReq.ADD:
        expected += 5
    elif alias:
        out[...] = b
    room = scratch(formula, (a.dtype, b.dtype, out.dtype), size)
    temp = CPU.empty(room.shape, room.dtype) if planned else None
    _run(formula, [a, out if alias and req == OpReq.WRITE else b], out, req, temp)
    np.testing.assert_array_equal(out, expected)


def test_half_precision_is_rounded_once() -> None:
    x = np.linspace(-8, 8, 1001).astype(np.float16)
    out = np.empty_like(x)
    _run(registry.get("sigmoid").get_attr("FExpression"), [x], out)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_array_equal(out, exact.astype(np.float32).astype(np.float16))


def test_broadcast_gradients_are_summed_in_single_precision() -> None:
    op = registry.get("_backward_broadcast_add")
    g = np.full((4096, 1), 1, np.float16)
    left, right = np.empty((4096, 1), np.float16), np.empty((1, 1), np.float16)
    write_outputs(op, op.parse({}), [g], [left, right])
    assert right.item() == 4096


def test_every_formula_is_an_attribute() -> None:
    formulas = registry.attribute("FExpression")
    assert formulas["sigmoid"].text == "1 / (1 + exp(-x))"
    assert [each.text for each in formulas["_backward_tanh"]] == ["g * (1 - square(y))"]
    assert {"elemwise_add", "_mul_scalar", "clip", "broadcast_add", "_backward_power"} <= set(formulas)
