"""_linalg_potrf, _linalg_potri, _linalg_sumlogdiag: Cholesky's factor of a symmetric positive definite matrix.

    potrf       out = L, lower triangular, with L @ L.T = A; only A's lower triangle is read
    potri       out = (A @ A.T)^-1, A being a factor L as potrf gives it
    sumlogdiag  out = sum(log(diagonal(A))): half the logarithm of the determinant of A @ A.T

A and out (…, n, n), n at least 1; sumlogdiag's out is (…), of a single matrix (1,).

    potrf       gA = L^-T @ mirrored(L.T @ gout) @ L^-1 / 2, the lower triangle mirrored: symmetric     (Murray 2016)
    potri       gA = the lower triangle of -out @ (gout + gout.T) @ L^-T
    sumlogdiag  gA = gout / A on the diagonal, 0 beside it
"""

from __future__ import annotations

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node, grad_use_in
from ..infer import ShapeList, size_of
from ..node import Entry, Node
from ..params import NoParams
from ..registry import register, register_backward
from .matrix import (
    ALLOCATES,
    batch_shape,
    by_batches,
    mirrored,
    real_types,
    same_squares,
    solvable,
    solve_triangular,
    square,
    transposed,
)

potrf = register(
    "_linalg_potrf", inputs=("A",), aliases=("linalg_potrf", "_npi_cholesky"), doc="The L with L @ L.T = A (Cholesky)."
)
potri = register("_linalg_potri", inputs=("A",), aliases=("linalg_potri",), doc="The inverse of A @ A.T.")
sumlogdiag = register(
    "_linalg_sumlogdiag", inputs=("A",), aliases=("linalg_sumlogdiag",), doc="The sum of the diagonal's logarithms."
)
potrf_backward = register_backward("_backward_linalg_potrf", outputs=("A",))
potri_backward = register_backward("_backward_linalg_potri", outputs=("A",))
sumlogdiag_backward = register_backward("_backward_linalg_sumlogdiag", outputs=("A",))
potrf.infer_shape(same_squares)
potri.infer_shape(same_squares)
for op in (potrf, potri, sumlogdiag):
    op.infer_type(real_types)
sumlogdiag.set_attr("FGradient", grad_use_in("_backward_linalg_sumlogdiag"))


@sumlogdiag.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = square(ins, 0)
    if shape is not None:
        batch = outs.merge(0, batch_shape(shape))
        if batch is not None and len(shape) > 2:
            ins.merge(0, (*batch, *shape[-2:]))


@potrf.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_linalg_potrf", node, [ograds[0], Entry(node)])


@potri.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_linalg_potri", node, [ograds[0], node.inputs[0], Entry(node)])


@potrf.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    with solvable("symmetric positive definite matrices"):
        outputs[0][...] = by_batches(ctx.xp, ctx.xp.linalg.cholesky, inputs[0], work=1)[0]


@potrf_backward.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g, factor), (out,) = inputs, outputs
    middle = mirrored(ctx.xp, transposed(factor) @ g)
    left = solve_triangular(ctx, factor, middle, True, True)
    right = solve_triangular(ctx, factor, transposed(left), True, True)
    ctx.xp.multiply(transposed(right), 0.5, out=out)


@potri.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (factor,), (out,) = inputs, outputs
    one = ctx.xp.broadcast_to(ctx.xp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    inverse = solve_triangular(ctx, factor, one, True)
    ctx.xp.matmul(transposed(inverse), inverse, out=out)


@potri_backward.compute(allocates=ALLOCATES)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g, factor, inverse), (out,) = inputs, outputs
    # x @ L^-T is (L^-1 @ x.T).T
    product = transposed(solve_triangular(ctx, factor, transposed(inverse @ (g + transposed(g))), True))
    ctx.xp.negative(ctx.xp.tril(product), out=out)


def _diagonals(matrices: Array) -> Array:
    """The diagonals (m, n) of matrices (…, n, n), as a view."""
    n = matrices.shape[-1]
    return matrices.reshape(size_of(matrices.shape[:-2]), n * n)[:, :: n + 1]


def _logarithms(p: NoParams, call: CallSpec) -> list[Temp]:
    shape = call.inputs[0].shape
    return [Temp((size_of(shape[:-2]), shape[-1]), call.inputs[0].dtype)]


@sumlogdiag.compute(temps=_logarithms)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (a,), (out,), (logarithms,) = inputs, outputs, ctx.temp
    ctx.xp.log(_diagonals(a), out=logarithms)
    logarithms.sum(axis=-1, out=out.reshape(-1))


@sumlogdiag_backward.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g, a), (out,) = inputs, outputs
    out.fill(0)
    ctx.xp.divide(g.reshape(-1, 1), _diagonals(a), out=_diagonals(out))
