"""The functions that an elementwise formula may call, by name.

Each has a row: where the array library keeps it, and whether it is exact on integers, so that whole numbers need no
detour through floating point. The few that no library has are written below; they take what a ufunc takes
(`function(*arrays, out=..., casting=...)`), and `out` may be one of the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from ..compute import Array

__all__ = ["FUNCTIONS", "Function", "Ufunc", "resolve"]

Ufunc: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Function:
    """One row.

    Attributes:
        name: how a formula calls it.
        source: "xp" or "special" (a ufunc of that library), or "own" (a function of this file).
        ufunc: its name there; None: as `name`.
        exact: whether integers give the right integers without a conversion.
        on_integers: what to run on integer arrays instead, when that is another function.
    """

    name: str
    source: str = "xp"
    ufunc: str | None = None
    exact: bool = False
    on_integers: str | None = None


def _rows() -> list[Function]:
    rows = [Function(name, exact=True) for name in ("add", "subtract", "multiply", "negative", "square", "positive")]
    rows += [Function(name, exact=True) for name in ("maximum", "minimum", "logical_not", "logical_and", "logical_or")]
    rows += [Function(name, exact=True) for name in ("logical_xor", "equal", "not_equal", "greater", "greater_equal")]
    rows += [Function(name, exact=True) for name in ("less", "less_equal")]
    rows += [Function("abs", ufunc="absolute", exact=True)]
    rows += [Function(name, exact=True, on_integers="positive") for name in ("floor", "ceil", "trunc")]
    rows += [Function(name) for name in ("sqrt", "cbrt", "exp", "expm1", "log", "log2", "log10", "log1p")]
    rows += [Function(name) for name in ("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh")]
    rows += [Function(name) for name in ("arcsinh", "arccosh", "arctanh", "power", "hypot", "heaviside")]
    rows += [Function(name, "special") for name in ("erf", "erfinv", "gamma", "gammaln")]
    rows += [Function("digamma", "own"), Function("divide", exact=True, on_integers="quotient")]
    rows += [Function(name, "own", exact=True) for name in ("sign", "modulo", "quotient", "where")]
    return rows


FUNCTIONS = {row.name: row for row in _rows()}


@cache
def resolve(name: str, integers: bool, xp: Any, special: Any) -> Ufunc:
    """The function to call for `name` in the library pair (xp, special); KeyError when there is no such row."""
    row = FUNCTIONS[name]
    if integers and row.on_integers is not None:
        row = FUNCTIONS[row.on_integers]
    if row.source == "own":
        made: Ufunc = _OWN[row.name](xp, special)
        return made
    found: Ufunc = getattr(xp if row.source == "xp" else special, row.ufunc or row.name)
    return found


def _sign(xp: Any, special: Any) -> Ufunc:
    """-1, 0 or 1, and 0 for NaN, as MXNet has it."""

    def sign(x: Array, out: Array, casting: str = "unsafe") -> None:
        xp.sign(x, out=out, casting=casting)
        if out.dtype.kind == "f":
            xp.copyto(out, 0, where=xp.isnan(out))

    return sign


def _modulo(xp: Any, special: Any) -> Ufunc:
    """The remainder with the divisor's sign; 0 where the divisor is 0."""

    def modulo(a: Any, b: Any, out: Array, casting: str = "unsafe") -> None:
        empty = xp.equal(b, 0)
        xp.remainder(a, b, out=out, casting=casting)
        xp.copyto(out, 0, where=empty)

    return modulo


def _quotient(xp: Any, special: Any) -> Ufunc:
    """C's integer division: towards zero; 0 where the divisor is 0 (C leaves that undefined)."""

    def quotient(a: Any, b: Any, out: Array, casting: str = "unsafe") -> None:
        whole = xp.floor_divide(a, b)
        below = (whole * b != a) & (xp.less(a, 0) != xp.less(b, 0)) & xp.not_equal(b, 0)
        xp.add(whole, below, out=out, casting=casting)

    return quotient


def _where(xp: Any, special: Any) -> Ufunc:
    """`a` where `condition` is not 0 (NaN is not), elsewhere `b`."""

    def where(condition: Any, a: Any, b: Any, out: Array, casting: str = "unsafe") -> None:
        xp.copyto(out, xp.where(xp.not_equal(condition, 0), a, b), casting=casting)

    return where


def _digamma(xp: Any, special: Any) -> Ufunc:
    """The logarithmic derivative of gamma; inf at its poles (0, -1, -2, …), as MXNet has it."""

    def digamma(x: Array, out: Array, casting: str = "unsafe") -> None:
        pole = (x <= 0) & (xp.floor(x) == x)
        special.digamma(x, out=out, casting=casting)
        xp.copyto(out, xp.inf, where=pole)

    return digamma


_OWN: dict[str, Callable[[Any, Any], Ufunc]] = {
    "sign": _sign,
    "modulo": _modulo,
    "quotient": _quotient,
    "where": _where,
    "digamma": _digamma,
}
