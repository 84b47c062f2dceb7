"""Division and sign as MXNet has them on every element type, for reductions' results."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Array, Arrays, ArraySpec, Temp

__all__ = ["divide", "quotient_space", "sign"]


def quotient_space(a: ArraySpec, b: ArraySpec, out: ArraySpec) -> list[Temp]:
    """The temporaries of `divide`, whose result has the shape of `a`."""
    if out.dtype.kind not in "iu":
        return []
    number = Temp(a.shape, np.result_type(a.dtype, b.dtype))
    return [number, number, Temp(a.shape, np.bool_), Temp(a.shape, np.bool_)]


def divide(xp: Any, a: Array, b: Any, out: Array, space: Arrays) -> None:
    """a / b; for integers C's division: towards zero, and 0 where the divisor is 0 (C leaves that undefined).

    Args:
        space: what `quotient_space` has asked for.
    """
    if out.dtype.kind not in "iu":
        xp.divide(a, b, out=out, casting="unsafe")
        return
    # The floor is one less where the quotient is negative and no whole number.
    whole, product, inexact, negative = space
    xp.floor_divide(a, b, out=whole, casting="unsafe")
    xp.multiply(whole, b, out=product, casting="unsafe")
    xp.not_equal(product, a, out=inexact)
    xp.less(whole, 0, out=negative)
    xp.logical_and(inexact, negative, out=product)  # as numbers: NumPy would make some of few booleans to add
    xp.add(whole, product, out=out, casting="unsafe")


def sign(xp: Any, x: Array, out: Array, missing: Array) -> None:
    """-1, 0 or 1; 0 for NaN. `missing` is space for a boolean an element."""
    xp.sign(x, out=out)
    if out.dtype.kind == "f":
        xp.not_equal(out, out, out=missing)
        xp.copyto(out, 0, where=missing)
