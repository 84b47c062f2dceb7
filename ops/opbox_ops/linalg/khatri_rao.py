"""khatri_rao: the column by column Kronecker product of matrices.

arg0 (r0, k), arg1 (r1, k), … -> (r0 * r1 * …, k): out[:, c] = kron(arg0[:, c], arg1[:, c], …).

    garg_i = gout, as (r0, r1, …, k), times all other arguments, summed over their rows
"""

from __future__ import annotations

from math import prod

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_use_in
from ..infer import ShapeList, size_of
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


def _products(p: KhatriRaoParams, call: CallSpec) -> list[Temp]:
    """Two arrays for the products of fewer arguments, which are made of each other."""
    out, (*_, last) = call.outputs[0], call.inputs
    few = size_of(out.shape) // max(last.shape[0], 1)
    return [Temp((few if p.num_args > 2 else 0,), out.dtype), Temp((few if p.num_args > 3 else 0,), out.dtype)]


@op.compute(temps=_products)
def _(p: KhatriRaoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    out, product = outputs[0], inputs[0]
    if not out.size or len(inputs) == 1:
        out[...] = product if out.size else 0
        return
    for number, matrix in enumerate(inputs[1:], 1):
        shape = len(product), len(matrix), out.shape[1]
        scratch = out if number == len(inputs) - 1 else ctx.temp[(number - 1) % 2]
        target = scratch.reshape(-1)[: size_of(shape)].reshape(shape)
        ctx.xp.multiply(product[:, None], matrix, out=target)
        product = target.reshape(-1, out.shape[1])


def _sums(p: KhatriRaoParams, call: CallSpec) -> list[Temp]:
    """The product with an argument, and the two arrays that it is summed into by turns."""
    gout, *matrices = call.inputs
    size, least = size_of(gout.shape), max(min((matrix.shape[0] for matrix in matrices), default=1), 1)
    return [Temp((n,), gout.dtype) for n in (size, size // least, size // least)] if len(matrices) > 1 else []


@backward.compute(temps=_sums)
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
                    whole, summed = ctx.temp[0], ctx.temp[1 + k % 2]
                    product = ctx.xp.multiply(total, factor, out=whole[: total.size].reshape(total.shape))
                    shape = (*total.shape[:k], *total.shape[k + 1 :])
                    total = product.sum(axis=k, out=summed[: size_of(shape)].reshape(shape))
            out[...] = total
