"""_shuffle: data's slices along its first axis, in a random order. It has no gradient.

data and out have one shape, of one axis at least.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from opbox_protocol.errors import ShapeError

from ..bound_calls import Call, as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..index.packed_order import order_calls, order_temps
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


# The order that sorts random keys is a random order, on every device.
def _temps(p: NoParams, call: CallSpec) -> list[Temp]:
    """Keys, their order, and what finding it takes."""
    count = call.inputs[0].shape[0]
    return [Temp((1, count), "float64"), Temp((1, count), "int64"), *order_temps("float64", 1, count)]


@op.compute("cpu", temps=_temps, prepares=True)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    (data,), (keys, order, *sorting) = inputs, ctx.temp
    return as_one(
        [
            partial(ctx.random.uniform, keys),
            *order_calls(keys, True, sorting, order),
            partial(take_rows, np, data, order.reshape(-1), outputs[0]),
        ]
    )


@op.compute(
    "gpu",
    temps=lambda p, call: [Temp(call.inputs[0].shape[:1], "float64")],
    allocates="the library's argsort has no output argument",
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data,), (keys,) = inputs, ctx.temp
    ctx.random.uniform(keys)
    take_rows(ctx.xp, data, ctx.xp.argsort(keys), outputs[0])
