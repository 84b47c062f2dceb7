"""Making operators of formulas: the forward operator and its gradient from one row of a table.

A family (unary, binary, scalar, …) declares its inputs and formulas and calls `forward` and `backward`; what is
common to all of them is here: type and shape rules, in-place options. `evaluate` runs the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..gradient import backward_node
from ..infer import ShapeRule, TypeRule, all_same_shape, numeric_types
from ..node import Entry, Node
from ..params import Params
from ..registry import Op, register_backward
from .gradient import pointwise_backward
from .language import Expression
from .operators import pointwise
from .pointwise import ExpressionRule, Pointwise

__all__ = [
    "Derivative",
    "Gradient",
    "Numbers",
    "backward",
    "backward_with",
    "derivative",
    "forward",
    "gradient_formulas",
]

Numbers: TypeAlias = "Callable[[Any, np.dtype[Any]], Mapping[str, float]]"
"""`(params, element type of the output gradient or output)` to the formula's parameters."""
Derivative: TypeAlias = "str | tuple[str, str]"
Gradient: TypeAlias = "tuple[Expression, Expression]"


def forward(
    op: Op,
    formula: Expression,
    *,
    numbers: Numbers | None = None,
    shapes: ShapeRule = all_same_shape,
    types: TypeRule = numeric_types,
) -> Op:
    """Give `op` everything that follows from `formula`, whose arrays are the operator's inputs."""
    op.set_attr("FInferShape", shapes)
    op.set_attr("FInferType", types)
    op.inplace(*((i, 0) for i in range(len(formula.arrays))))
    formulas = Pointwise(formula.arrays, (formula,))

    def rule(p: Any, ins: Sequence[Any], outs: Sequence[Any]) -> Pointwise:
        return formulas if numbers is None else formulas.with_numbers(numbers(p, outs[0]))

    return pointwise(op, rule)


def derivative(text: Derivative, arrays: Sequence[str], parameters: Sequence[str] = ()) -> Gradient:
    """The gradient formulas for a derivative, one for real numbers and one for integers.

    A text that names `g`, the output gradient, is the gradient itself; any other is multiplied by `g`. On integers the
    derivative is truncated before it is multiplied, as in MXNet, where it is a value of the element type; a pair of
    texts gives the two apart.
    """
    on_reals, on_integers = (text, "") if isinstance(text, str) else text
    named = Expression(on_reals, ("g", *arrays), parameters)
    read = ("g", *(name for name in arrays if name in named.names))
    if on_reals == "1":
        real = whole = "g"
    elif on_reals == "-1":
        real = whole = "-g"
    elif "g" in named.names:
        real = whole = on_reals
    else:
        real, whole = f"g * ({on_reals})", f"g * trunc({on_reals})"
    return Expression(real, read, parameters), Expression(on_integers or whole, read, parameters)


def backward(
    name: str,
    params: type[Params],
    formulas: Sequence[Gradient],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str] = ("data",),
    numbers: Numbers | None = None,
) -> Op:
    """Register the backward operator `name`: output i is formula i of `inputs` (`g` first, then what is read)."""
    op = register_backward(name, params, outputs=outputs)
    # The last output is written when everything else has been read.
    op.inplace(*((i, len(formulas) - 1) for i in range(len(inputs))))
    return pointwise_backward(op, gradient_formulas(formulas, inputs, numbers))


def gradient_formulas(
    formulas: Sequence[Gradient], inputs: Sequence[str], numbers: Numbers | None, *, summed: bool = False
) -> ExpressionRule:
    """FExpression of a backward operator: the formulas for real numbers or for integers, by the type of `g`."""
    on_reals = Pointwise(tuple(inputs), tuple(real for real, _ in formulas), summed=summed)
    on_integers = Pointwise(tuple(inputs), tuple(whole for _, whole in formulas), summed=summed)

    def rule(p: Any, ins: Sequence[Any], outs: Sequence[Any]) -> Pointwise:
        chosen = on_integers if ins[0].kind in "iu" else on_reals
        return chosen if numbers is None else chosen.with_numbers(numbers(p, ins[0]))

    return rule


def backward_with(op: str, reads: Sequence[Callable[[Node], Entry]]) -> Callable[[Node, list[Entry]], Any]:
    """FGradient: a node of `op` that reads the output gradient and then what `reads` picks from the forward node."""

    def rule(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(op, node, [ograds[0], *(pick(node) for pick in reads)])

    return rule
