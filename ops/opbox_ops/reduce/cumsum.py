"""cumsum: running sums along an axis, of a's shape; without an axis of the flattened array.

a (…, n, …), axis -> out (…, n, …) with out[i] = a[0] + … + a[i]; without axis (elements,).
ga = gout, added up from the other end
"""

from __future__ import annotations

from typing import Any, Literal

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_use_none, linear_gradient
from ..infer import ShapeList, TypeList, known, size_of
from ..params import Field, OptInt, Params
from ..registry import register, register_backward


class CumsumParams(Params):
    axis: OptInt = Field(None, description="The axis, counted from the front; the flattened array when it is None.")
    dtype: Literal["None", "float16", "float32", "float64", "int32", "int64", "int8"] | None = Field(
        None, description="The type of the sums; by default a's, and int64 for bool."
    )


op = register("_np_cumsum", CumsumParams, inputs=("a",), aliases=("cumsum",))
backward = register_backward("_backward_np_cumsum", CumsumParams, outputs=("a",))
op.set_attr("FGradient", grad_use_none(backward.name))
backward.set_attr("FGradient", linear_gradient())


@op.infer_shape
def _(p: CumsumParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if p.axis is None:
        outs.merge(0, (size_of(data) if data is not None and known(data) else -1,))
        return
    shape = ins.merge(0, outs.merge(0, data))
    if shape is not None and not 0 <= p.axis < len(shape):
        raise ShapeError(f"axis: expected between 0 and {len(shape) - 1} for {len(shape)} dimensions, got {p.axis}")


@op.infer_type
def _(p: CumsumParams, ins: TypeList, outs: TypeList) -> None:
    if p.dtype not in (None, "None"):
        outs.merge(0, p.dtype)
    elif ins[0] is not None:
        outs.merge(0, "int64" if ins[0].kind == "b" else ins[0])
    elif outs[0] is not None and outs[0].name != "int64":
        ins.merge(0, outs[0])


def _row(p: CumsumParams, array: Array) -> tuple[Array, int]:
    """The array and the axis that is summed along: the flattened one without an axis."""
    return (array.reshape(-1), 0) if p.axis is None else (array, p.axis)


def _in(array: ArraySpec, total: Any) -> list[Temp]:
    """A copy of an array in the type that is added up in, where that is another."""
    return [Temp(array.shape, total)] if array.dtype != total else []


def _temps(p: CumsumParams, call: CallSpec) -> list[Temp]:
    """The input and the output in the type that is added up in."""
    total = accumulation_type(call.outputs[0].dtype)
    return [*_in(call.inputs[0], total), *_in(call.outputs[0], total)]


def _backward_temps(p: CumsumParams, call: CallSpec) -> list[Temp]:
    total = accumulation_type(call.inputs[0].dtype)
    return [*_in(call.inputs[0], total), *_in(call.outputs[0], total)]


def _sum_up(p: CumsumParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, backwards: bool) -> None:
    xp, (data,), (out,), temps = ctx.xp, inputs, outputs, list(ctx.temp)
    total = accumulation_type(data.dtype if backwards else out.dtype)
    if data.dtype != total:
        copy = temps.pop(0)
        xp.copyto(copy, data, casting="unsafe")
        data = copy
    sums = out if out.dtype == total else temps.pop(0)
    (row, axis), (target, _) = _row(p, data), _row(p, sums)
    if backwards:
        row, target = xp.flip(row, axis), xp.flip(target, axis)
    xp.cumsum(row, axis=axis, dtype=total, out=target)
    if sums is not out:
        xp.copyto(out, sums.reshape(out.shape), casting="unsafe")


@op.compute("cpu", temps=_temps)
def _(p: CumsumParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _sum_up(p, ctx, inputs, outputs, backwards=False)


@backward.compute("cpu", temps=_backward_temps)
def _(p: CumsumParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _sum_up(p, ctx, inputs, outputs, backwards=True)


_LIBRARY = "the library's cumsum allocates its scratch"


@op.compute("gpu", allocates=_LIBRARY)
def _(p: CumsumParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    row, axis = _row(p, inputs[0])
    total = accumulation_type(outputs[0].dtype)
    outputs[0][...] = ctx.xp.cumsum(row.astype(total), axis=axis)


@backward.compute("gpu", allocates=_LIBRARY)
def _(p: CumsumParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, out = ctx.xp, outputs[0]
    row, axis = _row(p, inputs[0])
    sums = xp.cumsum(xp.flip(row.astype(accumulation_type(row.dtype)), axis), axis=axis)
    out[...] = xp.flip(sums, axis).reshape(out.shape)
