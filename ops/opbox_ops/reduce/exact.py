"""Division and sign as MXNet has them on every element type, for reductions' results."""

from __future__ import annotations

from typing import Any

from ..compute import Array

__all__ = ["divide", "sign"]


def divide(xp: Any, a: Array, b: Any, out: Array) -> None:
    """a / b; for integers C's division: towards zero, and 0 where the divisor is 0 (C leaves that undefined)."""
    if out.dtype.kind not in "iu":
        xp.divide(a, b, out=out, casting="unsafe")
        return
    whole = xp.floor_divide(a, b)
    below = (whole * b != a) & (xp.less(a, 0) != xp.less(b, 0)) & xp.not_equal(b, 0)
    xp.add(whole, below, out=out, casting="unsafe")


def sign(xp: Any, x: Array, out: Array) -> None:
    """-1, 0 or 1; 0 for NaN."""
    xp.sign(x, out=out)
    if out.dtype.kind == "f":
        xp.copyto(out, 0, where=xp.isnan(out))
