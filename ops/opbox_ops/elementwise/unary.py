"""Functions of one array, element by element: out = f(data).

One table. Each row is a name, f of `x`, and the derivative in terms of `x` (the input) or `y` (the output), whichever
is cheaper and as accurate; a formula that names `g`, the output gradient, is the whole gradient. The operator, its
backward operator and what that one keeps alive all follow from the row.

The formulas and the values at the points where they break (a kink, a pole, NaN) are MXNet 1.9.1's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..expression.family import backward, backward_with, derivative, forward
from ..expression.language import Expression
from ..gradient import grad_zero
from ..node import Entry, Node
from ..params import NoParams
from ..registry import Op, register

__all__ = ["TABLE", "UnaryRow"]


@dataclass(frozen=True, slots=True)
class UnaryRow:
    """One function: `derivative` is "0" when it is zero wherever it is defined."""

    name: str
    forward: str
    derivative: str
    doc: str


TABLE = (
    UnaryRow("negative", "-x", "-1", "-data"),
    UnaryRow("abs", "abs(x)", "sign(x)", "The absolute value."),
    UnaryRow("sign", "sign(x)", "0", "-1, 0 or 1: the sign; 0 for NaN."),
    UnaryRow(
        "round", "trunc(x) + sign(x) * (abs(x - trunc(x)) >= 0.5)", "0", "To the nearest integer; halves away from 0."
    ),
    UnaryRow("rint", "floor(x) + (x - floor(x) > 0.5)", "0", "To the nearest integer; halves downwards."),
    UnaryRow(
        "_contrib_round_ste",
        "trunc(x) + sign(x) * (abs(x - trunc(x)) >= 0.5)",
        "g",
        "round, with the gradient of the identity: a straight-through estimator.",
    ),
    UnaryRow("_contrib_sign_ste", "sign(x)", "g", "sign, with the gradient of the identity."),
    UnaryRow("ceil", "ceil(x)", "0", "The smallest integer that is not smaller."),
    UnaryRow("floor", "floor(x)", "0", "The largest integer that is not larger."),
    UnaryRow("trunc", "trunc(x)", "0", "The integer part: towards zero."),
    UnaryRow("fix", "trunc(x)", "0", "To the nearest integer towards zero."),
    UnaryRow("square", "square(x)", "2 * x", "data * data"),
    UnaryRow("sqrt", "sqrt(x)", "0.5 / y", "The square root; NaN below 0."),
    UnaryRow("rsqrt", "1 / sqrt(x)", "-0.5 / (x * sqrt(x))", "1 / sqrt(data)"),
    UnaryRow("cbrt", "cbrt(x)", "1 / (3 * square(y))", "The cube root."),
    UnaryRow("rcbrt", "1 / cbrt(x)", "-1 / (3 * (x * cbrt(x)))", "1 / cbrt(data)"),
    UnaryRow("reciprocal", "1 / x", "-1 / square(x)", "1 / data"),
    UnaryRow("exp", "exp(x)", "y", "e to the power of data."),
    UnaryRow("expm1", "expm1(x)", "exp(x)", "exp(data) - 1, accurate near 0."),
    UnaryRow("log", "log(x)", "1 / x", "The natural logarithm."),
    UnaryRow("log10", "log10(x)", "(1 / log(10)) / x", "The logarithm to base 10."),
    UnaryRow("log2", "log2(x)", "(1 / log(2)) / x", "The logarithm to base 2."),
    UnaryRow("log1p", "log1p(x)", "1 / (1 + x)", "log(1 + data), accurate near 0."),
    UnaryRow("sin", "sin(x)", "cos(x)", "The sine of radians."),
    UnaryRow("cos", "cos(x)", "-sin(x)", "The cosine of radians."),
    UnaryRow("tan", "tan(x)", "square(y) + 1", "The tangent of radians."),
    UnaryRow("arcsin", "arcsin(x)", "1 / sqrt(1 - square(x))", "The inverse sine, in [-pi/2, pi/2]."),
    UnaryRow("arccos", "arccos(x)", "-1 / sqrt(1 - square(x))", "The inverse cosine, in [0, pi]."),
    UnaryRow("arctan", "arctan(x)", "1 / (square(x) + 1)", "The inverse tangent, in [-pi/2, pi/2]."),
    UnaryRow("sinh", "sinh(x)", "cosh(x)", "The hyperbolic sine."),
    UnaryRow("cosh", "cosh(x)", "sinh(x)", "The hyperbolic cosine."),
    UnaryRow("tanh", "tanh(x)", "1 - square(y)", "The hyperbolic tangent."),
    UnaryRow("arcsinh", "arcsinh(x)", "1 / hypot(x, 1)", "The inverse hyperbolic sine."),
    UnaryRow("arccosh", "arccosh(x)", "1 / sqrt(square(x) - 1)", "The inverse hyperbolic cosine; NaN below 1."),
    UnaryRow("arctanh", "arctanh(x)", "1 / (1 - square(x))", "The inverse hyperbolic tangent."),
    UnaryRow("degrees", "x * (180 / pi)", "180 / pi", "Radians to degrees."),
    UnaryRow("radians", "x * (pi / 180)", "pi / 180", "Degrees to radians."),
    # y is not negative: this is 1 where it is positive, else 0, and NaN where it is NaN.
    UnaryRow("relu", "maximum(x, 0)", "minimum(ceil(y), 1)", "max(data, 0); NaN stays NaN."),
    UnaryRow("sigmoid", "1 / (1 + exp(-x))", "y * (1 - y)", "1 / (1 + exp(-data))"),
    UnaryRow("softsign", "x / (1 + abs(x))", "1 / square(1 + abs(x))", "data / (1 + abs(data))"),
    UnaryRow("erf", "erf(x)", "(2 / sqrt(pi)) * exp(-square(x))", "The error function."),
    UnaryRow("erfinv", "erfinv(x)", "(0.5 * sqrt(pi)) * exp(square(y))", "The inverse of the error function."),
    UnaryRow("gamma", "gamma(x)", "y * digamma(x)", "The gamma function."),
    UnaryRow("gammaln", "gammaln(x)", "digamma(x)", "The logarithm of the absolute value of the gamma function."),
    UnaryRow("logical_not", "logical_not(x)", "0", "1 where data is 0, elsewhere 0."),
)


_NUMPY = (
    "arccos arccosh arcsin arcsinh arctan arctanh cbrt ceil cos cosh degrees exp expm1 fix floor log log10 log1p log2 "
    "negative radians reciprocal rint sign sin sinh sqrt square tan tanh trunc"
)
"""Functions that files of mx.np name `_npi_…`."""
_ALIASES = {"abs": ("_npi_absolute",), "relu": ("_npx_relu",), "sigmoid": ("_npx_sigmoid",)}
_ALIASES |= {name: (f"_npi_{name}",) for name in _NUMPY.split()}


def _input(node: Node) -> Entry:
    return node.inputs[0]


def _output(node: Node) -> Entry:
    return Entry(node, 0)


def _register(row: UnaryRow) -> Op:
    op = forward(register(row.name, aliases=_ALIASES.get(row.name, ()), doc=row.doc), Expression(row.forward, ("x",)))
    if row.derivative == "0":
        op.set_attr("FGradient", grad_zero)
        return op
    pair = derivative(row.derivative, ("x", "y"))
    name = f"_backward_{row.name}"
    backward(name, NoParams, [pair], inputs=pair[0].arrays)
    picks = {"x": _input, "y": _output}
    op.set_attr("FGradient", backward_with(name, [picks[array] for array in pair[0].arrays[1:]]))
    return op


for _row in TABLE:
    _register(_row)
