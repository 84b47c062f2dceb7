"""Operators that hand their input on as it is: what differs is the gradient.

_copy                          gdata = gout
_identity_with_attr_like_rhs   glhs = gout; rhs gives its shape and type alone
BlockGrad                      gdata = 0
make_loss                      gdata = 1, whatever the head gradient: data is a loss
"""

from __future__ import annotations

from ..compute import Arrays, OpContext, Outputs
from ..expression.language import Expression
from ..expression.operators import pointwise
from ..expression.pointwise import Pointwise, fixed
from ..gradient import backward_node, grad_zero
from ..infer import all_same_shape, all_same_type
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register, register_backward

copy = register("_copy", aliases=("identity", "_np_copy"), doc="data, unchanged.")
like = register(
    "_identity_with_attr_like_rhs", inputs=("lhs", "rhs"), doc="lhs, unchanged; rhs settles its shape and type."
)
loss = register(
    "make_loss",
    outputs=("loss",),
    doc="data, unchanged, as a loss: its gradient is 1, whatever the head gradient.",
)
backward_loss = register_backward("_backward_make_loss", NoParams, outputs=("data",))
block = register("BlockGrad", aliases=("stop_gradient",), doc="data, unchanged; no gradient flows back.")

for _op in (copy, like, block, loss):
    _op.set_attr("FInferShape", all_same_shape)
    _op.set_attr("FInferType", all_same_type)
    _op.set_attr("TIsView", True)
    _op.inplace((0, 0))
like.set_attr("FIgnoreInputs", (1,))
block.set_attr("FGradient", grad_zero)


@copy.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [ograds[0]]


@like.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [ograds[0], None]


@loss.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_make_loss", node, [])


_SAME = fixed(Pointwise(("x",), (Expression("x", ("x",)),)))
for _op in (copy, block, loss):
    pointwise(_op, _SAME)
pointwise(like, fixed(Pointwise(("x", "rhs"), (Expression("x", ("x", "rhs")),))))


@backward_loss.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        outputs[0].fill(1)
