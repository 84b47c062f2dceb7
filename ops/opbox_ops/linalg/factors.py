"""_linalg_gelqf, _linalg_syevd: factors of a matrix, each with two outputs.

gelqf  Q, L with A = L @ Q        A (…, m, n), m at most n; Q (…, m, n), rows orthonormal; L (…, m, m) lower triangular
syevd  U, L with A = U.T @ diag(L) @ U        A (…, n, n) symmetric, its lower triangle read; the eigenvectors are U's
       rows, (…, n, n), each with the number of the largest magnitude positive; eigenvalues L (…, n) ascending

gelqf  gA = L^-T @ (gQ + mirrored(M) @ Q), M = L.T @ gL - gQ @ Q.T, its lower triangle mirrored
syevd  gA = U.T @ (S + diag(gL)) @ U, S = the symmetric half of X / (L[i] - L[j]), X = gU @ U.T
(Seeger and others 2017, "Auto-Differentiating Linear Algebra"); equal eigenvalues have no gradient of their own
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, OpContext, Outputs
from ..gradient import grad_use_out
from ..infer import ShapeList, show_shape
from ..params import NoParams
from ..registry import register, register_backward
from .matrix import (
    ALLOCATES,
    any_batch,
    by_batches,
    mirrored,
    real_types,
    solvable,
    solve_triangular,
    square,
    transposed,
)

gelqf = register(
    "_linalg_gelqf",
    inputs=("A",),
    outputs=("output0", "output1"),
    aliases=("linalg_gelqf",),
    doc="The orthonormal Q and lower triangular L with L @ Q = A.",
)
syevd = register(
    "_linalg_syevd",
    inputs=("A",),
    outputs=("output0", "output1"),
    doc="Eigenvectors (as rows) and eigenvalues of a symmetric matrix.",
)
gelqf_backward = register_backward("_backward_linalg_gelqf", outputs=("A",))
syevd_backward = register_backward("_backward_linalg_syevd", outputs=("A",))
for op in (gelqf, syevd):
    op.infer_type(real_types)
    op.set_attr("FGradient", grad_use_out(op.name.replace("_linalg", "_backward_linalg")))
CLOSEST = {"float32": 1e-30, "float64": 1e-100}
"""Eigenvalues nearer than this count as this far apart."""


@gelqf.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = outs.merge(0, any_batch(ins, 0))
    shape = ins.merge(0, any_batch(outs, 0))
    lower = square(outs, 1)
    if shape is not None:
        lower = outs.merge(1, (*shape[:-2], shape[-2], shape[-2]))
    if lower is not None:
        shape = ins.merge(0, outs.merge(0, (*lower[:-1], -1 if shape is None else shape[-1])))
    if shape is not None and -1 < shape[-1] < shape[-2]:
        raise ShapeError(
            f"expected matrices of at least as many columns as rows, got {show_shape(shape)}", side="input", index=0
        )


@syevd.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    values = outs[1]
    outs.merge(0, square(ins, 0))
    shape = ins.merge(0, square(outs, 0))
    if values is not None:
        shape = ins.merge(0, outs.merge(0, (*values, values[-1])))
    if shape is not None:
        outs.merge(1, shape[:-1])


@gelqf.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    q, r = by_batches(ctx.xp, ctx.xp.linalg.qr, transposed(inputs[0]))
    for out, factor in zip(outputs, (q, r), strict=True):
        if out is not None:
            out[...] = transposed(factor)


@gelqf_backward.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gq, gl, q, lower = inputs
    middle = mirrored(ctx.xp, transposed(lower) @ gl - gq @ transposed(q))
    outputs[0][...] = solve_triangular(ctx, lower, gq + middle @ q, True, True)


@syevd.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    with solvable("matrices of finite numbers whose eigenvalues can be computed"):
        values, vectors = by_batches(ctx.xp, ctx.xp.linalg.eigh, inputs[0], work=10)
    if outputs[0] is not None:
        rows = transposed(vectors)
        if rows.size:
            largest = ctx.xp.abs(rows).argmax(axis=-1)[..., None]
            rows = rows * ctx.xp.where(ctx.xp.take_along_axis(rows, largest, axis=-1) < 0, -1, 1).astype(rows.dtype)
        outputs[0][...] = rows
    if outputs[1] is not None:
        outputs[1][...] = values


@syevd_backward.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    gu, gl, u, values = inputs
    xp = ctx.xp
    apart = values[..., :, None] - values[..., None, :]
    apart = xp.maximum(xp.tril(apart, -1), CLOSEST[u.dtype.name])  # only below the diagonal is it read
    x = gu @ transposed(u)
    half = xp.tril((x - transposed(x)) / (2 * apart), -1)
    middle = half + transposed(half)
    side = xp.arange(u.shape[-1])
    middle[..., side, side] = gl
    xp.matmul(transposed(u) @ middle, u, out=outputs[0])
