"""_shuffle: data's slices along its first axis, in a random order. It has no gradient."""

from __future__ import annotations

from ..compute import Arrays, OpContext, Reqs
from ..index.positions import take_rows
from ..infer import all_same_shape
from ..params import NoParams
from ..registry import register

op = register("_shuffle", aliases=("shuffle",))
op.infer_shape(all_same_shape)


@op.compute()
def _(p: NoParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if req[0]:
        (data,) = inputs
        # The order that sorts random keys is a random order, on every device.
        keys = ctx.xp.empty(len(data), "float64")
        ctx.random.uniform(keys)
        take_rows(ctx.xp, data, ctx.xp.argsort(keys), req[0], outputs[0])
