"""_linalg_gemm, _linalg_gemm2, _linalg_syrk: matrix products with a factor, as in BLAS level 3.

    gemm   out = alpha * op(A) @ op(B) + beta * C        A (…, m, k), B (…, k, n), C and out (…, m, n)
    gemm2  out = alpha * op(A) @ op(B)
    syrk   out = alpha * A @ A.T, or alpha * A.T @ A with transpose        A (…, m, k), out (…, m, m) or (…, k, k)

op transposes A (…, k, m) with transpose_a and B (…, n, k) with transpose_b. The batch axes are equal. `axis` is the
axis that counts the rows, in all arrays, where that is not the last but one; the last axis always counts the columns.

    gA = alpha * op(gout @ op(B).T)    gB = alpha * op(op(A).T @ gout)    gC = beta * gout
    syrk: gA = alpha * (gout + gout.T) @ A, with transpose alpha * A @ (gout + gout.T)
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import grad_use_in
from ..infer import ShapeList, canonical_axis, show_shape
from ..params import Bool, Field, Float, Int, Params
from ..registry import register, register_backward
from .dot import first_known
from .matrix import any_batch, real_types, transposed


class Gemm2Params(Params):
    transpose_a: Bool = Field(False, description="Transpose A's matrices.")
    transpose_b: Bool = Field(False, description="Transpose B's matrices.")
    alpha: Float = Field(1.0, description="Factor on the product.")
    axis: Int = Field(-2, description="The axis that counts the matrices' rows.")


class GemmParams(Params):
    transpose_a: Bool = Field(False, description="Transpose A's matrices.")
    transpose_b: Bool = Field(False, description="Transpose B's matrices.")
    alpha: Float = Field(1.0, description="Factor on the product.")
    beta: Float = Field(1.0, description="Factor on C.")
    axis: Int = Field(-2, description="The axis that counts the matrices' rows.")


class SyrkParams(Params):
    transpose: Bool = Field(False, description="A.T @ A instead of A @ A.T.")
    alpha: Float = Field(1.0, description="Factor on the product.")


gemm = register(
    "_linalg_gemm", GemmParams, inputs=("A", "B", "C"), aliases=("linalg_gemm",), doc="alpha * A @ B + beta * C."
)
gemm2 = register("_linalg_gemm2", Gemm2Params, inputs=("A", "B"), aliases=("linalg_gemm2",), doc="alpha * A @ B.")
syrk = register("_linalg_syrk", SyrkParams, inputs=("A",), aliases=("linalg_syrk",), doc="alpha * A @ A.T.")
gemm_backward = register_backward("_backward_linalg_gemm", GemmParams, outputs=("A", "B", "C"))
gemm2_backward = register_backward("_backward_linalg_gemm2", Gemm2Params, outputs=("A", "B"))
syrk_backward = register_backward("_backward_linalg_syrk", SyrkParams, outputs=("A",))
for op in (gemm, gemm2, syrk):
    op.infer_type(real_types)
    op.set_attr("FGradient", grad_use_in(op.name.replace("_linalg", "_backward_linalg")))


def _rows_last_but_one(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape with the axes `axis` and -2 exchanged (its own inverse)."""
    dims = list(shape)
    dims[axis], dims[-2] = dims[-2], dims[axis]
    return tuple(dims)


@gemm.infer_shape
@gemm2.infer_shape
def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    for i in range(len(ins)):
        any_batch(ins, i)
    present = [shape for shape in (*ins, any_batch(outs, 0)) if shape is not None]
    if not present:
        return
    ndim = len(present[0])
    if any(len(shape) != ndim for shape in present):
        shapes = ", ".join(show_shape(shape) for shape in present)
        raise ShapeError(f"expected matrices in batches of one number of dimensions, got {shapes}")
    axis = canonical_axis(p.axis, ndim)
    if axis == ndim - 1:
        raise ShapeError(f"axis: expected an axis before the last, which counts the columns, got {p.axis}")

    def matrices(shape: Any) -> tuple[int, ...]:
        return _rows_last_but_one(shape, axis) if shape is not None else (-1,) * ndim

    for _ in range(2):
        a, b, *c = (matrices(shape) for shape in (*ins, outs[0]))
        batch = tuple(first_known(*sizes) for sizes in zip(*(s[:-2] for s in (a, b, *c)), strict=True))
        m = first_known(a[-1 if p.transpose_a else -2], *(s[-2] for s in c))
        n = first_known(b[-2 if p.transpose_b else -1], *(s[-1] for s in c))
        k = first_known(a[-2 if p.transpose_a else -1], b[-1 if p.transpose_b else -2])
        ins.merge(0, _rows_last_but_one((*batch, *((k, m) if p.transpose_a else (m, k))), axis))
        ins.merge(1, _rows_last_but_one((*batch, *((n, k) if p.transpose_b else (k, n))), axis))
        out = outs.merge(0, _rows_last_but_one((*batch, m, n), axis))
        if len(ins) == 3:
            ins.merge(2, out)


@syrk.infer_shape
def _(p: SyrkParams, ins: ShapeList, outs: ShapeList) -> None:
    a, out = any_batch(ins, 0), any_batch(outs, 0)
    if a is not None:
        side = a[-1] if p.transpose else a[-2]
        out = outs.merge(0, (*a[:-2], side, side))
    if out is not None:
        side = first_known(*out[-2:])
        outs.merge(0, (*out[:-2], side, side))
        ins.merge(0, (*out[:-2], -1, side) if p.transpose else (*out[:-2], side, -1))


def _operands(p: Any, arrays: Arrays) -> list[Array]:
    """The arrays with their rows on the last axis but one."""
    axis = canonical_axis(p.axis, arrays[0].ndim)
    return [array.swapaxes(axis, -2) for array in arrays]


def _moved(p: Any, spec: ArraySpec) -> Temp:
    """A temporary array for matrices of an array like `spec`, one after the other."""
    shape, axis = list(spec.shape), canonical_axis(p.axis, len(spec.shape))
    shape[axis], shape[-2] = shape[-2], shape[axis]
    return Temp(tuple(shape), spec.dtype)


def _product(p: Any, call: CallSpec) -> list[Temp]:
    return [_moved(p, call.outputs[0])]


def _factors(p: Any, call: CallSpec) -> list[Temp]:
    return [_moved(p, spec) for spec in call.outputs[:2]]


@gemm.compute(temps=_product)
@gemm2.compute(temps=_product)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (product,) = ctx.xp, ctx.temp
    a, b, *c, out = _operands(p, [*inputs, outputs[0]])
    matmul(xp, transposed(a) if p.transpose_a else a, transposed(b) if p.transpose_b else b, product)
    if c:
        product *= p.alpha
        xp.multiply(c[0], p.beta, out=out)
        out += product
    else:
        xp.multiply(product, p.alpha, out=out)


@gemm_backward.compute(temps=_factors)
@gemm2_backward.compute(temps=_factors)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (left_product, right_product) = ctx.xp, ctx.temp
    g, a, b = _operands(p, inputs[:3])
    ga, gb = (None if out is None else _operands(p, [out])[0] for out in outputs[:2])
    if ga is not None:
        right = b if p.transpose_b else transposed(b)
        matmul(xp, *((transposed(right), transposed(g)) if p.transpose_a else (g, right)), left_product)
        xp.multiply(left_product, p.alpha, out=ga)
    if gb is not None:
        left = a if p.transpose_a else transposed(a)
        matmul(xp, *((transposed(g), transposed(left)) if p.transpose_b else (left, g)), right_product)
        xp.multiply(right_product, p.alpha, out=gb)
    if len(outputs) == 3 and outputs[2] is not None:
        xp.multiply(inputs[0], p.beta, out=outputs[2])


@syrk.compute()
def _(p: SyrkParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (a,), (out,) = inputs, outputs
    matmul(ctx.xp, *((transposed(a), a) if p.transpose else (a, transposed(a))), out)
    out *= p.alpha


def _both(p: SyrkParams, call: CallSpec) -> list[Temp]:
    return [Temp(call.inputs[0].shape, call.inputs[0].dtype)]


@syrk_backward.compute(temps=_both)
def _(p: SyrkParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g, a), (out,), (both,) = inputs, outputs, ctx.temp
    ctx.xp.add(g, transposed(g), out=both)
    both *= p.alpha
    matmul(ctx.xp, *((a, both) if p.transpose else (both, a)), out)
