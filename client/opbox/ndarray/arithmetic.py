"""Python's operators on arrays: broadcasting ones for two arrays, scalar ones for an array and a number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import is_number, value_text
from ..python_operators import Operation, comparison, methods, refusals
from .handle import Handle

__all__ = ["ArrayArithmetic", "apply"]


def apply(array: Any, other: Any, operation: Operation, reflected: bool, out: Any) -> Any:
    """Run an operation on an array and what stands beside it: an array of either kind, or a number.

    Args:
        array: the NDArray.
        other: the other operand.
        operation: a row of `python_operators.TABLE`.
        reflected: whether `other` stands on the left.
        out: the array to write to, or None for a new one.

    Raises:
        TypeError: `other` is neither an array nor a number.
    """
    if type(other) is type(array):
        pass
    elif is_number(other):
        scalar, _ = operation.reflected if reflected else operation.scalar
        return array._imperative(scalar, [array], {"scalar": other}, out)
    elif not isinstance(other, Handle):
        is_symbol = hasattr(other, "list_arguments")
        if is_symbol or not (isinstance(other, np.ndarray) or hasattr(other, "asnumpy")):
            remedy = ", which has no values: bind it first, or use its eval()" if is_symbol else ""
            raise TypeError(
                f"{operation.formula}: type {type(other)} not supported: expected an NDArray or a number beside an "
                f"NDArray, got {value_text(other)}{remedy}"
            )
        other = array._beside(other)
    return array._imperative(operation.broadcast, [other, array] if reflected else [array, other], None, out)


class ArrayArithmetic:
    """The arithmetic and comparison operators; comparisons give 0 and 1 in the arrays' own type."""

    __slots__ = ()

    if not TYPE_CHECKING:  # the stub of ArrayFluent has their types
        __add__, __radd__, __iadd__ = methods(apply, "add")
        __sub__, __rsub__, __isub__ = methods(apply, "subtract")
        __mul__, __rmul__, __imul__ = methods(apply, "multiply")
        __truediv__, __rtruediv__, __itruediv__ = methods(apply, "divide")
        __div__, __rdiv__, __idiv__ = __truediv__, __rtruediv__, __itruediv__
        __mod__, __rmod__, __imod__ = methods(apply, "modulo")
        __pow__, __rpow__, _ = methods(apply, "power")

        __eq__ = comparison(apply, "equal", with_none=False)
        __ne__ = comparison(apply, "not_equal", with_none=True)
        __gt__ = comparison(apply, "greater")
        __ge__ = comparison(apply, "greater_equal")
        __lt__ = comparison(apply, "lesser")
        __le__ = comparison(apply, "lesser_equal")

        __matmul__, __rmatmul__ = refusals("@", "mx.nd.dot(lhs, rhs)")
        __floordiv__, __rfloordiv__ = refusals("//", "mx.nd.floor(lhs / rhs)")
        __and__, __rand__ = refusals("&", "mx.nd.logical_and(lhs, rhs)")
        __or__, __ror__ = refusals("|", "mx.nd.logical_or(lhs, rhs)")
        __xor__, __rxor__ = refusals("^", "mx.nd.logical_xor(lhs, rhs)")

        def __invert__(self: Any) -> Any:
            raise TypeError("~: NDArrays have no such operator: write mx.nd.logical_not(x)")

        def __neg__(self: Any) -> Any:
            return self._imperative("negative", [self])

        def __abs__(self: Any) -> Any:
            return self._imperative("abs", [self])
