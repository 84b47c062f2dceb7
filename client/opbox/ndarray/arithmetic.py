"""Python's operators on arrays: broadcasting ones for two arrays, scalar ones for an array and a number."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..base import is_number
from .invoke import imperative

__all__ = ["Arithmetic", "binary"]


def binary(self: Any, other: Any, pair: str, scalar: str, out: Any = None, reverse: bool = False) -> Any:
    """`pair` on two arrays, or `scalar` on an array and a number; NotImplemented for anything else."""
    if is_number(other):
        return imperative(scalar, [self], {"scalar": other}, out=out)
    if isinstance(other, np.ndarray) or (hasattr(other, "asnumpy") and not hasattr(other, "_id")):
        from .creation import array

        other = array(other, ctx=self.context, dtype=getattr(other, "dtype", None))
    if not hasattr(other, "_id"):
        raise TypeError(f"type {type(other)} not supported")
    return imperative(pair, [other, self] if reverse else [self, other], out=out)


class Arithmetic:
    """The arithmetic and comparison operators; comparisons give 0 and 1 in the arrays' own type."""

    __slots__ = ()

    def __add__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_add", "_plus_scalar")

    __radd__ = __add__

    def __iadd__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_add", "_plus_scalar", out=self)

    def __sub__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_sub", "_minus_scalar")

    def __rsub__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_sub", "_rminus_scalar", reverse=True)

    def __isub__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_sub", "_minus_scalar", out=self)

    def __mul__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_mul", "_mul_scalar")

    __rmul__ = __mul__

    def __imul__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_mul", "_mul_scalar", out=self)

    def __truediv__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_div", "_div_scalar")

    def __rtruediv__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_div", "_rdiv_scalar", reverse=True)

    def __itruediv__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_div", "_div_scalar", out=self)

    __div__, __rdiv__, __idiv__ = __truediv__, __rtruediv__, __itruediv__

    def __mod__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_mod", "_mod_scalar")

    def __rmod__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_mod", "_rmod_scalar", reverse=True)

    def __imod__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_mod", "_mod_scalar", out=self)

    def __pow__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_power", "_power_scalar")

    def __rpow__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_power", "_rpower_scalar", reverse=True)

    def __neg__(self: Any) -> Any:
        return imperative("negative", [self])

    def __abs__(self: Any) -> Any:
        return imperative("abs", [self])

    def __eq__(self, other: Any) -> Any:
        return False if other is None else binary(self, other, "broadcast_equal", "_equal_scalar")

    def __ne__(self, other: Any) -> Any:
        return True if other is None else binary(self, other, "broadcast_not_equal", "_not_equal_scalar")

    def __gt__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_greater", "_greater_scalar")

    def __ge__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_greater_equal", "_greater_equal_scalar")

    def __lt__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_lesser", "_lesser_scalar")

    def __le__(self, other: Any) -> Any:
        return binary(self, other, "broadcast_lesser_equal", "_lesser_equal_scalar")
