"""Making operators of formulas: the forward operator and its gradient from one row of a table.

A family (unary, binary, scalar, …) declares its inputs and formulas and calls `forward` and `backward`; what is
common to all of them is here: type and shape rules, in-place options, scratch, compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.errors import DTypeError

from ..compute import Arrays, OpContext, Reqs, Temp
from ..gradient import backward_node
from ..infer import ShapeRule, TypeList, TypeRule, all_same_shape, all_same_type, size_of
from ..node import Entry, Node
from ..params import Params
from ..registry import Op, register_backward
from .evaluate import evaluate, scratch
from .expression import Expression

__all__ = [
    "Derivative",
    "Gradient",
    "Numbers",
    "backward",
    "backward_with",
    "derivative",
    "forward",
    "not_bool",
    "numeric_types",
    "zero_gradient",
]

Numbers: TypeAlias = "Callable[[Any, np.dtype[Any]], Mapping[str, float]]"
"""`(params, element type of the output gradient or output)` to the formula's parameters."""
Derivative: TypeAlias = "str | tuple[str, str]"
Gradient: TypeAlias = "tuple[Expression, Expression]"


def _no_numbers(p: Any, dtype: np.dtype[Any]) -> Mapping[str, float]:
    return {}


def numeric_types(p: Any, ins: TypeList, outs: TypeList) -> None:
    """One element type for everything, and not bool; DTypeError otherwise."""
    all_same_type(p, ins, outs)
    not_bool(ins)


def not_bool(ins: TypeList) -> None:
    """DTypeError when an input is bool."""
    for index, dtype in enumerate(ins):
        if dtype is not None and dtype.kind == "b":
            raise DTypeError("expected a number type, got bool: Cast it first", side=ins.side, index=index)


def forward(
    op: Op,
    formula: Expression,
    *,
    numbers: Numbers = _no_numbers,
    shapes: ShapeRule = all_same_shape,
    types: TypeRule = numeric_types,
) -> Op:
    """Give `op` everything that follows from `formula`, whose arrays are the operator's inputs."""
    op.set_attr("FExpression", formula)
    op.set_attr("FInferShape", shapes)
    op.set_attr("FInferType", types)
    op.inplace(*((i, 0) for i in range(len(formula.arrays))))
    if len(formula.steps) > 1 or not formula.exact:

        @op.resources
        def blocks(p: Any, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> list[Temp]:
            return [scratch(formula, (*in_types, *out_types), size_of(out_shapes[0]))]

    @op.compute()
    def _(p: Params, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
        out = outputs[0]
        evaluate(formula, ctx, inputs, req[0], out, numbers(p, out.dtype), ctx.temp[0] if ctx.temp else None)

    return op


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
    numbers: Numbers = _no_numbers,
) -> Op:
    """Register the backward operator `name`: output i is formula i of `inputs` (`g` first, then what is read).

    The last output is written when everything else has been read, so it may take over the memory of any input.
    """
    op = register_backward(name, params, outputs=outputs)
    last = len(formulas) - 1
    op.set_attr("FExpression", tuple(real for real, _ in formulas))
    op.inplace(*((i, last) for i in range(len(inputs))))
    plan = [(pair, [inputs.index(name) for name in pair[0].arrays]) for pair in formulas]

    def choose(pair: Gradient, dtype: Any) -> Expression:
        return pair[1] if dtype.kind in "iu" else pair[0]

    @op.resources
    def _(p: Any, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> list[Temp]:
        return [
            scratch(choose(pair, in_types[0]), (*(in_types[i] for i in read), out_types[k]), size_of(out_shapes[k]))
            for k, (pair, read) in enumerate(plan)
        ]

    @op.compute()
    def _(p: Params, ctx: OpContext, arrays: Arrays, req: Reqs, outputs: Arrays) -> None:
        given = numbers(p, arrays[0].dtype)
        for k, (pair, read) in enumerate(plan):
            formula = choose(pair, arrays[0].dtype)
            temp = ctx.temp[k] if ctx.temp else None
            evaluate(formula, ctx, [arrays[i] for i in read], req[k], outputs[k], given, temp)

    return op


def zero_gradient(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    """FGradient of a function that is constant almost everywhere."""
    return [None] * len(node.inputs)


def backward_with(op: str, reads: Sequence[Callable[[Node], Entry]]) -> Callable[[Node, list[Entry]], Any]:
    """FGradient: a node of `op` that reads the output gradient and then what `reads` picks from the forward node."""

    def rule(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        return backward_node(op, node, [ograds[0], *(pick(node) for pick in reads)])

    return rule
