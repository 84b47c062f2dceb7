"""Cast: out = data in another element type; gdata = gout in data's.

A real number becomes an integer by truncation towards zero; what does not fit wraps as the processor converts it. Any
number but 0 becomes True, NaN included.
"""

from __future__ import annotations

from ..compute import Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import grad_use_none
from ..infer import TypeList, all_same_shape
from ..params import AnyDType, Field, Params
from ..registry import register, register_backward
from .expression import Expression


class CastParams(Params):
    dtype: AnyDType = Field(description="The element type of the output.")


op = register("Cast", CastParams, aliases=("cast",))
backward = register_backward("_backward_cast", CastParams, outputs=("data",))

op.set_attr("FInferShape", all_same_shape)
op.set_attr("FGradient", grad_use_none("_backward_cast"))
op.set_attr("FExpression", Expression("x", ("x",)))
op.inplace((0, 0))
backward.inplace((0, 0))


@op.infer_type
def _(p: CastParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, p.dtype)


@op.compute()
@backward.compute()
def _(p: CastParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    (x,), (out,) = inputs, outputs
    if req[0] == OpReq.ADD:
        assign(out, req[0], x.astype(out.dtype))
    elif req[0] != OpReq.NULL:
        ctx.xp.copyto(out, x, casting="unsafe")
