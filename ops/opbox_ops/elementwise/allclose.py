"""_contrib_allclose: 1 where |a - b| <= atol + rtol * |b| everywhere, else 0; one number of type uint8, shape ().

Infinities are close to themselves, and NaN to NaN with equal_nan. There is no gradient.
"""

from __future__ import annotations

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import ShapeList, TypeList, all_same_shape, all_same_type
from ..params import Bool, Field, Float, Params
from ..registry import register


class AllCloseParams(Params):
    rtol: Float = Field(1e-5, description="Tolerance relative to b.")
    atol: Float = Field(1e-8, description="Absolute tolerance.")
    equal_nan: Bool = Field(True, description="Whether NaN is close to NaN.")


op = register("_contrib_allclose", AllCloseParams, inputs=("a", "b"), doc="Whether two arrays are nearly equal.")


@op.infer_shape
def _(p: AllCloseParams, ins: ShapeList, outs: ShapeList) -> None:
    all_same_shape(p, ins, ShapeList([], "output"))
    outs.merge(0, ())


@op.infer_type
def _(p: AllCloseParams, ins: TypeList, outs: TypeList) -> None:
    all_same_type(p, ins, TypeList([], "output"))
    outs.merge(0, "uint8")


def _temps(p: AllCloseParams, call: CallSpec) -> list[Temp]:
    """a, b and the distance that is allowed as real numbers, and three answers for each pair."""
    a = call.inputs[0]
    real = "float32" if a.dtype.kind == "V" else a.dtype if a.dtype.kind == "f" else "float64"
    return [Temp(a.shape, real)] * 3 + [Temp(a.shape, "bool")] * 3


@op.compute(temps=_temps)
def _(p: AllCloseParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (a, b, allowed, close, other, finite) = ctx.xp, ctx.temp
    xp.copyto(a, inputs[0], casting="unsafe")
    xp.copyto(b, inputs[1], casting="unsafe")
    xp.absolute(b, out=allowed)
    allowed *= p.rtol
    allowed += p.atol
    if p.equal_nan:
        xp.isnan(a, out=close)
        close &= xp.isnan(b, out=other)
        close |= xp.equal(a, b, out=other)
    else:
        xp.equal(a, b, out=close)
    a -= b
    xp.less_equal(xp.absolute(a, out=a), allowed, out=other)
    other &= xp.isfinite(b, out=finite)
    close |= other
    xp.all(close, out=outputs[0].view("bool"))
