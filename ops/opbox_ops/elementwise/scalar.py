"""Functions of an array and one number: out = f(data, scalar); the `_r…` operators are f(scalar, data).

One table, in the manner of `unary`: formulas of `x` (data), `y` (out) and `s` (the number). On integer arrays the
number is truncated to an integer first, unless `is_int` says that it is none: then the result is float64. A bool array
gives int64 or float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..expression.family import Derivative, backward, backward_with, derivative, forward
from ..expression.language import Expression
from ..gradient import grad_zero
from ..infer import TypeList, summary
from ..node import Entry, Node
from ..params import Bool, Field, Float, Params, as_int64
from ..registry import Op, register

__all__ = ["TABLE", "ScalarRow", "ScalarParams"]


class ScalarParams(Params):
    scalar: Float = Field(1.0, description="The number.")
    is_int: Bool = Field(True, description="Whether the number is an integer; it decides the type for integer data.")


@dataclass(frozen=True, slots=True)
class ScalarRow:
    """One function: `derivative` by `x`; None: zero wherever it is defined."""

    name: str
    alias: str
    formula: str
    derivative: Derivative | None
    doc: str


TABLE = (
    ScalarRow("_plus_scalar", "_PlusScalar", "x + s", "1", "data + scalar"),
    ScalarRow("_minus_scalar", "_MinusScalar", "x - s", "1", "data - scalar"),
    ScalarRow("_rminus_scalar", "_RMinusScalar", "s - x", "-1", "scalar - data"),
    ScalarRow("_mul_scalar", "_MulScalar", "x * s", "s", "data * scalar"),
    ScalarRow("_div_scalar", "_DivScalar", "x / s", "g / s", "data / scalar"),
    ScalarRow("_rdiv_scalar", "_RDivScalar", "s / x", "-s / square(x)", "scalar / data"),
    ScalarRow(
        "_mod_scalar", "_ModScalar", "x % s", ("1", "g * 0"), "The remainder of data / scalar, with scalar's sign."
    ),
    ScalarRow("_rmod_scalar", "_RModScalar", "s % x", ("-floor(s / x)", "g * 0"), "The remainder of scalar / data."),
    ScalarRow("_power_scalar", "_PowerScalar", "x ** s", "s * x ** (s - 1)", "data to the power of scalar."),
    ScalarRow("_rpower_scalar", "_RPowerScalar", "s ** x", "y * log(s)", "scalar to the power of data."),
    ScalarRow("_maximum_scalar", "_MaximumScalar", "maximum(x, s)", "x >= s", "The larger of data and scalar."),
    ScalarRow("_minimum_scalar", "_MinimumScalar", "minimum(x, s)", "x <= s", "The smaller of data and scalar."),
    ScalarRow("_hypot_scalar", "_HypotScalar", "hypot(x, s)", "x / hypot(x, s)", "sqrt(data**2 + scalar**2)"),
    ScalarRow("_equal_scalar", "_EqualScalar", "x == s", None, "1 where data == scalar, elsewhere 0."),
    ScalarRow("_not_equal_scalar", "_NotEqualScalar", "x != s", None, "1 where data != scalar, elsewhere 0."),
    ScalarRow("_greater_scalar", "_GreaterScalar", "x > s", None, "1 where data > scalar, elsewhere 0."),
    ScalarRow("_greater_equal_scalar", "_GreaterEqualScalar", "x >= s", None, "1 where data >= scalar, elsewhere 0."),
    ScalarRow("_lesser_scalar", "_LesserScalar", "x < s", None, "1 where data < scalar, elsewhere 0."),
    ScalarRow("_lesser_equal_scalar", "_LesserEqualScalar", "x <= s", None, "1 where data <= scalar, elsewhere 0."),
    ScalarRow("_logical_and_scalar", "_LogicalAndScalar", "logical_and(x, s)", None, "1 where both are not 0."),
    ScalarRow("_logical_or_scalar", "_LogicalOrScalar", "logical_or(x, s)", None, "1 where either is not 0."),
    ScalarRow("_logical_xor_scalar", "_LogicalXorScalar", "logical_xor(x, s)", None, "1 where just one is not 0."),
)


_NUMPY = {
    "_plus_scalar": ("_npi_add_scalar",),
    "_minus_scalar": ("_npi_subtract_scalar",),
    "_rminus_scalar": ("_npi_rsubtract_scalar",),
    "_mul_scalar": ("_npi_multiply_scalar",),
    "_mod_scalar": ("_npi_mod_scalar",),
    "_rmod_scalar": ("_npi_rmod_scalar",),
    "_power_scalar": ("_npi_power_scalar",),
    "_rpower_scalar": ("_npi_rpower_scalar",),
    "_maximum_scalar": ("_npi_maximum_scalar",),
    "_minimum_scalar": ("_npi_minimum_scalar",),
    "_hypot_scalar": ("_npi_hypot_scalar",),
}
"""Further names, by which files of mx.np call them."""


@summary("first if real")
def _types(p: ScalarParams, ins: TypeList, outs: TypeList) -> None:
    widest = np.dtype(np.int64 if p.is_int else np.float64)
    if ins[0] is None:
        if outs[0] is not None and outs[0] != widest:  # data may be narrower than the widest type, and only than that
            ins.merge(0, outs[0])
    elif ins[0].kind == "b" or (ins[0].kind in "iu" and not p.is_int):
        outs.merge(0, widest)
    else:
        outs.merge(0, ins[0])


def _numbers(p: ScalarParams, dtype: np.dtype[Any]) -> Mapping[str, float]:
    """The number as the element type holds it, since MXNet converts it first; beyond 64 bits it wraps around."""
    if dtype.kind in "iu":
        return {"s": as_int64(p.scalar)}
    if dtype.itemsize != 2:
        return {"s": p.scalar}
    with np.errstate(over="ignore"):  # what half precision cannot hold is infinite in it
        return {"s": float(np.asarray(p.scalar).astype(dtype))}


def _input(node: Node) -> Entry:
    return node.inputs[0]


def _output(node: Node) -> Entry:
    return Entry(node, 0)


def _register(row: ScalarRow) -> Op:
    op = register(row.name, ScalarParams, aliases=(row.alias, *_NUMPY.get(row.name, ())), doc=row.doc)
    forward(op, Expression(row.formula, ("x",), ("s",)), numbers=_numbers, types=_types)
    if row.derivative is None:
        op.set_attr("FGradient", grad_zero)
        return op
    pair = derivative(row.derivative, ("x", "y"), ("s",))
    name = f"_backward{row.name}"
    backward(name, ScalarParams, [pair], inputs=pair[0].arrays, numbers=_numbers)
    picks = {"x": _input, "y": _output}
    op.set_attr("FGradient", backward_with(name, [picks[array] for array in pair[0].arrays[1:]]))
    return op


for _row in TABLE:
    _register(_row)
