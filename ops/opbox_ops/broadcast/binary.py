"""Functions of two arrays whose shapes broadcast together: out = f(lhs, rhs), from the rows of `elementwise.binary`.

    (batch, channel, 1, 1) with (channel, height, width) -> (batch, channel, height, width)

The gradient of an operand is the elementwise gradient, summed over the axes along which the operand was repeated.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Arrays, OpContext, OpReq, Reqs, Temp
from ..elementwise.binary import ARRAYS, TABLE, Row, gradient_rule, gradients, reads
from ..elementwise.evaluate import evaluate, scratch, working_type
from ..elementwise.expression import Expression
from ..elementwise.family import Gradient, forward, zero_gradient
from ..infer import ShapeList, broadcast_shapes, size_of
from ..params import NoParams
from ..registry import Op, register, register_backward
from .sum_to import stretched_axes, sum_to

_ALIASES = {"add": ("broadcast_plus",), "sub": ("broadcast_minus",)}


def _shapes(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, broadcast_shapes(*ins))


def _register(row: Row) -> Op:
    aliases = _ALIASES.get(row.suffix, ())
    doc = f"{row.doc.rstrip('.')}; the shapes are broadcast."
    op = register(f"broadcast_{row.suffix}", NoParams, inputs=("lhs", "rhs"), aliases=aliases, doc=doc)
    forward(op, Expression(row.formula, ARRAYS), shapes=_shapes)
    if row.derivatives is None:
        op.set_attr("FGradient", zero_gradient)
        return op
    pairs = gradients(row)
    name = f"_backward_broadcast_{row.suffix}"
    op.set_attr("FGradient", gradient_rule(name, reads(pairs)))
    _register_backward(name, pairs, reads(pairs))
    return op


def _register_backward(name: str, pairs: tuple[Gradient, Gradient], inputs: tuple[str, ...]) -> None:
    op = register_backward(name, NoParams, outputs=("lhs", "rhs"))
    op.set_attr("FExpression", tuple(real for real, _ in pairs))
    op.inplace(*((i, 1) for i in range(len(inputs))))
    plan = [(pair, [inputs.index(each) for each in pair[0].arrays]) for pair in pairs]

    def formula(pair: Gradient, dtype: Any) -> Expression:
        return pair[1] if dtype.kind in "iu" else pair[0]

    @op.resources
    def _(p: NoParams, in_shapes: Any, in_types: Any, out_shapes: Any, out_types: Any) -> list[Temp]:
        """Scratch for each formula, then room for a whole gradient if one is to be summed."""
        size = size_of(in_shapes[0])
        temps = [
            scratch(formula(pair, in_types[0]), (*(in_types[i] for i in read), out_types[k]), size)
            for k, (pair, read) in enumerate(plan)
        ]
        summed = [
            working_type(formula(pair, in_types[0]), (out_types[k],))
            for k, (pair, _) in enumerate(plan)
            if formula(pair, in_types[0]).steps and stretched_axes(out_shapes[k], in_shapes[0])
        ]
        return temps + ([Temp(in_shapes[0], np.result_type(*summed))] if summed else [])

    @op.compute()
    def _(p: NoParams, ctx: OpContext, arrays: Arrays, req: Reqs, outputs: Arrays) -> None:
        gout = arrays[0]
        for k, (pair, read) in enumerate(plan):
            chosen = formula(pair, gout.dtype)
            chosen_arrays = [arrays[i] for i in read]
            temp = ctx.temp[k] if ctx.temp else None
            if req[k] == OpReq.NULL:
                continue
            if not stretched_axes(outputs[k].shape, gout.shape):
                out = outputs[k] if outputs[k].shape == gout.shape else outputs[k].reshape(gout.shape)
                evaluate(chosen, ctx, chosen_arrays, req[k], out, temp=temp)
            elif not chosen.steps:
                sum_to(ctx.xp, gout, req[k], outputs[k])
            else:
                whole = ctx.temp[2] if len(ctx.temp) > 2 else ctx.xp.empty(gout.shape, gout.dtype)
                evaluate(chosen, ctx, chosen_arrays, OpReq.WRITE, whole, temp=temp)
                sum_to(ctx.xp, whole, req[k], outputs[k])


for _row in TABLE:
    _register(_row)
