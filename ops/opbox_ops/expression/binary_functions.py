"""Functions of two arrays: the table that `elementwise.binary` and `broadcast.binary` make their operators of.

Each row is f of `a` (lhs) and `b` (rhs) and its two derivatives. At a tie, `maximum` and `minimum` give the gradient to
lhs. A comparison answers 1 or 0 in the element type of its inputs. Integer division truncates; a remainder has the
divisor's sign, and is 0 where the divisor is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from ..node import Entry, Node
from .family import Derivative, Gradient, backward_with, derivative

__all__ = ["ARRAYS", "TABLE", "BinaryRow", "gradient_rule", "gradients", "reads"]

ARRAYS = ("a", "b")

GradientRule: TypeAlias = "Callable[[Node, list[Entry]], list[Entry | None]]"


@dataclass(frozen=True, slots=True)
class BinaryRow:
    """One function.

    Attributes:
        name: the operator on equal shapes.
        aliases: its further names.
        suffix: its name in `broadcast_…` and `_backward_…`.
        formula: of `a` and `b`.
        derivatives: by `a` and by `b`; None: zero wherever they are defined.
        doc: what it computes.
    """

    name: str
    aliases: tuple[str, ...]
    suffix: str
    formula: str
    derivatives: tuple[Derivative, Derivative] | None
    doc: str


_DIV = (("g / b", "g * trunc(1 / b)"), "-a / square(b)")
_MOD = (("1", "g * 0"), ("-floor(a / b)", "g * 0"))
_POWER = ("b * a ** (b - 1)", "a ** b * log(a)")
_HYPOT = ("a / hypot(a, b)", "b / hypot(a, b)")

TABLE = (
    BinaryRow("elemwise_add", ("_add", "_plus", "_Plus"), "add", "a + b", ("1", "1"), "lhs + rhs"),
    BinaryRow("elemwise_sub", ("_sub", "_minus", "_Minus"), "sub", "a - b", ("1", "-1"), "lhs - rhs"),
    BinaryRow("elemwise_mul", ("_mul", "_Mul"), "mul", "a * b", ("b", "a"), "lhs * rhs"),
    BinaryRow("elemwise_div", ("_div", "_Div"), "div", "a / b", _DIV, "lhs / rhs"),
    BinaryRow("_mod", ("_Mod",), "mod", "a % b", _MOD, "The remainder of lhs / rhs, with the sign of rhs."),
    BinaryRow("_power", ("_Power",), "power", "a ** b", _POWER, "lhs to the power of rhs."),
    BinaryRow("_maximum", ("_Maximum",), "maximum", "maximum(a, b)", ("a >= b", "a < b"), "The larger of lhs and rhs."),
    BinaryRow(
        "_minimum", ("_Minimum",), "minimum", "minimum(a, b)", ("a <= b", "a > b"), "The smaller of lhs and rhs."
    ),
    BinaryRow("_hypot", ("_Hypot",), "hypot", "hypot(a, b)", _HYPOT, "The length of the vector (lhs, rhs)."),
    BinaryRow("_equal", ("_Equal",), "equal", "a == b", None, "1 where lhs == rhs, elsewhere 0."),
    BinaryRow("_not_equal", ("_Not_Equal",), "not_equal", "a != b", None, "1 where lhs != rhs, elsewhere 0."),
    BinaryRow("_greater", ("_Greater",), "greater", "a > b", None, "1 where lhs > rhs, elsewhere 0."),
    BinaryRow(
        "_greater_equal", ("_Greater_Equal",), "greater_equal", "a >= b", None, "1 where lhs >= rhs, elsewhere 0."
    ),
    BinaryRow("_lesser", ("_Lesser",), "lesser", "a < b", None, "1 where lhs < rhs, elsewhere 0."),
    BinaryRow("_lesser_equal", ("_Lesser_Equal",), "lesser_equal", "a <= b", None, "1 where lhs <= rhs, elsewhere 0."),
    BinaryRow("_logical_and", ("_Logical_And",), "logical_and", "logical_and(a, b)", None, "1 where both are not 0."),
    BinaryRow("_logical_or", ("_Logical_Or",), "logical_or", "logical_or(a, b)", None, "1 where either is not 0."),
    BinaryRow(
        "_logical_xor", ("_Logical_Xor",), "logical_xor", "logical_xor(a, b)", None, "1 where just one is not 0."
    ),
)


def gradients(row: BinaryRow) -> tuple[Gradient, Gradient]:
    """The formulas of both gradients, each of `g` and those arrays that it reads."""
    assert row.derivatives is not None
    return derivative(row.derivatives[0], ARRAYS), derivative(row.derivatives[1], ARRAYS)


def reads(pairs: tuple[Gradient, Gradient]) -> tuple[str, ...]:
    """List the inputs of the backward operator: `g` and the arrays that either formula reads."""
    needed = {name for real, _ in pairs for name in real.arrays}
    return ("g", *(name for name in ARRAYS if name in needed))


def gradient_rule(name: str, arrays: tuple[str, ...]) -> GradientRule:
    """FGradient: a node of the backward operator `name`, which reads `arrays`."""
    picks = {"a": _lhs, "b": _rhs}
    return backward_with(name, [picks[array] for array in arrays[1:]])


def _lhs(node: Node) -> Entry:
    return node.inputs[0]


def _rhs(node: Node) -> Entry:
    return node.inputs[1]
