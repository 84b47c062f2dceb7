"""Functions of two arrays whose shapes broadcast together: out = f(lhs, rhs), of the rows of `binary_functions`.

    (batch, channel, 1, 1) with (channel, height, width) -> (batch, channel, height, width)

The gradient of an operand is the elementwise gradient, summed over the axes along which the operand was repeated.
"""

from __future__ import annotations

from ..expression.binary_functions import ARRAYS, TABLE, BinaryRow, gradient_rule, gradients, reads
from ..expression.family import forward, gradient_formulas
from ..expression.gradient import pointwise_backward
from ..expression.language import Expression
from ..gradient import grad_zero
from ..infer import ShapeList, broadcast_shapes, summary
from ..params import NoParams
from ..registry import Op, register, register_backward

_ALIASES = {
    "add": ("broadcast_plus",),
    "sub": ("broadcast_minus",),
    "maximum": ("_npi_maximum",),
    "minimum": ("_npi_minimum",),
    "hypot": ("_npi_hypot",),
}
"""Further names; `_npi_…` are those of files of mx.np."""


@summary("broadcast")
def _shapes(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, broadcast_shapes(*ins))


def _register(row: BinaryRow) -> Op:
    aliases = _ALIASES.get(row.suffix, ())
    doc = f"{row.doc.rstrip('.')}; the shapes are broadcast."
    op = register(f"broadcast_{row.suffix}", NoParams, inputs=("lhs", "rhs"), aliases=aliases, doc=doc)
    forward(op, Expression(row.formula, ARRAYS), shapes=_shapes)
    if row.derivatives is None:
        op.set_attr("FGradient", grad_zero)
        return op
    pairs = gradients(row)
    inputs, name = reads(pairs), f"_backward_broadcast_{row.suffix}"
    op.set_attr("FGradient", gradient_rule(name, inputs))
    backward = register_backward(name, NoParams, outputs=("lhs", "rhs"))
    backward.inplace(*((i, 1) for i in range(len(inputs))))
    pointwise_backward(backward, gradient_formulas(pairs, inputs, None, summed=True))
    return op


for _row in TABLE:
    _register(_row)
