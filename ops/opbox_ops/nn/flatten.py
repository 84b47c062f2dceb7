"""Flatten: out (batch, prod(rest)) holds data (batch, *rest) in the same order; gdata is gout in data's shape."""

from __future__ import annotations

from ..gradient import grad_use_none
from ..infer import ShapeList, size_of
from ..params import NoParams
from ..registry import register, register_backward
from ..shape.view import copy_input

op = register("Flatten", aliases=("flatten",)).inplace((0, 0))
backward = register_backward("_backward_Flatten", outputs=("data",)).inplace((0, 0))
op.set_attr("FGradient", grad_use_none("_backward_Flatten"))


@op.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.rank(0, 2)
    data = ins[0]
    if data is None or not data:
        return
    known = all(d >= 0 for d in data[1:])
    out = outs.merge(0, (data[0], size_of(data[1:]) if known else -1))
    assert out is not None
    rest = list(data[1:])
    if rest.count(-1) == 1 and out[1] >= 0:
        # One unknown dimension follows from the product, unless another is zero.
        others = size_of(d for d in rest if d >= 0)
        if others and out[1] % others == 0:
            rest[rest.index(-1)] = out[1] // others
    ins.merge(0, (out[0], *rest))


for definition in (op, backward):
    definition.set_attr("TIsView", True)
    definition.compute()(copy_input)
