"""Cast: out = data in another element type; gdata = gout in data's.

data and out have one shape. A real number becomes an integer by truncation towards zero; what does not fit wraps as the
processor converts it. Any number but 0 becomes True, NaN included.
"""

from __future__ import annotations

from ..expression.gradient import pointwise_backward
from ..expression.language import Expression
from ..expression.operators import pointwise
from ..expression.pointwise import Pointwise, fixed
from ..gradient import grad_use_none
from ..infer import TypeList, all_same_shape, summary
from ..params import AnyDType, Field, Params
from ..registry import register, register_backward


class CastParams(Params):
    dtype: AnyDType = Field(description="The element type of the output.")


op = register("Cast", CastParams, aliases=("cast",))
backward = register_backward("_backward_cast", CastParams, outputs=("data",))

op.set_attr("FInferShape", all_same_shape)
op.set_attr("FGradient", grad_use_none("_backward_cast"))
op.inplace((0, 0))
backward.inplace((0, 0))


@op.infer_type
@summary("given")
def _(p: CastParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, p.dtype)


_SAME = fixed(Pointwise(("x",), (Expression("x", ("x",)),)))
pointwise(op, _SAME)
pointwise_backward(backward, _SAME)
