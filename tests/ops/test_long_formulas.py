"""Formulas of thousands of arrays, or thousands of functions deep: what is done with them takes no recursion."""

from __future__ import annotations

import math

import numpy as np
import pytest

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.expression.c_source import c_source
from opbox_ops.expression.derivative import derivative
from opbox_ops.expression.evaluate import FormulaKernel
from opbox_ops.expression.fused import combine, size
from opbox_ops.expression.gradient import differentiate
from opbox_ops.expression.language import Expression, Term, number, substitute
from opbox_ops.expression.pointwise import Pointwise, program_of

CPU = backend_for("cpu")
F = np.dtype(np.float32)
D = np.dtype(np.float64)
LONG = 3_000


def of_many(count: int) -> Pointwise:
    formulas: Pointwise = registry.get("add_n").get_attr("FExpression")(None, [F] * count, [F])
    return formulas


def tower(function: str, height: int) -> Term:
    term: Term = "x"
    for _ in range(height):
        term = (function, (term,))
    return term


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_add_n_adds_from_left_to_right(dtype: str) -> None:
    kind, rng = np.dtype(dtype), np.random.default_rng(3)
    arrays = [(100 * rng.standard_normal(5)).astype(kind) for _ in range(LONG)]
    program, work = program_of(of_many(LONG), [kind] * LONG, [kind], (0,))
    out = np.empty(5, kind)
    FormulaKernel(program, work, CPU.xp, CPU.special).bind(out.shape, arrays, [out], {})()
    expected = arrays[0].astype(work)
    for array in arrays[1:]:
        expected = expected + array
    assert out.tobytes() == expected.astype(kind).tobytes()
    assert program.registers <= 2


def test_a_long_sum_gets_no_kernel_of_c() -> None:
    program, work = program_of(of_many(LONG), [F] * LONG, [F], (0,))
    assert c_source(program, work, [F] * (LONG + 1), [False] * LONG) is None


def test_a_long_sum_among_others() -> None:
    long = of_many(LONG)
    assert size(long) == (LONG, (1,) * LONG)
    relu = Pointwise(("x",), (Expression("maximum(x, 0)", ("x",)),))
    outside = tuple([(-1, i) for i in range(LONG)])
    fused = combine([(long, outside, ("float32",)), (relu, ((0, 0),), ("float32",))], [(1, 0)])
    program, _ = program_of(fused, [F] * LONG, [F], (0,))
    assert program.steps[-1].function == "maximum"


def test_a_tower_of_functions() -> None:
    term = tower("sin", LONG)
    formula = Expression.of(term, ("x",))
    assert formula.names == {"x"}
    assert not formula.exact
    assert formula.text == "sin(" * LONG + "x" + ")" * LONG
    program, _ = program_of(Pointwise(("x",), (formula,)), [F], [F], (0,))
    assert [step.function for step in program.steps] == ["sin"] * LONG
    expected = 1.0
    for _ in range(LONG):
        expected = math.sin(expected)
    assert number(substitute(term, {"x": "y"}), {"y": 1.0}) == pytest.approx(expected, rel=1e-12)


def test_functions_that_are_formulas_of_others_in_a_tower() -> None:
    program, _ = program_of(Pointwise(("x",), (Expression.of(tower("sign", LONG), ("x",)),)), [F], [F], (0,))
    assert [step.function for step in program.steps[:3]] == ["greater", "copy", "less"]


def test_the_derivative_of_a_tower() -> None:
    height = 1_000
    by = derivative(tower("sin", height), "x")
    program, work = program_of(Pointwise(("x",), (Expression.of(by, ("x",)),)), [D], [D], (0,))
    out, value, expected = np.empty(1), 1.0, 1.0
    FormulaKernel(program, work, CPU.xp, CPU.special).bind((1,), [np.ones(1)], [out], {})()
    for _ in range(height):
        expected *= math.cos(value)
        value = math.sin(value)
    assert out[0] == pytest.approx(expected, rel=1e-9)
    formulas, reads = differentiate(Pointwise(("x",), (Expression.of(tower("sin", height), ("x",)),)), (0,))
    assert reads == (0, 1)
    assert formulas.outputs[0].names == {"h0", "x"}
