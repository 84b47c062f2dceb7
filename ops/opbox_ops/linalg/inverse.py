"""_linalg_inverse, _linalg_det, _linalg_slogdet: a square matrix' inverse and determinant.

inverse  out = A^-1                              A and out (…, n, n)
det      out = det(A)                            out (…), of a single matrix (1,)
slogdet  sign(det(A)), log(abs(det(A)))          of a singular matrix 0 and -inf

inverse  gA = -out.T @ gout @ out.T
det      gA = gout * out * A^-T, 0 where out is 0
slogdet  gA = glog * A^-T, 0 where the sign is 0; the sign has no gradient
"""

from __future__ import annotations

import numpy as np

from ..compute import Array, Arrays, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import backward_node
from ..infer import ShapeList
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register, register_backward
from . import elimination
from .matrix import ALLOCATES, batch_shape, by_batches, real_types, same_squares, solvable, square, transposed

inverse = register("_linalg_inverse", inputs=("A",), aliases=("linalg_inverse",), doc="The inverse of square matrices.")
det = register("_linalg_det", inputs=("A",), aliases=("linalg_det",), doc="The determinant of square matrices.")
slogdet = register(
    "_linalg_slogdet",
    inputs=("A",),
    outputs=("output0", "output1"),
    aliases=("linalg_slogdet",),
    doc="The determinant's sign, and the logarithm of its magnitude.",
)
inverse_backward = register_backward("_backward_linalg_inverse", outputs=("A",))
det_backward = register_backward("_backward_linalg_det", outputs=("A",))
slogdet_backward = register_backward("_backward_linalg_slogdet", outputs=("A",))
for op in (inverse, det, slogdet):
    op.infer_type(real_types)
inverse.infer_shape(same_squares)


@det.infer_shape
@slogdet.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = square(ins, 0)
    if shape is not None:
        matrix = shape[-2:]
        for i in range(len(outs)):
            batch = outs.merge(i, batch_shape(shape))
            if batch is not None and len(shape) > 2:
                shape = (*batch, *matrix)
        ins.merge(0, shape)


@inverse.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_linalg_inverse", node, [ograds[0], Entry(node)])


@det.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_linalg_det", node, [ograds[0], node.inputs[0], Entry(node)])


@slogdet.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_linalg_slogdet", node, [ograds[1], node.inputs[0], Entry(node)])


@inverse.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    with solvable("invertible matrices"):
        outputs[0][...] = by_batches(ctx.xp, ctx.xp.linalg.inv, inputs[0])[0]


@inverse_backward.compute(temps=lambda p, call: [Temp(call.inputs[0].shape, call.inputs[0].dtype)])
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g, out), (product,) = inputs, ctx.temp
    matmul(ctx.xp, transposed(out), g, product)
    matmul(ctx.xp, product, transposed(out), outputs[0])
    ctx.xp.negative(outputs[0], out=outputs[0])


def _is_long(ctx: OpContext, a: Array) -> bool:
    """Return whether the matrices are so large that LAPACK would delay other sessions."""
    return ctx.xp is np and a.shape[-1] >= elimination.LARGE


@det.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    a, out = inputs[0], outputs[0].reshape(inputs[0].shape[:-2])
    if not _is_long(ctx, a):
        out[...] = by_batches(ctx.xp, ctx.xp.linalg.det, a)[0]
        return
    for at in np.ndindex(out.shape):
        sign, logarithm = elimination.slogdet(a[at])
        out[at] = sign * np.exp(logarithm)


@slogdet.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    a, targets = inputs[0], [None if out is None else out.reshape(inputs[0].shape[:-2]) for out in outputs]
    if not _is_long(ctx, a):
        for out, value in zip(targets, by_batches(ctx.xp, ctx.xp.linalg.slogdet, a), strict=True):
            if out is not None:
                out[...] = value
        return
    for at in np.ndindex(a.shape[:-2]):
        for out, number in zip(targets, elimination.slogdet(a[at]), strict=True):
            if out is not None:
                out[at] = number


def _where_regular(ctx: OpContext, a: Array, factor: Array, regular: Array, out: Array) -> None:
    """out = factor * A^-T, and 0 for the matrices that are not `regular`."""
    shape = (*a.shape[:-2], 1, 1)
    regular = regular.reshape(shape)
    one = ctx.xp.eye(a.shape[-1], dtype=a.dtype)
    with solvable("invertible matrices"):
        (inverted,) = by_batches(ctx.xp, ctx.xp.linalg.inv, ctx.xp.where(regular, a, one))
    out[...] = ctx.xp.where(regular, factor.reshape(shape) * transposed(inverted), 0)


@det_backward.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    g, a, value = inputs
    _where_regular(ctx, a, g * value, value != 0, outputs[0])


@slogdet_backward.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    g, a, sign = inputs
    _where_regular(ctx, a, g, sign != 0, outputs[0])
