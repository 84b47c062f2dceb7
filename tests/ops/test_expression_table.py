"""Every FExpression of the operator table, against the operator's compute, by an interpreter of its own in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_ops.expression.language import Term
from opbox_ops.expression.pointwise import Pointwise, working_type
from tests.cases.case import Case
from tests.cases.values import is_float

from .checks import close, tolerance
from .harness import Call, Run
from .test_operator_table import CASES


def _trigamma(x: Any) -> Any:
    return scipy.special.polygamma(1, x)


def _digamma(x: Any) -> Any:
    return np.where((x <= 0) & (np.floor(x) == x), np.inf, scipy.special.digamma(x))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "negative": lambda a: -a,
    "power": np.power,
    "modulo": lambda a, b: np.where(np.equal(b, 0), 0, np.mod(a, b)),
    "sign": lambda a: np.where(np.isnan(a), 0, np.sign(a)),
    "where": lambda c, a, b: np.where(np.not_equal(c, 0), a, b),
    "digamma": _digamma,
    "psi": scipy.special.digamma,
    "trigamma": _trigamma,
    **{name: getattr(scipy.special, name) for name in ("erf", "erfinv", "gamma", "gammaln")},
    **{name: getattr(np, name) for name in ("abs", "square", "sqrt", "cbrt", "exp", "expm1", "log", "log1p", "log2")},
    **{name: getattr(np, name) for name in ("log10", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh")},
    **{
        name: getattr(np, name)
        for name in ("cosh", "tanh", "arcsinh", "arccosh", "arctanh", "hypot", "arctan2", "copysign", "floor", "ceil")
    },
    **{name: getattr(np, name) for name in ("trunc", "maximum", "minimum", "equal", "not_equal", "greater", "less")},
    **{name: getattr(np, name) for name in ("greater_equal", "less_equal", "logical_not", "logical_and")},
    **{name: getattr(np, name) for name in ("logical_or", "logical_xor")},
}
"""What each function of the language means."""


def _value(term: Term, values: dict[str, Any], whole: bool) -> Any:
    if isinstance(term, str):
        return values[term]
    if not isinstance(term, tuple):
        return np.float64(term)
    arguments = [_value(part, values, whole) for part in term[1]]
    if whole and term[0] == "divide":
        a, b = arguments
        return np.where(np.equal(b, 0), 0, np.trunc(a / b))
    return np.asarray(FUNCTIONS[term[0]](*arguments), np.float64)


def _interpret(call: Call) -> dict[int | str, Any] | None:
    """What the call's formulas say of its outputs (and, under their input's name, of the states); None: it has none."""
    node, ins = call.node, [array.dtype for array in call.inputs]
    rule = node.op.get_attr("FExpression")
    formulas: Pointwise | None = None if rule is None else rule(node.params, ins, call.dtypes)
    if formulas is None:
        return None
    whole = working_type([*formulas.states.values(), *formulas.outputs], [*ins, *call.dtypes]).kind in "iu"
    ndim = max(array.ndim for array in call.inputs)
    values: dict[str, Any] = dict(formulas.numbers)
    for name, array in zip(formulas.inputs, call.inputs, strict=True):
        start = formulas.start.get(name)
        pad = 0 if start is None else max(ndim - start - array.ndim, 0)
        values[name] = array.astype(np.float64).reshape(array.shape + (1,) * pad)
    shape = np.broadcast_shapes(*(values[name].shape for name in formulas.inputs))
    results: dict[int | str, Any] = {}
    for k, formula in enumerate(formulas.outputs):
        value = np.broadcast_to(_value(formula.term, values, whole), shape)
        if formulas.summed:
            start, small = formulas.start_out.get(k, 0), call.shapes[k]
            aligned = small + (1,) * max(ndim - start - len(small), 0) if k in formulas.start_out else small
            lead = len(shape) - len(aligned)
            axes = (*range(lead), *(lead + i for i, d in enumerate(aligned) if d == 1))
            value = value.sum(axis=axes).reshape(small)
        results[k] = value
    for i, formula in formulas.states.items():
        results[formulas.inputs[i]] = np.broadcast_to(_value(formula.term, values, whole), shape)
    return results


REAL = [case for case in CASES if registry.get(case.op).get_attr("FExpression") is not None]


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in REAL])
def test_formulas_say_what_computes_do(case: Case) -> None:
    for dtype in case.dtypes:
        if dtype not in ("float32", "float64", "float16", "int32", "int64", "uint8", "int8"):
            continue
        run = Run(case, dtype, backend_for("cpu"))
        run.forward()
        states = run.states_now()
        if case.grad and run.wanted():
            run.backward()
        with np.errstate(all="ignore"):
            for call in run.calls:
                results = _interpret(call)
                for k, value in (results or {}).items():
                    if isinstance(k, int):
                        _compare(case, dtype, call.outputs[k], value, f"{call.node.op.name}: output {k}")
                    else:
                        name = {"x": "weight32"}.get(k, k)
                        _compare(case, dtype, states[name], value, f"{call.node.op.name}: state {name}")


def _compare(case: Case, dtype: str, got: Any, value: Any, what: str) -> None:
    if got.dtype == np.bool_:
        np.testing.assert_array_equal(got, value != 0, err_msg=what)
        return
    if not is_float(got.dtype):
        limits = np.iinfo(got.dtype) if got.dtype.kind in "iu" else None
        inside = np.isfinite(value) & ((value >= limits.min) & (value <= limits.max) if limits else True)
        np.testing.assert_array_equal(got[inside], np.trunc(value[inside]).astype(got.dtype), err_msg=what)
        return
    close(got, value.astype(got.dtype), tolerance(case, dtype, gradient=True), what)


def test_what_formulas_cover() -> None:
    have = set(registry.attribute("FExpression"))
    updates = {f"{name}_update" for name in ("sgd", "mp_sgd", "sgd_mom", "nag_mom", "signum", "adam", "ftrl", "ftml")}
    assert {
        "Activation",
        "_backward_Activation",
        "LeakyReLU",
        "_backward_LeakyReLU",
        "where",
        "_backward_where",
    } <= have
    assert {"Cast", "clip", "smooth_l1", "hard_sigmoid", "add_n", "_copy", "_adamw_update", *updates} <= have
