"""Python's operators on symbols: no broadcasting, as MXNet has it (`broadcast_add` broadcasts)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import _schema
from ..base import NotImplementedForSymbol, is_number, value_text
from ..python_operators import TABLE, Operation, comparison, methods, refusals
from .compose import create

__all__ = ["SymbolArithmetic", "apply"]


def apply(symbol: Any, other: Any, operation: Operation, reflected: bool, out: Any = None) -> Any:
    """A node for an operation on a symbol and what stands beside it: a symbol, or a number.

    Args:
        symbol: the Symbol.
        other: the other operand.
        operation: a row of `python_operators.TABLE`.
        reflected: whether `other` stands on the left.
        out: None: a symbol has no memory to write to.

    Raises:
        TypeError: `other` is neither a symbol nor a number.
    """
    if hasattr(other, "_heads"):
        op, hint = operation.elementwise
        return type(symbol)(create(_schema.get(op), hint, [other, symbol] if reflected else [symbol, other], {}, {}))
    if is_number(other):
        op, hint = operation.reflected if reflected else operation.scalar
        return type(symbol)(create(_schema.get(op), hint, [symbol], {}, {"scalar": other}))
    remedy = ": mx.sym.Variable stands for an array" if hasattr(other, "shape") else ""
    raise TypeError(
        f"{operation.formula}: type {type(other)} not supported: expected a Symbol or a number beside a Symbol, "
        f"got {value_text(other)}{remedy}"
    )


def _refused(method: str, alias: str) -> Callable[[Any, Any], Any]:
    def refuse(self: Any, other: Any) -> Any:
        raise NotImplementedForSymbol(method, alias)

    return refuse


class SymbolArithmetic:
    """The arithmetic and comparison operators, and what arrays can do and symbols cannot."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]  # Python's way to say that it has none

    if not TYPE_CHECKING:  # the stub of SymbolFluent has their types
        __add__, __radd__, _ = methods(apply, "add")
        __sub__, __rsub__, _ = methods(apply, "subtract")
        __mul__, __rmul__, _ = methods(apply, "multiply")
        __truediv__, __rtruediv__, _ = methods(apply, "divide")
        __div__, __rdiv__ = __truediv__, __rtruediv__
        __mod__, __rmod__, _ = methods(apply, "modulo")
        __pow__, _, _ = methods(apply, "power")

        def __rpow__(self, other: Any) -> Any:
            operation = TABLE["power"]
            # MXNet names the nodes of `2 ** x` by the operator's whole name, and those of `pow(2, x)` as all others.
            scalar, _ = operation.reflected
            return apply(self, other, operation._replace(reflected=(scalar, scalar)), True)

        __eq__ = comparison(apply, "equal")
        __ne__ = comparison(apply, "not_equal")
        __gt__ = comparison(apply, "greater")
        __ge__ = comparison(apply, "greater_equal")
        __lt__ = comparison(apply, "lesser")
        __le__ = comparison(apply, "lesser_equal")

        __matmul__, __rmatmul__ = refusals("@", "mx.sym.dot(lhs, rhs)")
        __floordiv__, __rfloordiv__ = refusals("//", "mx.sym.floor(lhs / rhs)")
        __and__, __rand__ = refusals("&", "mx.sym.broadcast_logical_and(lhs, rhs)")
        __or__, __ror__ = refusals("|", "mx.sym.broadcast_logical_or(lhs, rhs)")
        __xor__, __rxor__ = refusals("^", "mx.sym.broadcast_logical_xor(lhs, rhs)")

        def __invert__(self: Any) -> Any:
            raise TypeError("~: Symbols have no such operator: write mx.sym.logical_not(x)")

        def __neg__(self: Any) -> Any:
            return self * -1.0

        def __abs__(self: Any) -> Any:
            return type(self)(create(_schema.get("abs"), "abs", [self], {}, {}))

    def __bool__(self) -> bool:
        raise NotImplementedForSymbol("__bool__", "bool")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Not for symbols: numpy's functions ask for values.

        Raises:
            TypeError: always, with what to write.
        """
        raise TypeError(
            f"numpy: expected values, got {self!r}, which has none: call the operator of mx.sym, as mx.sym.exp(x) for "
            "np.exp(x), or bind it first"
        )

    if not TYPE_CHECKING:
        __iadd__ = _refused("__iadd__", "+=")
        __isub__ = _refused("__isub__", "-=")
        __imul__ = _refused("__imul__", "*=")
        __itruediv__ = _refused("__itruediv__", "/=")

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
