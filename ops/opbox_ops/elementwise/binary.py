"""Functions of two arrays of one shape, element by element: out = f(lhs, rhs), of the rows of `binary_functions`."""

from __future__ import annotations

from ..expression.binary_functions import ARRAYS, TABLE, BinaryRow, gradient_rule, gradients, reads
from ..expression.family import backward, forward
from ..expression.language import Expression
from ..gradient import grad_zero, make_node
from ..node import Entry, Node
from ..params import NoParams
from ..registry import Op, register


def _sum_gradient(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [ograds[0], ograds[0]]


def _difference_gradient(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [ograds[0], make_node("negative", f"{node.name}_backward", [ograds[0]])]


def _register(row: BinaryRow) -> Op:
    op = register(row.name, NoParams, inputs=("lhs", "rhs"), aliases=row.aliases, doc=row.doc)
    return forward(op, Expression(row.formula, ARRAYS))


def _differentiate(op: Op, row: BinaryRow) -> None:
    if row.derivatives is None:
        op.set_attr("FGradient", grad_zero)
    elif row.suffix == "add":
        op.set_attr("FGradient", _sum_gradient)
    elif row.suffix == "sub":
        op.set_attr("FGradient", _difference_gradient)
    else:
        name, pairs = f"_backward_{row.suffix}", gradients(row)
        backward(name, NoParams, pairs, inputs=reads(pairs), outputs=("lhs", "rhs"))
        op.set_attr("FGradient", gradient_rule(name, reads(pairs)))


for _row in TABLE:
    _differentiate(_register(_row), _row)
# What adds up two gradients of one array.
_grad_add = _register(BinaryRow("_grad_add", (), "add", "a + b", None, "lhs + rhs, of two gradients of one array."))
_grad_add.set_attr("FGradient", _sum_gradient).set_attr("TGradientSum", True)
