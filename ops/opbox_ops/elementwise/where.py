"""where: out = x where condition is not 0, elsewhere y.

condition is of x's shape, or (n,) with n = x.shape[0], or (n, 1, …): then it chooses whole rows.

    gx = gout where condition is not 0, elsewhere 0        gy = the other way round
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..expression.gradient import pointwise_backward
from ..expression.language import Expression
from ..expression.operators import pointwise
from ..expression.pointwise import Pointwise, fixed
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, show_shape
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register, register_backward

op = register("where", inputs=("condition", "x", "y"))
backward = register_backward("_backward_where", NoParams, outputs=("x", "y"))

op.inplace((1, 0), (2, 0))
backward.inplace((0, 1))


@op.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = outs.merge(0, ins.merge(2, ins[1]))
    for i in (1, 2):
        shape = ins.merge(i, shape)
    condition = ins[0]
    if condition is None or shape is None:
        return
    if _chooses_rows(condition, shape):
        ins.merge(0, (shape[0], *condition[1:]))
    elif len(condition) == len(shape):
        shape = ins.merge(0, shape)
        for i in (1, 2):
            ins.merge(i, shape)
        outs.merge(0, shape)
    else:
        raise ShapeError(
            f"expected {show_shape(shape)} or {show_shape(shape[:1])}, got {show_shape(condition)}",
            side=ins.side,
            index=0,
        )


def _chooses_rows(condition: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if not 0 < len(condition) <= len(shape) or any(size != 1 for size in condition[1:]):
        return False
    return len(condition) < len(shape) or any(size > 1 or size == 0 for size in shape[1:])


@op.infer_type
def _(p: NoParams, ins: TypeList, outs: TypeList) -> None:
    dtype = outs.merge(0, ins.merge(2, ins[1]))
    ins.merge(1, dtype)
    ins.merge(2, dtype)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    grads = backward_node("_backward_where", node, [ograds[0], node.inputs[0]], outputs=2)
    return [None, *grads[:2]]


@backward.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    for k in range(2):
        outs.merge(k, ins[0])


@backward.infer_type
def _(p: NoParams, ins: TypeList, outs: TypeList) -> None:
    for k in range(2):
        outs.merge(k, ins[0])


def _formulas(*texts: str, inputs: tuple[str, ...]) -> Pointwise:
    return Pointwise(
        inputs,
        tuple(Expression(text, inputs) for text in texts),
        conditions=frozenset(("condition",)),
        start={"condition": 0},
    )


pointwise(op, fixed(_formulas("where(condition, x, y)", inputs=("condition", "x", "y"))))
pointwise_backward(
    backward, fixed(_formulas("where(condition, g, 0)", "where(condition, 0, g)", inputs=("g", "condition")))
)
