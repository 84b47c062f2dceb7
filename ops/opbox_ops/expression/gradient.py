"""The gradient of formulas is formulas: FGradient of every backward operator that has an FExpression.

With outputs y_k = f_k(x) and the gradients h_k that arrive for them, the gradient of input x_i is

    sum over k of h_k * (derivative of f_k by x_i)

summed to the shape of x_i where it was repeated. It is the operator `_pointwise`, whose formulas are its parameter, so
that its own gradient follows in the same way, as often as one likes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from opbox_protocol.errors import UnsupportedError

from ..gradient import is_zero
from ..node import Entry, Node
from ..operator import Op
from ..params import Params
from .derivative import derivative, plus, times
from .language import Expression, Term, substitute
from .operators import pointwise
from .pointwise import ExpressionRule, Pointwise

__all__ = ["pointwise_backward"]


class PointwiseParams(Params):
    formulas: Any


POINTWISE = Op(
    "_pointwise",
    PointwiseParams,
    lambda p: p.formulas.inputs,
    lambda p: [f"output{k}" for k in range(len(p.formulas.outputs))],
    (),
    "What its formulas say: the gradient of a backward operator.",
)


def formula_gradient(node: Node, grads: list[Entry]) -> list[Entry | None]:
    """FGradient of an operator with formulas and without states: one node that computes the gradients of its inputs.

    Raises:
        UnsupportedError: a function in the formulas has no derivative here, or the operator rewrites states.
    """
    assert node.op is not None
    real = np.dtype(np.float32)
    rule = node.op.get_attr("FExpression")
    formulas = rule(node.params, [real] * len(node.inputs), [real] * node.num_outputs)
    if formulas is None or formulas.states:
        raise UnsupportedError("the operator has no gradient of its gradient").at(node.name, node.op.name, node.source)
    arriving = tuple(k for k, grad in enumerate(grads) if not is_zero(grad))
    try:
        gradients, reads = differentiate(formulas, arriving)
    except ValueError as error:
        raise UnsupportedError(f"the gradient of its gradient: {error}").at(
            node.name, node.op.name, node.source
        ) from error
    sources = [*grads, *node.inputs]
    again = Node(
        POINTWISE,
        f"{node.name}_backward",
        {"formulas": "; ".join(formula.text for formula in gradients.outputs)},
        PointwiseParams(formulas=gradients),
        tuple(sources[i] for i in reads),
        forward=node,
        source=node.source,
        outputs=len(node.inputs),
    )
    return [None if gradients.outputs[i].term == 0 else Entry(again, i) for i in range(len(node.inputs))]


def pointwise_backward(op: Op, rule: ExpressionRule) -> Op:
    """Give the backward operator `op` its formulas, a compute that runs them, and the gradient that follows."""
    op.set_attr("FGradient", formula_gradient)
    return pointwise(op, rule)


@lru_cache(maxsize=1024)
def differentiate(formulas: Pointwise, arriving: tuple[int, ...]) -> tuple[Pointwise, tuple[int, ...]]:
    """The formulas of the gradients of all inputs, and what they read.

    Args:
        formulas: what is differentiated.
        arriving: the outputs that a gradient arrives for.

    Returns:
        The formulas, with an output for each input, and for each of their inputs its position among the gradients of
        the outputs followed by the inputs.

    Raises:
        ValueError: a function has no derivative.
    """
    heads = [f"h{k}" for k in range(len(formulas.outputs))]
    while set(heads) & set(formulas.inputs):
        heads = [f"h{head}" for head in heads]
    numbers: dict[str, Term] = dict(formulas.numbers)
    terms: list[Term] = []
    for name in formulas.inputs:
        total: Term = 0
        for k in arriving if name not in formulas.conditions else ():
            by = derivative(substitute(formulas.outputs[k].term, numbers), name)
            total = plus(total, times(heads[k], by))
        terms.append(total)
    names = (*heads, *formulas.inputs)
    outputs = tuple(Expression.of(term, names) for term in terms)
    used = frozenset().union(*(formula.names for formula in outputs))
    reads = tuple(i for i, name in enumerate(names) if name in used)
    start = {heads[k]: axis for k, axis in formulas.start_out.items()} | dict(formulas.start)
    gradients = Pointwise(
        tuple(names[i] for i in reads),
        outputs,
        conditions=formulas.conditions & used,
        start={name: axis for name, axis in start.items() if name in used},
        summed=formulas.summed or bool(start),
        start_out={i: start[name] for i, name in enumerate(formulas.inputs) if name in start},
    )
    return gradients, reads


POINTWISE.set_attr("TIsBackward", True)
pointwise_backward(POINTWISE, lambda p, ins, outs: p.formulas)
