"""_linalg_trmm, _linalg_trsm: products with a triangular matrix, and triangular systems.

    trmm  out = alpha * op(A) @ B        with rightside alpha * B @ op(A)
    trsm  out = alpha * op(A)^-1 @ B     with rightside alpha * B @ op(A)^-1

A (…, n, n), of which only the triangle `lower` says is read; B and out (…, n, m), with rightside (…, m, n). op
transposes with `transpose`.

    trmm  gA = the triangle of op(alpha * gout @ B.T)        gB = trmm(A, gout), transposed
    trsm  gB = trsm(A, gout), transposed                     gA = the triangle of op(-gB @ (out / alpha).T)
"""

from __future__ import annotations

from typing import Any

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import backward_node, grad_use_in
from ..index.zero_weights import lost_to_zero_weights
from ..infer import ShapeList
from ..node import Entry, Node
from ..params import Bool, Field, Float, Params
from ..registry import register, register_backward
from .matrix import (
    ALLOCATES,
    any_batch,
    real_types,
    solve_triangular,
    square,
    transposed,
    triangle,
    triangle_temps,
    write_triangle,
)


class TriangularParams(Params):
    transpose: Bool = Field(False, description="Take A transposed.")
    rightside: Bool = Field(False, description="A stands at the right of B.")
    lower: Bool = Field(True, description="A's lower triangle is read; False: the upper one.")
    alpha: Float = Field(1.0, description="Factor on the result.")


trmm = register(
    "_linalg_trmm",
    TriangularParams,
    inputs=("A", "B"),
    aliases=("linalg_trmm",),
    doc="alpha * A @ B, A being triangular.",
)
trsm = register(
    "_linalg_trsm",
    TriangularParams,
    inputs=("A", "B"),
    aliases=("linalg_trsm",),
    doc="The X with A @ X = alpha * B, A being triangular.",
)
trmm_backward = register_backward("_backward_linalg_trmm", TriangularParams, outputs=("A", "B"))
trsm_backward = register_backward("_backward_linalg_trsm", TriangularParams, outputs=("A", "B"))
trmm.infer_type(real_types)
trsm.infer_type(real_types)
trmm.set_attr("FGradient", grad_use_in("_backward_linalg_trmm"))


@trsm.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_linalg_trsm", node, [ograds[0], node.inputs[0], Entry(node)])


@trmm.infer_shape
@trsm.infer_shape
def _(p: TriangularParams, ins: ShapeList, outs: ShapeList) -> None:
    out = outs.merge(0, any_batch(ins, 1))
    out = ins.merge(1, any_batch(outs, 0))
    a = square(ins, 0)
    axis = -1 if p.rightside else -2
    for _ in range(2):
        if a is not None:
            rows_columns = (-1, a[-1]) if p.rightside else (a[-1], -1)
            out = ins.merge(1, outs.merge(0, (*a[:-2], *rows_columns)))
        if out is not None:
            a = ins.merge(0, (*out[:-2], out[axis], out[axis]))
            a = square(ins, 0)


def _part(p: TriangularParams, call: CallSpec) -> list[Temp]:
    """A's triangle."""
    a = call.inputs[-2]
    return [*triangle_temps(a), Temp(a.shape, a.dtype)]


@trmm.compute(temps=_part)
def _(p: TriangularParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (a, b), (out,), (*scratch, part) = inputs, outputs, ctx.temp
    write_triangle(ctx.xp, a, p.lower, scratch, part)
    part = transposed(part) if p.transpose else part
    _multiply(ctx.xp, p, part, b, p.lower is not p.transpose, out)


@trmm_backward.compute(temps=_part)
def _(p: TriangularParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (g, a, b), (ga, gb), (*scratch, part) = ctx.xp, inputs, outputs, ctx.temp
    if ga is not None:
        # The product is made whole before a triangle of it is taken.
        matmul(xp, *((transposed(b), g) if p.rightside else (g, transposed(b))), part)
        write_triangle(xp, transposed(part) if p.transpose else part, p.lower, scratch, ga)
        ga *= p.alpha
    if gb is not None:
        write_triangle(xp, a, p.lower, scratch, part)
        part = part if p.transpose else transposed(part)
        _multiply(xp, p, part, g, p.lower is p.transpose, gb)


def _multiply(xp: Any, p: TriangularParams, part: Array, b: Array, lower: bool, out: Array) -> None:
    """out = alpha * part @ b, or alpha * b @ part, of which the other triangle is zero; see `index.zero_weights`."""
    matmul(xp, *((b, part) if p.rightside else (part, b)), out)
    if lost_to_zero_weights(xp, out):
        left, right, rows = (transposed(part), transposed(b), transposed(out)) if p.rightside else (part, b, out)
        lower = lower is not p.rightside
        for i in range(left.shape[-1]):
            terms = slice(0, i + 1) if lower else slice(i, None)
            rows[..., i, :] = (left[..., i, None, terms] @ right[..., terms, :])[..., 0, :]
    out *= p.alpha


def _solved(p: TriangularParams, ctx: OpContext, a: Array, b: Array, transpose: bool) -> Array:
    """op(A)^-1 @ b, or b @ op(A)^-1; without the factor."""
    if p.rightside:
        return transposed(solve_triangular(ctx, a, transposed(b), p.lower, not transpose))
    return solve_triangular(ctx, a, b, p.lower, transpose)


@trsm.compute(allocates=ALLOCATES)
def _(p: TriangularParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.multiply(_solved(p, ctx, inputs[0], inputs[1], p.transpose), p.alpha, out=outputs[0])


@trsm_backward.compute(allocates=ALLOCATES)
def _(p: TriangularParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g, a, out), (ga, gb) = inputs, outputs
    solved = _solved(p, ctx, a, g, not p.transpose)
    if gb is not None:
        ctx.xp.multiply(solved, p.alpha, out=gb)
    if ga is not None:
        product = transposed(out) @ solved if p.rightside else solved @ transposed(out)
        ga[...] = -triangle(ctx.xp, transposed(product) if p.transpose else product, p.lower)
