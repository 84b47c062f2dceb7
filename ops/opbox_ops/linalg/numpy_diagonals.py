"""mx.np's diagonals and triangles.

_np_diag       of a vector the square matrix with it on diagonal k, of a matrix its diagonal k
_np_diagflat   the square matrix with all of data on diagonal k
_np_diagonal   the diagonal of the matrices on axis1 and axis2, which becomes the last axis
_np_trace      its sum, without these axes
_npi_tril      data, and 0 above diagonal k of its last two axes; of a vector the matrix with it in every row

data (…, n, m), a diagonal of k elements -> (…, k).

A diagonal beyond the matrix has no elements. gdata is gout where an element went, elsewhere 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_use_none, linear_gradient
from ..index.counting import count_up
from ..infer import ShapeList, canonical_axis, known, numeric_types, show_shape, size_of
from ..params import Field, Int, Params
from ..registry import Op, register, register_backward


class DiagonalNumberParams(Params):
    k: Int = Field(0, description="Which diagonal: 0 the main one, negative below it, positive above it.")


class DiagonalAxesParams(Params):
    offset: Int = Field(0, description="Which diagonal: 0 the main one, negative below it, positive above it.")
    axis1: Int = Field(0, description="The axis that counts the rows.")
    axis2: Int = Field(1, description="The axis that counts the columns.")


def _length(rows: int, columns: int, k: int) -> int:
    """How many elements diagonal k has, -1 where it is unknown."""
    return -1 if min(rows, columns) < 0 else max(min(rows + min(k, 0), columns - max(k, 0)), 0)


def _diagonal(xp: Any, array: Array, k: int, axis1: int = -2, axis2: int = -1) -> Array:
    """Diagonal k as a view, its elements along the last axis."""
    matrices = xp.moveaxis(array, (axis1, axis2), (-2, -1))
    length = _length(matrices.shape[-2], matrices.shape[-1], k)
    part = matrices[..., max(-k, 0) :, max(k, 0) :] if length else matrices[..., :0, :0]
    steps = (*part.strides[:-2], part.strides[-2] + part.strides[-1])
    return xp.lib.stride_tricks.as_strided(part, (*part.shape[:-2], length), steps)


def _linear(op: Op, name: str) -> Op:
    """The backward operator of a linear operator."""
    backward = register_backward(name, op.params)
    op.set_attr("FGradient", grad_use_none(name))
    backward.set_attr("FGradient", linear_gradient())
    return backward


diag = register("_np_diag", DiagonalNumberParams, doc="A matrix's diagonal, or the matrix with a vector on a diagonal.")
diagflat = register("_np_diagflat", DiagonalNumberParams, doc="The matrix with all of data on a diagonal.")
diagonal = register("_np_diagonal", DiagonalAxesParams, doc="The diagonal of the matrices on two axes.")
trace = register("_np_trace", DiagonalAxesParams, doc="The sum of the diagonal of the matrices on two axes.")
tril = register("_npi_tril", DiagonalNumberParams, doc="The lower triangle of matrices, and 0 above it.")
diag_backward = _linear(diag, "_backward_np_diag")
diagflat_backward = _linear(diagflat, "_backward_np_diagflat")
diagonal_backward = _linear(diagonal, "_backward_np_diagonal")
trace_backward = _linear(trace, "_backward_np_trace")
tril_backward = _linear(tril, "_backward_npi_tril")


@diag.infer_shape
def _(p: DiagonalNumberParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins.rank(0, 1, 2)
    if data is None:
        return
    if len(data) == 1:
        side = data[0] + abs(p.k) if data[0] >= 0 else -1
        outs.merge(0, (side, side))
    else:
        outs.merge(0, (_length(data[0], data[1], p.k),))


@diag.compute()
def _(p: DiagonalNumberParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    if data.ndim == 1:
        out.fill(0)
        ctx.xp.copyto(_diagonal(ctx.xp, out, p.k), data)
    else:
        ctx.xp.copyto(out, _diagonal(ctx.xp, data, p.k))


@diag_backward.compute()
def _(p: DiagonalNumberParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g,), (out,) = inputs, outputs
    if out.ndim == 1:
        ctx.xp.copyto(out, _diagonal(ctx.xp, g, p.k))
    else:
        out.fill(0)
        ctx.xp.copyto(_diagonal(ctx.xp, out, p.k), g)


@diagflat.infer_shape
def _(p: DiagonalNumberParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is not None:
        side = size_of(data) + abs(p.k) if known(data) else -1
        outs.merge(0, (side, side))


@diagflat.compute()
def _(p: DiagonalNumberParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0].fill(0)
    ctx.xp.copyto(_diagonal(ctx.xp, outputs[0], p.k), inputs[0].reshape(-1))


@diagflat_backward.compute()
def _(p: DiagonalNumberParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.copyto(outputs[0].reshape(-1), _diagonal(ctx.xp, inputs[0], p.k))


def _rest(p: DiagonalAxesParams, ins: ShapeList) -> tuple[tuple[int, ...], int] | None:
    """The sizes of the other axes, and how many elements the diagonal has."""
    data = ins[0]
    if data is None:
        return None
    if len(data) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {show_shape(data)}", side="input", index=0)
    first, second = canonical_axis(p.axis1, len(data), "axis1"), canonical_axis(p.axis2, len(data), "axis2")
    if first == second:
        raise ShapeError(f"axis1, axis2: expected two axes, got {p.axis1} and {p.axis2}, which are one")
    rest = tuple(size for axis, size in enumerate(data) if axis not in (first, second))
    return rest, _length(data[first], data[second], p.offset)


@diagonal.infer_shape
def _(p: DiagonalAxesParams, ins: ShapeList, outs: ShapeList) -> None:
    sizes = _rest(p, ins)
    if sizes is not None:
        outs.merge(0, (*sizes[0], sizes[1]))


@trace.infer_shape
def _(p: DiagonalAxesParams, ins: ShapeList, outs: ShapeList) -> None:
    sizes = _rest(p, ins)
    if sizes is not None:
        outs.merge(0, sizes[0])


@diagonal.compute()
def _(p: DiagonalAxesParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.copyto(outputs[0], _diagonal(ctx.xp, inputs[0], p.offset, p.axis1, p.axis2))


@diagonal_backward.compute()
def _(p: DiagonalAxesParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0].fill(0)
    ctx.xp.copyto(_diagonal(ctx.xp, outputs[0], p.offset, p.axis1, p.axis2), inputs[0])


trace.set_attr("FInferType", numeric_types)


@trace.compute(temps=lambda p, call: [Temp(call.outputs[0].shape, accumulation_type(call.outputs[0].dtype))])
def _(p: DiagonalAxesParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (total,) = ctx.temp
    line = _diagonal(ctx.xp, inputs[0], p.offset, p.axis1, p.axis2)
    ctx.xp.sum(line, axis=-1, dtype=total.dtype, out=total)
    ctx.xp.copyto(outputs[0], total, casting="unsafe")


@trace_backward.compute()
def _(p: DiagonalAxesParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    outputs[0].fill(0)
    ctx.xp.copyto(_diagonal(ctx.xp, outputs[0], p.offset, p.axis1, p.axis2), inputs[0][..., None])


@tril.infer_shape
def _(p: DiagonalNumberParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if not data:
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    outs.merge(0, data * 2 if len(data) == 1 else data)


def _tril_temps(matrices: int) -> Any:
    def rule(p: DiagonalNumberParams, call: CallSpec) -> Sequence[Temp]:
        """The numbers of rows and columns, whether an element is above the diagonal; a vector's gradient is summed."""
        full = (*call.inputs, *call.outputs)[matrices]
        rows, columns = full.shape[-2:]
        scratch = [Temp((rows,), "int64"), Temp((columns,), "int64"), Temp((rows, columns), "bool")]
        small = call.outputs[0]
        if len(small.shape) < len(full.shape):
            wide = accumulation_type(small.dtype)
            scratch += [Temp(full.shape, wide), Temp(small.shape, wide)]
        return scratch

    return rule


def _above(p: DiagonalNumberParams, ctx: OpContext) -> Array:
    """Whether an element is above the diagonal."""
    xp, (rows, columns, above) = ctx.xp, ctx.temp[:3]
    count_up(xp, rows)
    count_up(xp, columns)
    rows += p.k
    return xp.greater(columns, rows[:, None], out=above)


@tril.compute(temps=_tril_temps(1))
def _(p: DiagonalNumberParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.copyto(outputs[0], inputs[0])
    ctx.xp.copyto(outputs[0], outputs[0].dtype.type(0), where=_above(p, ctx))


@tril_backward.compute(temps=_tril_temps(0))
def _(p: DiagonalNumberParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (g,), (out,) = ctx.xp, inputs, outputs
    above = _above(p, ctx)
    if out.ndim == g.ndim:
        xp.copyto(out, g)
        xp.copyto(out, out.dtype.type(0), where=above)
        return
    masked, total = ctx.temp[3:]
    xp.copyto(masked, g)
    xp.copyto(masked, masked.dtype.type(0), where=above)
    xp.sum(masked, axis=0, out=total)
    xp.copyto(out, total, casting="unsafe")
