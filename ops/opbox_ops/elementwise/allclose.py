"""_contrib_allclose: 1 where |a - b| <= atol + rtol * |b| everywhere, else 0; one number of type uint8, shape ().

Infinities are close to themselves, and NaN to NaN with equal_nan. There is no gradient.
"""

from __future__ import annotations

from ..compute import Arrays, OpContext, Outputs
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


@op.compute(allocates="the comparison of each pair, before all are put together")
def _(p: AllCloseParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    a, b = (array.astype("float32") if array.dtype.kind == "V" else array for array in inputs)
    outputs[0][...] = ctx.xp.isclose(a, b, p.rtol, p.atol, p.equal_nan).all()
