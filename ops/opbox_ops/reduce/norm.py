"""norm: the length of data along axes: out = sqrt(sum(data**2)) for ord 2, sum(abs(data)) for ord 1.

out has data's shape without the axes, or with 1 in their places (keepdims); without axis (1,).

Squares are of data / max(abs(data)) where those of data would overflow or vanish.

gdata = gout * data / out  (ord 2; NaN where out is 0)        gdata = gout * sign(data)  (ord 1)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from opbox_protocol.errors import ParamError, UnsupportedError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, not_bool
from ..node import Entry, Node
from ..params import Bool, Field, Float, Int, OptShape, Params
from ..registry import register, register_backward
from .axes import axes_of, kept_dims, remaining_shapes, shapes
from .exact import divide, quotient_space, sign

RealOrInt = Literal["float16", "float32", "float64", "int8", "int32", "int64"]
Order = Annotated[Literal[1, 2], BeforeValidator(lambda value: int(value) if value in ("1", "2") else value)]
OutType = Annotated[RealOrInt | None, BeforeValidator(lambda value: None if value == "None" else value)]


class NormParams(Params):
    ord: Order = Field(2, description="1: the sum of absolute values; 2: the Euclidean length.")
    axis: OptShape = Field(None, description="The axes to reduce; all when it is None or empty.")
    out_dtype: OutType = Field(None, description="The element type of the output; data's when it is None.")
    keepdims: Bool = Field(False, description="Keep the reduced axes, with length 1.")


class NumpyNormParams(Params):
    ord: Float = Field(2.0, description="1: the sum of absolute values; 2: the Euclidean length.")
    axis: OptShape = Field(None, description="The axes to reduce; all when it is None.")
    keepdims: Bool = Field(False, description="Keep the reduced axes, with length 1.")
    flag: Int = Field(-1, description="MXNet's number of the kind: -2 and 1 Frobenius', -1 of vectors by ord.")


AnyNorm = NormParams | NumpyNormParams

op = register("norm", NormParams, doc="The length of data along axes.")
backward = register_backward("_backward_norm", NormParams, outputs=("data",))
numpy_op = register("_npi_norm", NumpyNormParams, doc="The length of data along axes, of shape () along all.")
numpy_backward = register_backward("_backward_npi_norm", NumpyNormParams, outputs=("data",))

op.set_attr("FInferShape", shapes)
backward.inplace((1, 0))
numpy_backward.inplace((1, 0))


@numpy_op.infer_shape
def _(p: NumpyNormParams, ins: ShapeList, outs: ShapeList) -> None:
    euclidean = p.ord == 2 and p.flag in (-2, 1)
    if not euclidean and not (p.flag == -1 and p.ord in (1, 2)):
        raise UnsupportedError(
            f"ord {p.ord:g}, flag {p.flag}: expected the Euclidean length, or ord 1 or 2 of vectors, the ones here"
        )
    if p.axis == ():
        raise ParamError("axis: expected one axis or more, or None for all, got ()")
    remaining_shapes(p, ins, outs)


@op.infer_type
@numpy_op.infer_type
def _(p: AnyNorm, ins: TypeList, outs: TypeList) -> None:
    not_bool(ins)
    if isinstance(p, NumpyNormParams) or p.out_dtype is None:
        ins.merge(0, outs.merge(0, ins[0]))
    else:
        outs.merge(0, p.out_dtype)


@numpy_op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_npi_norm", node, [ograds[0], node.inputs[0], Entry(node)])


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_norm", node, [ograds[0], node.inputs[0], Entry(node)])


def _sum_type(dtype: Any) -> np.dtype[Any]:
    return np.dtype(np.float64) if np.dtype(dtype).kind in "iu" else accumulation_type(dtype)


def _temps(p: AnyNorm, call: CallSpec) -> list[Temp]:
    x = call.inputs[0]
    dtype = _sum_type(x.dtype)
    lengths = kept_dims(x.shape, axes_of(p, len(x.shape)))
    return [Temp(x.shape, dtype), Temp(lengths, dtype), Temp(lengths, dtype), Temp(lengths, np.bool_)]


@op.compute(temps=_temps)
@numpy_op.compute(temps=_temps)
def _(p: AnyNorm, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (x,), (parts, total, largest, missing) = ctx.xp, inputs, ctx.temp
    axes = axes_of(p, x.ndim)
    xp.copyto(parts, x)
    (xp.square if p.ord == 2 else xp.absolute)(parts, out=parts)
    xp.sum(parts, axis=axes, keepdims=True, out=total)
    if p.ord == 2:
        # On a GPU nobody waits for the sums to look at them.
        if x.size and (ctx.backend.device_type != "cpu" or _has_lost_squares(x, total)):
            xp.copyto(parts, x)
            xp.absolute(parts, out=parts)
            xp.amax(parts, axis=axes, keepdims=True, out=largest)
            xp.isfinite(largest, out=missing)
            xp.logical_not(missing, out=missing)
            xp.copyto(largest, 1, where=missing)
            xp.equal(largest, 0, out=missing)
            xp.copyto(largest, 1, where=missing)
            xp.divide(parts, largest, out=parts)
            xp.square(parts, out=parts)
            xp.sum(parts, axis=axes, keepdims=True, out=total)
            xp.sqrt(total, out=total)
            total *= largest
        else:
            xp.sqrt(total, out=total)
    xp.copyto(outputs[0], total.reshape(outputs[0].shape), casting="unsafe")


def _has_lost_squares(x: Array, total: Array) -> bool:
    """Whether squares may have overflowed, or vanished to an extent that their sums show."""
    limits = np.finfo(total.dtype)
    return not (total.min() > limits.tiny / limits.eps * (x.size // total.size) and total.max() <= limits.max)


def _back_temps(p: AnyNorm, call: CallSpec) -> list[Temp]:
    _, x, y = call.inputs
    if p.ord == 2:
        # The quotient, and what is multiplied with g, have x's shape.
        return quotient_space(x, ArraySpec(x.shape, y.dtype), call.outputs[0])
    return [Temp(x.shape, np.bool_)]


@backward.compute(temps=_back_temps)
@numpy_backward.compute(temps=_back_temps)
def _(p: AnyNorm, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (g, x, y), (out,) = inputs, outputs
    small = kept_dims(x.shape, axes_of(p, x.ndim))
    if p.ord == 2:
        divide(ctx.xp, x, y.reshape(small), out, ctx.temp)
    else:
        sign(ctx.xp, x, out, ctx.temp[0])
    ctx.xp.multiply(out, g.reshape(small), out=out, casting="unsafe")
