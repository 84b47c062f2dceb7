"""Functions of two arrays, or of an array and a number in either place: add, maximum, greater, …"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ..base import is_number
from .arithmetic import binary
from .array import NDArray

__all__: list[str] = []

# name: (operator on two arrays, on array and number, on number and array, on two numbers, what it computes)
_TABLE: dict[str, tuple[str, str, str, Callable[[Any, Any], Any], str]] = {
    "add": ("broadcast_add", "_plus_scalar", "_plus_scalar", operator.add, "lhs + rhs"),
    "subtract": ("broadcast_sub", "_minus_scalar", "_rminus_scalar", operator.sub, "lhs - rhs"),
    "multiply": ("broadcast_mul", "_mul_scalar", "_mul_scalar", operator.mul, "lhs * rhs"),
    "divide": ("broadcast_div", "_div_scalar", "_rdiv_scalar", operator.truediv, "lhs / rhs"),
    "modulo": ("broadcast_mod", "_mod_scalar", "_rmod_scalar", operator.mod, "lhs % rhs"),
    "power": ("broadcast_power", "_power_scalar", "_rpower_scalar", operator.pow, "lhs ** rhs"),
    "maximum": ("broadcast_maximum", "_maximum_scalar", "_maximum_scalar", max, "The larger of lhs and rhs"),
    "minimum": ("broadcast_minimum", "_minimum_scalar", "_minimum_scalar", min, "The smaller of lhs and rhs"),
    "equal": ("broadcast_equal", "_equal_scalar", "_equal_scalar", operator.eq, "lhs == rhs"),
    "not_equal": ("broadcast_not_equal", "_not_equal_scalar", "_not_equal_scalar", operator.ne, "lhs != rhs"),
    "greater": ("broadcast_greater", "_greater_scalar", "_lesser_scalar", operator.gt, "lhs > rhs"),
    "greater_equal": (
        "broadcast_greater_equal",
        "_greater_equal_scalar",
        "_lesser_equal_scalar",
        operator.ge,
        "lhs >= rhs",
    ),
    "lesser": ("broadcast_lesser", "_lesser_scalar", "_greater_scalar", operator.lt, "lhs < rhs"),
    "lesser_equal": (
        "broadcast_lesser_equal",
        "_lesser_equal_scalar",
        "_greater_equal_scalar",
        operator.le,
        "lhs <= rhs",
    ),
    "logical_and": (
        "broadcast_logical_and",
        "_logical_and_scalar",
        "_logical_and_scalar",
        lambda a, b: a and b,
        "lhs and rhs",
    ),
    "logical_or": (
        "broadcast_logical_or",
        "_logical_or_scalar",
        "_logical_or_scalar",
        lambda a, b: a or b,
        "lhs or rhs",
    ),
    "logical_xor": (
        "broadcast_logical_xor",
        "_logical_xor_scalar",
        "_logical_xor_scalar",
        lambda a, b: bool(a) ^ bool(b),
        "lhs or rhs, but not both",
    ),
}


def _function(name: str) -> Callable[[Any, Any], Any]:
    pair, right, left, plain, doc = _TABLE[name]

    def function(lhs: Any, rhs: Any) -> Any:
        if isinstance(lhs, NDArray):
            return binary(lhs, rhs, pair, right)
        if isinstance(rhs, NDArray):
            return binary(rhs, lhs, pair, left, reverse=True)
        if is_number(lhs) and is_number(rhs):
            return plain(lhs, rhs)
        raise TypeError(f"{name}: expected arrays or numbers, got {type(lhs)} and {type(rhs)}")

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc}, element by element, for arrays and numbers; arrays broadcast."
    return function


add = _function("add")
subtract = _function("subtract")
multiply = _function("multiply")
divide = true_divide = _function("divide")
modulo = _function("modulo")
power = _function("power")
maximum = _function("maximum")
minimum = _function("minimum")
equal = _function("equal")
not_equal = _function("not_equal")
greater = _function("greater")
greater_equal = _function("greater_equal")
lesser = _function("lesser")
lesser_equal = _function("lesser_equal")
logical_and = _function("logical_and")
logical_or = _function("logical_or")
logical_xor = _function("logical_xor")
__all__ += [*_TABLE, "true_divide"]
