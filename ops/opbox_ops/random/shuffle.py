"""_shuffle: data's slices along its first axis, in a random order. It has no gradient.

data and out have one shape, of one axis at least.
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, OpContext, Outputs, Temp
from ..index.positions import take_rows
from ..infer import ShapeList, all_same_shape
from ..params import NoParams
from ..registry import register

op = register("_shuffle", aliases=("shuffle",))
op.set_attr("TRandom", True)


@op.infer_shape
def _(p: NoParams, ins: ShapeList, outs: ShapeList) -> None:
    if ins[0] == ():
        raise ShapeError("expected at least 1 dimension, got ()", side="input", index=0)
    all_same_shape(p, ins, outs)


@op.compute(
    temps=lambda p, call: [Temp(call.inputs[0].shape[:1], "float64")],
    allocates="the library's argsort has no output argument",
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (keys,) = inputs, ctx.temp
    # The order that sorts random keys is a random order, on every device.
    ctx.random.uniform(keys)
    take_rows(ctx.xp, data, ctx.xp.argsort(keys), outputs[0])
