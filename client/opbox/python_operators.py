"""Python's operators and MXNet's functions of two operands: what each calls, for arrays and for symbols.

`x + y` on arrays broadcasts (`broadcast_add`), on symbols it does not (`elemwise_add`), as in MXNet; with a number in
either place both call the operator of one tensor and a scalar (`_plus_scalar`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .base import is_number

__all__ = ["TABLE", "Operation", "apply_to_any", "comparison", "methods", "refusals"]


class Operation(NamedTuple):
    """One operation.

    Attributes:
        on_numbers: the operation on two plain numbers.
        formula: what it computes.
        broadcast: the operator on two arrays.
        elementwise: the operator on two symbols of one shape, and what automatic names of its nodes begin with.
        scalar: the operator of a tensor and a number, and what automatic names begin with.
        reflected: the same of a number and a tensor.
    """

    on_numbers: Callable[[Any, Any], Any]
    formula: str
    broadcast: str
    elementwise: tuple[str, str]
    scalar: tuple[str, str]
    reflected: tuple[str, str]


def _operation(
    on_numbers: Callable[[Any, Any], Any],
    formula: str,
    broadcast: str,
    elementwise: tuple[str, str],
    scalar: str,
    reflected: str | None = None,
) -> Operation:
    """An operation of arithmetic; automatic names of its scalar forms are written together: `_plusscalar0`."""
    joined = scalar.replace("_scalar", "scalar")
    other = reflected or scalar
    return Operation(
        on_numbers, formula, broadcast, elementwise, (scalar, joined), (other, other.replace("_scalar", "scalar"))
    )


def _comparing(on_numbers: Callable[[Any, Any], Any], formula: str, name: str, mirrored: str) -> Operation:
    """A comparison, or logic: automatic names are the operators' own; `mirrored` is it with its operands exchanged."""
    scalar, other = f"_{name}_scalar", f"_{mirrored}_scalar"
    return Operation(
        on_numbers, formula, f"broadcast_{name}", (f"_{name}", f"_{name}"), (scalar, scalar), (other, other)
    )


TABLE = {
    "add": _operation(operator.add, "lhs + rhs", "broadcast_add", ("elemwise_add", "_plus"), "_plus_scalar"),
    "subtract": _operation(
        operator.sub, "lhs - rhs", "broadcast_sub", ("elemwise_sub", "_minus"), "_minus_scalar", "_rminus_scalar"
    ),
    "multiply": _operation(operator.mul, "lhs * rhs", "broadcast_mul", ("elemwise_mul", "_mul"), "_mul_scalar"),
    "divide": _operation(
        operator.truediv, "lhs / rhs", "broadcast_div", ("elemwise_div", "_div"), "_div_scalar", "_rdiv_scalar"
    ),
    "modulo": _operation(operator.mod, "lhs % rhs", "broadcast_mod", ("_mod", "_mod"), "_mod_scalar", "_rmod_scalar"),
    "power": _operation(
        operator.pow, "lhs ** rhs", "broadcast_power", ("_power", "_power"), "_power_scalar", "_rpower_scalar"
    ),
    "maximum": _operation(
        max, "The larger of lhs and rhs", "broadcast_maximum", ("_maximum", "_maximum"), "_maximum_scalar"
    ),
    "minimum": _operation(
        min, "The smaller of lhs and rhs", "broadcast_minimum", ("_minimum", "_minimum"), "_minimum_scalar"
    ),
    "hypot": _operation(np.hypot, "sqrt(lhs**2 + rhs**2)", "broadcast_hypot", ("_hypot", "_hypot"), "_hypot_scalar"),
    "equal": _comparing(operator.eq, "lhs == rhs", "equal", "equal"),
    "not_equal": _comparing(operator.ne, "lhs != rhs", "not_equal", "not_equal"),
    "greater": _comparing(operator.gt, "lhs > rhs", "greater", "lesser"),
    "greater_equal": _comparing(operator.ge, "lhs >= rhs", "greater_equal", "lesser_equal"),
    "lesser": _comparing(operator.lt, "lhs < rhs", "lesser", "greater"),
    "lesser_equal": _comparing(operator.le, "lhs <= rhs", "lesser_equal", "greater_equal"),
    "logical_and": _comparing(lambda a, b: a and b, "lhs and rhs", "logical_and", "logical_and"),
    "logical_or": _comparing(lambda a, b: a or b, "lhs or rhs", "logical_or", "logical_or"),
    "logical_xor": _comparing(lambda a, b: bool(a) ^ bool(b), "lhs or rhs, but not both", "logical_xor", "logical_xor"),
}
"""The operations, by the names of their functions in `mx.nd`."""

Method = Callable[[Any, Any], Any]


def methods(apply: Callable[..., Any], name: str) -> tuple[Method, Method, Method]:
    """The methods of an arithmetic operator: `x + y`, reflected (`2 + x`), and in place (`x += y`).

    Args:
        apply: `(tensor, other, operation, reflected, out)`: runs an operation on a tensor and what stands beside it.
        name: its name in `TABLE`.
    """
    operation = TABLE[name]

    def forward(self: Any, other: Any) -> Any:
        return apply(self, other, operation, False, None)

    def reflected(self: Any, other: Any) -> Any:
        return apply(self, other, operation, True, None)

    def in_place(self: Any, other: Any) -> Any:
        return apply(self, other, operation, False, self)

    return forward, reflected, in_place


def comparison(apply: Callable[..., Any], name: str, with_none: bool | None = None) -> Method:
    """The method of a comparison; `with_none` is its value beside None, where None stands for no tensor."""
    operation = TABLE[name]

    def compare(self: Any, other: Any) -> Any:
        if other is None and with_none is not None:
            return with_none
        return apply(self, other, operation, False, None)

    return compare


def refusals(sign: str, instead: str) -> tuple[Method, Method]:
    """The methods of an operator of Python's that MXNet's tensors lack, and its reflected one: both say what to write.

    Args:
        sign: "@".
        instead: "mx.nd.dot(lhs, rhs)".
    """

    def refuse(self: Any, other: Any) -> Any:
        raise TypeError(f"lhs {sign} rhs: {type(self).__name__}s have no such operator: write {instead}")

    return refuse, refuse


def apply_to_any(apply: Callable[..., Any], tensor: type, name: str, lhs: Any, rhs: Any) -> Any:
    """An operation on two operands, of which each is a tensor or a number.

    Raises:
        TypeError: an operand is neither.
    """
    operation = TABLE[name]
    if isinstance(lhs, tensor):
        return apply(lhs, rhs, operation, False, None)
    if isinstance(rhs, tensor):
        return apply(rhs, lhs, operation, True, None)
    if is_number(lhs) and is_number(rhs):
        return operation.on_numbers(lhs, rhs)
    raise TypeError(f"{name}: expected {tensor.__name__}s or numbers, got {type(lhs)} and {type(rhs)}")
