"""Activation: out = f(data), elementwise; data and out have one shape.

    relu      max(x, 0)                gdata = gout where out > 0
    sigmoid   1 / (1 + exp(-x))        gdata = gout out (1 - out)
    tanh      tanh x                   gdata = gout (1 - out^2)
    softrelu  log(1 + exp x)           gdata = gout (1 - exp(-out))
    softsign  x / (1 + |x|)            gdata = gout (1 - |out|)^2

The gradients are written in out, so that data need not be kept.
"""

from __future__ import annotations

from typing import Literal

from ..expression.gradient import pointwise_backward
from ..expression.language import Expression
from ..expression.operators import pointwise
from ..expression.pointwise import Pointwise
from ..gradient import backward_node
from ..infer import all_same_float, all_same_shape
from ..node import Entry, Node
from ..params import Field, Params
from ..registry import register, register_backward


class ActivationParams(Params):
    act_type: Literal["relu", "sigmoid", "softrelu", "softsign", "tanh"] = Field(description="The function.")


op = register("Activation", ActivationParams).inplace((0, 0))
op.infer_shape(all_same_shape)
op.infer_type(all_same_float)
backward = register_backward("_backward_Activation", ActivationParams, outputs=("data",)).inplace((0, 0), (1, 0))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Activation", node, [ograds[0], *node.entries()])


FORMULAS = {
    "relu": ("maximum(x, 0)", "g * (y > 0)"),
    "sigmoid": ("1 / (1 + exp(-x))", "g * ((1 - y) * y)"),
    # exp overflows further out, where log(1 + exp x) has long been x.
    "softrelu": ("where(x > 20, x, log1p(exp(x)))", "g * -expm1(-y)"),
    "softsign": ("x / (1 + abs(x))", "g * square(1 - abs(y))"),
    "tanh": ("tanh(x)", "g * (1 - square(y))"),
}
"""For each function, out as a formula of data `x`, and gdata as one of `g`, gout, and `y`, out."""

_FORWARD = {key: Pointwise(("x",), (Expression(text, ("x",)),)) for key, (text, _) in FORMULAS.items()}
_BACKWARD = {key: Pointwise(("g", "y"), (Expression(text, ("g", "y")),)) for key, (_, text) in FORMULAS.items()}

pointwise(op, lambda p, ins, outs: _FORWARD[p.act_type])
pointwise_backward(backward, lambda p, ins, outs: _BACKWARD[p.act_type])
