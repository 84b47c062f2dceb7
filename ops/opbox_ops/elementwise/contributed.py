"""_contrib_quadratic, _contrib_gradientmultiplier, _contrib_div_sqrt_dim: small functions of one array.

    quadratic           out = a * data^2 + b * data + c        gdata = gout * (2 * a * data + b)
    gradientmultiplier  out = data                             gdata = scalar * gout
    div_sqrt_dim        out = data / sqrt(k), k the size of data's last axis; gdata = gout / sqrt(k)

data and out have one shape. On integers quadratic is computed in float64 and truncated, and div_sqrt_dim divides by the
truncated root.
"""

from __future__ import annotations

from math import isqrt, sqrt, trunc
from typing import Any

import numpy as np

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_use_in, grad_use_none
from ..infer import ShapeList, all_same_shape, numeric_types
from ..params import Bool, Field, Float, NoParams, Params
from ..registry import register, register_backward


class QuadraticParams(Params):
    a: Float = Field(0.0, description="Factor on the square.")
    b: Float = Field(0.0, description="Factor on data.")
    c: Float = Field(0.0, description="The constant.")


class MultiplierParams(Params):
    scalar: Float = Field(1.0, description="Factor on the gradient.")
    is_int: Bool = Field(True, description="Accepted; the gradient keeps its type.")


quadratic = register("_contrib_quadratic", QuadraticParams, doc="a * data^2 + b * data + c").inplace((0, 0))
quadratic_backward = register_backward("_backward_contrib_quadratic", QuadraticParams)
multiplier = register(
    "_contrib_gradientmultiplier", MultiplierParams, doc="data; its gradient is multiplied by scalar."
)
multiplier.inplace((0, 0)).set_attr("TIsView", True)
multiplier_backward = register_backward("_backward_contrib_gradientmultiplier", MultiplierParams).inplace((0, 0))
div_sqrt_dim = register("_contrib_div_sqrt_dim", doc="data over the root of its last axis' size.").inplace((0, 0))
div_backward = register_backward("_backward_contrib_div_sqrt_dim").inplace((0, 0))
for op in (quadratic, multiplier, div_sqrt_dim):
    op.infer_type(numeric_types)
quadratic.infer_shape(all_same_shape)
multiplier.infer_shape(all_same_shape)
quadratic.set_attr("FGradient", grad_use_in("_backward_contrib_quadratic"))
multiplier.set_attr("FGradient", grad_use_none("_backward_contrib_gradientmultiplier"))
div_sqrt_dim.set_attr("FGradient", grad_use_none("_backward_contrib_div_sqrt_dim"))


@div_sqrt_dim.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    all_same_shape(p, ins, outs)
    if ins[0] == ():
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)


def _computed_in(array: Any) -> Any:
    """The type that a polynomial of the array is computed in."""
    return {"f": array.dtype, "i": np.float64, "u": np.float64}.get(array.dtype.kind, np.float32)


def _wide(p: QuadraticParams, call: CallSpec) -> list[Temp]:
    return [Temp(call.inputs[0].shape, _computed_in(call.inputs[0]))]


def _slope(p: QuadraticParams, call: CallSpec) -> list[Temp]:
    return [Temp(call.inputs[1].shape, call.inputs[1].dtype)]


@quadratic.compute(temps=_wide)
def _(p: QuadraticParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (value,) = inputs, ctx.temp
    ctx.xp.multiply(data, p.a, out=value, dtype=value.dtype)
    value += p.b
    value *= data
    value += p.c
    ctx.xp.copyto(outputs[0], value, casting="unsafe")


@quadratic_backward.compute(temps=_slope)
def _(p: QuadraticParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (gout, data), (slope,) = inputs, ctx.temp
    ctx.xp.multiply(data, 2 * p.a, out=slope)
    slope += p.b
    ctx.xp.multiply(gout, slope, out=outputs[0])


@multiplier.compute()
def _(p: MultiplierParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not inputs[0]:
        outputs[0][...] = inputs[0]


@multiplier_backward.compute()
def _(p: MultiplierParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    whole = inputs[0].dtype.kind in "iu"
    ctx.xp.multiply(inputs[0], trunc(p.scalar) if whole else p.scalar, out=outputs[0])


def _remainder(p: NoParams, call: CallSpec) -> list[Temp]:
    data = call.inputs[0]
    return [Temp(data.shape, data.dtype)] if data.dtype.kind in "iu" else []


@div_sqrt_dim.compute(temps=_remainder)
@div_backward.compute(temps=_remainder)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (out,) = inputs, outputs
    size = data.shape[-1]
    if data.dtype.kind in "iu":
        # Without a remainder the division is exact; taking it off first truncates towards zero, as C does.
        divisor = max(isqrt(size), 1)
        (whole,) = ctx.temp
        ctx.xp.fmod(data, data.dtype.type(divisor), out=whole)
        ctx.xp.subtract(data, whole, out=whole)
        ctx.xp.floor_divide(whole, data.dtype.type(divisor), out=out)
    else:
        ctx.xp.divide(data, data.dtype.type(sqrt(max(size, 1))), out=out)
