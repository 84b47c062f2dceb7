"""Differentiating formulas: a table of derivatives and the chain rule.

    derivative(Expression("tanh(x * w)", ("x", "w")).term, "x")        # w * (1 - square(tanh(x * w)))

A comparison has derivative 0, and so has what is constant between its steps. At a kink the derivative is what the
table says, which is what MXNet answers for the operator.
"""

from __future__ import annotations

from .language import Term, call, fold, read, substitute

__all__ = ["derivative", "plus", "times"]

_ARGUMENTS = ("a", "b", "c")

DERIVATIVES: dict[str, tuple[str, ...]] = {
    "add": ("1", "1"),
    "subtract": ("1", "-1"),
    "multiply": ("b", "a"),
    "divide": ("1 / b", "-a / square(b)"),
    "power": ("b * a ** (b - 1)", "a ** b * log(a)"),
    "modulo": ("1", "-floor(a / b)"),
    "negative": ("-1",),
    "abs": ("sign(a)",),
    "square": ("2 * a",),
    "sqrt": ("0.5 / sqrt(a)",),
    "cbrt": ("1 / (3 * square(cbrt(a)))",),
    "exp": ("exp(a)",),
    "expm1": ("exp(a)",),
    "log": ("1 / a",),
    "log2": ("(1 / log(2)) / a",),
    "log10": ("(1 / log(10)) / a",),
    "log1p": ("1 / (1 + a)",),
    "sin": ("cos(a)",),
    "cos": ("-sin(a)",),
    "tan": ("square(tan(a)) + 1",),
    "arcsin": ("1 / sqrt(1 - square(a))",),
    "arccos": ("-1 / sqrt(1 - square(a))",),
    "arctan": ("1 / (square(a) + 1)",),
    "sinh": ("cosh(a)",),
    "cosh": ("sinh(a)",),
    "tanh": ("1 - square(tanh(a))",),
    "arcsinh": ("1 / hypot(a, 1)",),
    "arccosh": ("1 / sqrt(square(a) - 1)",),
    "arctanh": ("1 / (1 - square(a))",),
    "arctan2": ("b / (square(a) + square(b))", "-a / (square(a) + square(b))"),
    "copysign": ("copysign(1, a) * copysign(1, b)", "0"),
    "hypot": ("a / hypot(a, b)", "b / hypot(a, b)"),
    "erf": ("(2 / sqrt(pi)) * exp(-square(a))",),
    "erfinv": ("(0.5 * sqrt(pi)) * exp(square(erfinv(a)))",),
    "gamma": ("gamma(a) * digamma(a)",),
    "gammaln": ("digamma(a)",),
    "digamma": ("trigamma(a)",),
    "maximum": ("a >= b", "a < b"),
    "minimum": ("a <= b", "a > b"),
    "where": ("0", "where(a, 1, 0)", "where(a, 0, 1)"),
    **dict.fromkeys(("sign", "floor", "ceil", "trunc", "logical_not"), ("0",)),
    **dict.fromkeys(("equal", "not_equal", "greater", "greater_equal", "less", "less_equal"), ("0", "0")),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), ("0", "0")),
}
"""For each function, its derivative by each argument, over the arguments a, b, c."""


def derivative(term: Term, name: str) -> Term:
    """The derivative of `term` by the array `name`.

    Raises:
        ValueError: a function on the way has no derivative here.
    """

    def chained(part: Term, inner: list[Term]) -> Term:
        return _chained(part, inner) if isinstance(part, tuple) else int(part == name)

    return fold(term, chained)


def _chained(term: tuple[str, tuple[Term, ...]], inner: list[Term]) -> Term:
    """The chain rule: the derivative of a function's call from those of its arguments, `inner`."""
    function, arguments = term
    if all(_is(part, 0) for part in inner):
        return 0
    rules = DERIVATIVES.get(function)
    if rules is None:
        raise ValueError(f"the derivative of {function} is not known")
    if function == "where":
        # Not a sum of products: 0 times what is not finite on the other side would be NaN.
        same = inner[1] is inner[2] or (not isinstance(inner[1], tuple) and inner[1] == inner[2])
        return inner[1] if same else ("where", (arguments[0], inner[1], inner[2]))
    values = dict(zip(_ARGUMENTS, arguments, strict=False))
    total: Term = 0
    for rule, part in zip(rules, inner, strict=True):
        if not _is(part, 0):
            total = plus(total, times(part, substitute(read(rule, _ARGUMENTS), values)))
    return total


def plus(a: Term, b: Term) -> Term:
    """a + b, without zeros."""
    return b if _is(a, 0) else a if _is(b, 0) else call("add", a, b)


def times(a: Term, b: Term) -> Term:
    """a * b, without zeros and ones."""
    if _is(a, 0) or _is(b, 0):
        return 0
    if _is(a, 1) or _is(b, 1):
        return b if _is(a, 1) else a
    if _is(a, -1) or _is(b, -1):
        return call("negative", b if _is(a, -1) else a)
    return call("multiply", a, b)


def _is(term: Term, value: int) -> bool:
    return not isinstance(term, str | tuple) and term == value
