"""The functions that a formula may call, by name.

A function is either a ufunc of the array library (or of its `scipy.special`), or a formula over other functions, so
that whoever runs or generates code needs only the first kind. The few that no library has so are written below.

What is a yes or no (a comparison) is a mask: 1 or 0 as a number, a bool array when the steps run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.mxnet import numpy_dtype

from ..accumulation import NARROW
from ..compute import Array
from .single_erf import single_erf

__all__ = ["FUNCTIONS", "ROUNDING", "Function", "Ufunc", "resolve"]

Ufunc: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Function:
    """One row.

    Attributes:
        name: how a formula calls it.
        source: "xp" or "special" (a ufunc of that library), "own" (written here), or "formula".
        ufunc: its name in the library; empty: as `name`.
        exact: whether integers give the right integers without a conversion to floating point.
        mask: whether it answers yes or no.
        formula: what it is made of, over the arguments a, b, c.
        on_integers: the same for integers, where that is something else.
        on_singles: the same for float32, where that takes less time and is as good.
        scratch: how many registers "own" functions need besides their result.
    """

    name: str
    source: str = "xp"
    ufunc: str = ""
    exact: bool = False
    mask: bool = False
    formula: str = ""
    on_integers: str = ""
    on_singles: str = ""
    scratch: int = 0


ROUNDING = {name: f"round_{name}" for name in NARROW}
"""The function that rounds to a type, by its name."""
_QUOTIENT = (
    "floor_divide(a, b) + logical_and(logical_and(floor_divide(a, b) * b != a, logical_xor(a < 0, b < 0)), b != 0)"
)
"""C's integer division: towards zero; 0 where the divisor is 0 (C leaves that undefined)."""


def _rows() -> list[Function]:
    rows = [Function(name, exact=True) for name in ("add", "subtract", "multiply", "negative", "square")]
    rows += [Function(name, exact=True) for name in ("maximum", "minimum", "remainder", "floor_divide")]
    rows += [Function(name, exact=True, mask=True) for name in ("equal", "not_equal", "greater", "greater_equal")]
    rows += [Function(name, exact=True, mask=True) for name in ("less", "less_equal", "logical_not", "logical_and")]
    rows += [Function(name, exact=True, mask=True) for name in ("logical_or", "logical_xor")]
    rows += [Function("abs", ufunc="absolute", exact=True)]
    rows += [Function(name, exact=True, on_integers="a") for name in ("floor", "ceil", "trunc")]
    rows += [Function("divide", exact=True, on_integers=_QUOTIENT)]
    rows += [Function(name) for name in ("sqrt", "cbrt", "exp", "expm1", "log", "log2", "log10", "log1p")]
    rows += [Function(name) for name in ("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh")]
    rows += [Function(name) for name in ("arcsinh", "arccosh", "arctanh", "power", "hypot", "arctan2", "copysign")]
    rows += [Function("erf", "special", on_singles=single_erf())]
    rows += [Function(name, "special") for name in ("erfinv", "gamma", "gammaln")]
    rows += [Function("zeta", "own")]
    rows += [Function("psi", "special", ufunc="digamma")]
    rows += [Function("select", "own", exact=True, scratch=2)]
    # float32 rounded to a type of 16 bits.
    rows += [Function(name, "own", scratch=1) for name in ROUNDING.values()]
    # -1, 0 or 1, and 0 for NaN, as MXNet has it.
    rows += [Function("sign", "formula", exact=True, formula="(a > 0) - (a < 0)")]
    # The remainder with the divisor's sign; 0 where the divisor is 0.
    rows += [Function("modulo", "formula", exact=True, formula="where(b == 0, 0, remainder(a, b))")]
    # The logarithmic derivative of gamma; inf at its poles (0, -1, -2, ...), as MXNet has it.
    rows += [Function("digamma", "formula", formula="where(logical_and(a <= 0, floor(a) == a), inf, psi(a))")]
    # Its derivative; below 0 by reflection (Abramowitz and Stegun 6.4.7).
    trigamma = "where(a > 0, zeta(2, a), square(pi / sin(pi * a)) - zeta(2, 1 - a))"
    rows += [Function("trigamma", "formula", formula=trigamma)]
    # `a` where it is not 0 (NaN is not), elsewhere `b`; made of select by the compiler, which knows what is a mask.
    rows += [Function("where", "formula", exact=True)]
    return rows


FUNCTIONS = {row.name: row for row in _rows()}


@cache
def resolve(name: str, xp: Any, special: Any) -> Ufunc:
    """The function to call for `name`, which is no formula, in the library pair (xp, special); KeyError without a row.

    It takes what a ufunc takes: `function(*arrays, out=…, casting=…)`; "own" functions take their scratch after the
    arrays. `out` may be one of the arrays.
    """
    row = FUNCTIONS[name]
    if name == "zeta":
        return _zeta(special)
    if name == "remainder" and xp is not np:
        return _remainder(xp)
    if name in ROUNDING.values():
        return _rounding(next(dtype for dtype, function in ROUNDING.items() if function == name))
    if row.source == "own":
        return _select_bits if xp is np else _select_copies(xp)
    function: Ufunc = getattr(xp if row.source == "xp" else special, row.ufunc or row.name)
    return function


def _zeta(special: Any) -> Ufunc:
    """Hurwitz's zeta function, which SciPy has as a function that takes no `casting`."""

    def zeta(a: Any, b: Any, out: Array, casting: str = "unsafe") -> None:
        special.zeta(a, b, out=out)

    return zeta


def _remainder(xp: Any) -> Ufunc:
    """NumPy's remainder for CuPy, whose own is NaN where the divisor is infinite."""
    kernel = xp.ElementwiseKernel(
        "T a, T b", "T y", "y = fmod(a, b); if (y != 0 && (y < 0) != (b < 0)) y += b;", "opbox_remainder"
    )

    def remainder(a: Any, b: Any, out: Array, casting: str = "unsafe") -> None:
        if out.dtype.kind == "f":
            kernel(a, b, out)
        else:
            xp.remainder(a, b, out=out, casting=casting)

    return remainder


def _rounding(dtype: str) -> Ufunc:
    """`a` as it is read from an array of this type that it was written to: the scratch's memory."""
    half = numpy_dtype(dtype)

    def rounded(a: Any, scratch: Array, out: Array, casting: str = "unsafe") -> None:
        halves = scratch.reshape(-1).view(half)[: scratch.size].reshape(scratch.shape)
        halves[...] = a
        out[...] = halves

    return rounded


_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def _select_bits(mask: Any, a: Any, b: Any, m: Array, t: Array, out: Array, casting: str = "unsafe") -> None:
    """`a` where `mask`, elsewhere `b`, by masking their bits: at any mask eight times as fast as copyto(where=)."""
    bits = _BITS[m.dtype.itemsize]
    m, t, out = m.view(bits), t.view(bits), out.view(bits)
    np.copyto(m, mask, casting="unsafe")
    if not a.shape and not a.view(bits):
        np.subtract(m, 1, out=m)  # all bits where the mask is 0
        np.bitwise_and(b.view(bits), m, out=out)
        return
    np.negative(m, out=m)  # all bits where the mask is 1
    if not b.shape and not b.view(bits):
        np.bitwise_and(a.view(bits), m, out=out)
        return
    b = b.view(bits)
    np.bitwise_xor(a.view(bits), b, out=t)
    np.bitwise_and(t, m, out=t)
    np.bitwise_xor(t, b, out=out)


def _select_copies(xp: Any) -> Ufunc:
    def select(mask: Any, a: Any, b: Any, m: Array, t: Array, out: Array, casting: str = "unsafe") -> None:
        if not mask.shape:
            xp.copyto(out, a if mask else b)
            return
        xp.copyto(t, b)
        xp.copyto(t, a, where=mask)
        xp.copyto(out, t)

    return select
