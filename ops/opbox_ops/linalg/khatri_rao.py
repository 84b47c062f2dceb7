"""khatri_rao: the column by column Kronecker product of matrices.

arg0 (r0, k), arg1 (r1, k), … -> (r0 * r1 * …, k): out[:, c] = kron(arg0[:, c], arg1[:, c], …).

    garg_i = gout, as (r0, r1, …, k), times all other arguments, summed over their rows
"""

from __future__ import annotations

from math import prod

from ..compute import Arrays, OpContext, Outputs
from ..gradient import grad_use_in
from ..infer import ShapeList
from ..params import Count, Field, Params
from ..registry import Variadic, register, register_backward
from .matrix import real_types


class KhatriRaoParams(Params):
    num_args: Count = Field(description="How many matrices.")


op = register("khatri_rao", KhatriRaoParams, inputs=Variadic("num_args"))
backward = register_backward("_backward_khatri_rao", KhatriRaoParams)
op.infer_type(real_types)
op.set_attr("FGradient", grad_use_in("_backward_khatri_rao"))


@op.infer_shape
def _(p: KhatriRaoParams, ins: ShapeList, outs: ShapeList) -> None:
    out = outs.rank(0, 2)
    columns = -1 if out is None else out[1]
    for _ in range(2):
        for i in range(len(ins)):
            shape = ins.rank(i, 2)
            shape = ins.merge(i, (-1 if shape is None else shape[0], columns))
            assert shape is not None
            columns = shape[1]
    rows = [-1 if shape is None else shape[0] for shape in ins]
    out = outs.merge(0, (-1 if min(rows) < 0 else prod(rows), columns))
    assert out is not None
    known = prod(row for row in rows if row >= 0)
    if rows.count(-1) == 1 and out[0] >= 0 and known and not out[0] % known:
        ins.merge(rows.index(-1), (out[0] // known, columns))


@op.compute(allocates="all but the last of several products")
def _(p: KhatriRaoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    columns = outputs[0].shape[1]
    product = inputs[0]
    for matrix in inputs[1:]:
        product = (product[:, None] * matrix).reshape(len(product) * len(matrix), columns)
    outputs[0][...] = product


@backward.compute(allocates="the products of the other arguments")
def _(p: KhatriRaoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gout, *matrices = inputs
    rows = [len(matrix) for matrix in matrices]
    gout = gout.reshape(*rows, gout.shape[1])
    count = len(matrices)
    for i, out in enumerate(outputs):
        if out is not None:
            total = gout
            for k in reversed(range(count)):
                if k != i:
                    factor = matrices[k].reshape(rows[k], *(1,) * (total.ndim - 2 - k), gout.shape[-1])
                    total = (total * factor).sum(axis=k)
            out[...] = total
