"""Formulas: what they may hold, what they compile to, and that pieces, aliases and layouts change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.cache import CACHE_BYTES
from opbox_ops.expression.evaluate import MAX_UNCUT_SLICES, FormulaKernel, piece, scratch
from opbox_ops.expression.family import derivative
from opbox_ops.expression.language import Expression, read, write
from opbox_ops.expression.pointwise import Pointwise, program_of

from .harness import write_outputs

CPU = backend_for("cpu")
F = np.dtype(np.float32)


def _run(formula: Expression, arrays: list[Any], out: Any, planned: bool = False) -> Any:
    formulas = Pointwise(formula.arrays, (formula,))
    program, work = program_of(formulas, [array.dtype for array in arrays], [out.dtype], (0,))
    temp = [CPU.empty(t.shape, t.dtype) for t in scratch(program, work, out.shape, "cpu")] if planned else ()
    with np.errstate(all="ignore"):
        FormulaKernel(program, work, CPU.xp, CPU.special).bind(out.shape, arrays, [out], {}, temp)()
    return out


def _program(text: str, *arrays: str) -> Any:
    formulas = Pointwise(arrays, (Expression(text, arrays),))
    return program_of(formulas, [F] * len(arrays), [F], (0,))[0]


def _formulas(op: str, inputs: int = 1) -> Any:
    op = registry.get(op)
    return op.get_attr("FExpression")(op.parse({}), [F] * inputs, [F])


def test_numbers_are_folded_and_equal_parts_computed_once() -> None:
    program = _program("(180 / pi) * x + exp(x) * exp(x)", "x")
    assert [step.function for step in program.steps] == ["multiply", "exp", "multiply", "add"]
    assert program.constants == (pytest.approx(57.29577951),)
    assert Expression("(180 / pi) * x + exp(x) * exp(x)", ("x",)).names == {"x"}


def test_registers_are_reused() -> None:
    assert _program("x * exp(sin(cos(x)))", "x").registers == 1
    assert _program("x * (exp(x) + sin(x))", "x").registers == 2


def test_the_target_serves_as_a_register_once_its_memory_is_not_read_any_more() -> None:
    assert _program("exp(sin(cos(x)))", "x").registers == 0
    assert _program("exp(x) + sin(x)", "x").registers == 1


def test_a_comparison_is_a_mask_until_it_is_a_number() -> None:
    program = _program("where((x > 0) - (x < 0), x, 2)", "x")
    functions = [step.function for step in program.steps]
    assert functions == ["greater", "copy", "less", "copy", "subtract", "not_equal", "select"]
    assert (program.registers, program.masks) == (2, 1)


@pytest.mark.parametrize("text", ["x - (-2.5) * -x", "where(x > 0, x ** 2, -inf)", "x / (1 + abs(x)) % 3", "x == nan"])
def test_a_term_is_written_as_it_is_read(text: str) -> None:
    term = read(text, ("x",))
    assert repr(read(write(term), ("x",))) == repr(term)


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


FORMULA = Expression("a * (1 + square(b)) - maximum(a, b)", ("a", "b"))
PIECE = piece(_program(FORMULA.text, "a", "b"), F, (CACHE_BYTES,))


@settings(max_examples=60, deadline=None)
@given(
    size=st.sampled_from([1, 7, PIECE - 1, PIECE, PIECE + 1, MAX_UNCUT_SLICES * PIECE + 5]),
    dtype=st.sampled_from(["float32", "float64", "float16", "int32"]),
    planned=st.booleans(),
    strided=st.booleans(),
    alias=st.booleans(),
)
def test_pieces_agree_with_numpy(size: int, dtype: str, planned: bool, strided: bool, alias: bool) -> None:
    random = np.random.default_rng(size)
    a, b = (random.integers(-3, 4, size).astype(dtype) for _ in "ab")
    expected = (a * (1 + b * b) - np.maximum(a, b)).astype(dtype)
    out = np.full((size, 2), 5, dtype)[:, 1] if strided else np.full(size, 5, dtype)
    if alias:
        out[...] = b
    _run(FORMULA, [a, out if alias else b], out, planned)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("planned", [False, True])
def test_shapes_are_broadcast_piece_by_piece(planned: bool) -> None:
    random = np.random.default_rng(3)
    a, b = random.standard_normal((300, 1, 9), "f"), random.standard_normal((1, 1900, 9), "f")
    out = _run(
        Expression("where(a > b, a * b, 0) + hypot(a, b)", ("a", "b")), [a, b], np.empty((300, 1900, 9), "f"), planned
    )
    np.testing.assert_allclose(out, np.where(a > b, a * b, 0) + np.hypot(a, b), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32", "int64", "uint8"])
def test_where_copies_bits(dtype: str) -> None:
    condition = np.array([0, 1, 1, 0, 1, 0]).astype(dtype)
    a, b = np.array([1, 2, 3, 4, 5, 6]).astype(dtype), np.array([7, 6, 5, 4, 3, 2]).astype(dtype)
    for text, expected in (
        ("where(c, a, b)", np.where(condition, a, b)),
        ("where(c, a, 0)", np.where(condition, a, 0)),
        ("where(c, 0, b)", np.where(condition, 0, b)),
        ("where(c, 3, b)", np.where(condition, 3, b)),
    ):
        for out in (np.empty_like(a), a.copy(), b.copy()):
            _run(Expression(text, ("c", "a", "b")), [condition, a, b], out)
            np.testing.assert_array_equal(out, expected.astype(dtype), err_msg=text)
    nan = _run(Expression("where(c, 1, 2)", ("c",)), [np.array([np.nan, 0], "f")], np.empty(2, "f"))
    assert nan.tolist() == [1, 2]


def test_half_precision_is_rounded_once() -> None:
    x = np.linspace(-8, 8, 1001).astype(np.float16)
    out = _run(_formulas("sigmoid").outputs[0], [x], np.empty_like(x))
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_array_equal(out, exact.astype(np.float32).astype(np.float16))


def test_broadcast_gradients_are_summed_in_single_precision() -> None:
    op = registry.get("_backward_broadcast_add")
    g = np.full((4096, 1), 1, np.float16)
    left, right = np.empty((4096, 1), np.float16), np.empty((1, 1), np.float16)
    write_outputs(op, op.parse({}), [g], [left, right])
    assert right.item() == 4096


def test_formulas_are_an_attribute_of_forward_and_backward_operators() -> None:
    assert _formulas("sigmoid").outputs[0].text == "1 / (1 + exp(-x))"
    assert [formula.text for formula in _formulas("_backward_tanh", 2).outputs] == ["g * (1 - square(y))"]
    assert _formulas("_mul_scalar").numbers == {"s": 1.0}
    assert {"elemwise_add", "clip", "broadcast_add", "_backward_power", "Cast"} <= set(
        registry.attribute("FExpression")
    )
