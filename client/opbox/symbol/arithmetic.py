"""Python's operators on symbols, as a table of the operators that they call."""

from __future__ import annotations

from typing import Any

from .. import _schema
from ..base import NotImplementedForSymbol, is_number
from .compose import create

__all__ = ["Arithmetic", "binary"]


def binary(self: Any, other: Any, pair: tuple[str, str], scalar: tuple[str, str], reverse: bool = False) -> Any:
    """A call of `pair` on two symbols, or of `scalar` on a symbol and a number: (operator, name hint) each."""
    if hasattr(other, "_heads"):
        op, hint = pair
        return type(self)(create(_schema.get(op), hint, [other, self] if reverse else [self, other], {}, {}))
    if is_number(other):
        op, hint = scalar
        return type(self)(create(_schema.get(op), hint, [self], {}, {"scalar": other}))
    raise TypeError(f"type {type(other)} not supported")


class Arithmetic:
    """The arithmetic and comparison operators; no broadcasting, as MXNet has it (`broadcast_add` broadcasts)."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Any) -> Any:
        return binary(self, other, ("elemwise_add", "_plus"), ("_plus_scalar", "_plusscalar"))

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return binary(self, other, ("elemwise_sub", "_minus"), ("_minus_scalar", "_minusscalar"))

    def __rsub__(self, other: Any) -> Any:
        return binary(self, other, ("elemwise_sub", "_minus"), ("_rminus_scalar", "_rminusscalar"), True)

    def __mul__(self, other: Any) -> Any:
        return binary(self, other, ("elemwise_mul", "_mul"), ("_mul_scalar", "_mulscalar"))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return binary(self, other, ("elemwise_div", "_div"), ("_div_scalar", "_divscalar"))

    def __rtruediv__(self, other: Any) -> Any:
        return binary(self, other, ("elemwise_div", "_div"), ("_rdiv_scalar", "_rdivscalar"), True)

    __div__, __rdiv__ = __truediv__, __rtruediv__

    def __mod__(self, other: Any) -> Any:
        return binary(self, other, ("_mod", "_mod"), ("_mod_scalar", "_modscalar"))

    def __rmod__(self, other: Any) -> Any:
        return binary(self, other, ("_mod", "_mod"), ("_rmod_scalar", "_rmodscalar"), True)

    def __pow__(self, other: Any) -> Any:
        return binary(self, other, ("_power", "_power"), ("_power_scalar", "_powerscalar"))

    def __rpow__(self, other: Any) -> Any:
        return binary(self, other, ("_power", "_power"), ("_rpower_scalar", "_rpower_scalar"), True)

    def __neg__(self) -> Any:
        return self.__mul__(-1.0)

    def __abs__(self) -> Any:
        return type(self)(create(_schema.get("abs"), "abs", [self], {}, {}))  # type: ignore[call-arg]

    def __eq__(self, other: Any) -> Any:
        return binary(self, other, ("_equal", "_equal"), ("_equal_scalar", "_equal_scalar"))

    def __ne__(self, other: Any) -> Any:
        return binary(self, other, ("_not_equal", "_not_equal"), ("_not_equal_scalar", "_not_equal_scalar"))

    def __gt__(self, other: Any) -> Any:
        return binary(self, other, ("_greater", "_greater"), ("_greater_scalar", "_greater_scalar"))

    def __ge__(self, other: Any) -> Any:
        pair = ("_greater_equal", "_greater_equal")
        return binary(self, other, pair, ("_greater_equal_scalar", "_greater_equal_scalar"))

    def __lt__(self, other: Any) -> Any:
        return binary(self, other, ("_lesser", "_lesser"), ("_lesser_scalar", "_lesser_scalar"))

    def __le__(self, other: Any) -> Any:
        pair = ("_lesser_equal", "_lesser_equal")
        return binary(self, other, pair, ("_lesser_equal_scalar", "_lesser_equal_scalar"))

    def __bool__(self) -> bool:
        raise NotImplementedForSymbol("__bool__", "bool")

    def __iadd__(self, other: Any) -> Any:
        raise NotImplementedForSymbol("__iadd__", "+=")

    def __isub__(self, other: Any) -> Any:
        raise NotImplementedForSymbol("__isub__", "-=")

    def __imul__(self, other: Any) -> Any:
        raise NotImplementedForSymbol("__imul__", "*=")

    def __itruediv__(self, other: Any) -> Any:
        raise NotImplementedForSymbol("__itruediv__", "/=")

    def wait_to_read(self) -> None:
        """Not for symbols."""
        raise NotImplementedForSymbol("wait_to_read")

    def asnumpy(self) -> Any:
        """Not for symbols."""
        raise NotImplementedForSymbol("asnumpy")

    def asscalar(self) -> Any:
        """Not for symbols."""
        raise NotImplementedForSymbol("asscalar")

    def copy(self) -> Any:
        """Not for symbols; `copy.copy` copies the graph."""
        raise NotImplementedForSymbol("copy")

    def as_in_context(self, context: Any = None) -> Any:
        """Not for symbols."""
        raise NotImplementedForSymbol("as_in_context")

    def detach(self) -> Any:
        """Not for symbols; `BlockGrad` stops gradients."""
        raise NotImplementedForSymbol("detach")
