"""Functions of two arrays, or of an array and a number in either place: add, maximum, greater, …"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..python_operators import TABLE, apply_to_any
from .arithmetic import apply
from .array import NDArray

__all__: list[str] = []


def _function(name: str) -> Callable[[Any, Any], Any]:
    def function(lhs: Any, rhs: Any) -> Any:
        return apply_to_any(apply, NDArray, name, lhs, rhs)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{TABLE[name].formula}, element by element, for arrays and numbers; arrays broadcast."
    return function


add = _function("add")
subtract = _function("subtract")
multiply = _function("multiply")
divide = true_divide = _function("divide")
modulo = _function("modulo")


def power(base: Any, exp: Any) -> Any:
    """base ** exp, element by element, for arrays and numbers; arrays broadcast."""
    return apply_to_any(apply, NDArray, "power", base, exp)


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
__all__ += [name for name in TABLE if name in globals()] + ["true_divide"]
