"""MakeLoss: out = data, taken as a loss: gdata = grad_scale / count, and no head gradient is read.

count is 1 ("null"), the product of all sizes of data but the last ("batch", as MXNet: the batch of a matrix, 1 of a
vector), or how many elements of data are above valid_thresh ("valid", at least 1).
"""

from __future__ import annotations

import math
from typing import Literal

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import all_same_shape
from ..node import Entry, Node
from ..params import Field, Float, Params
from ..registry import register, register_backward
from ..shape.view import copy_input


class MakeLossParams(Params):
    grad_scale: Float = Field(1.0, description="Factor on the gradient.")
    valid_thresh: Float = Field(0.0, description="Elements above this count as valid.")
    normalization: Literal["batch", "null", "valid"] = Field("null", description="What the gradient is divided by.")


op = register("MakeLoss", MakeLossParams).inplace((0, 0)).set_attr("TIsView", True)
op.infer_shape(all_same_shape)
backward = register_backward("_backward_MakeLoss", MakeLossParams, outputs=("data",))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    counts = getattr(node.params, "normalization", "") == "valid"
    return backward_node("_backward_MakeLoss", node, node.inputs if counts else [])


op.compute()(copy_input)


def _counting(p: MakeLossParams, call: CallSpec) -> list[Temp]:
    """Temporaries for normalization="valid": a mask of the valid elements, and their number."""
    return [Temp(call.inputs[0].shape, "bool"), Temp((), "float64")] if p.normalization == "valid" else []


@backward.compute(temps=_counting)
def _(p: MakeLossParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, gdata = ctx.xp, outputs[0]
    if p.normalization != "valid":
        rows = math.prod(gdata.shape[:-1]) if p.normalization == "batch" else 1
        gdata.fill(p.grad_scale / max(1, rows))
        return
    valid, count = ctx.temp
    xp.greater(inputs[0], p.valid_thresh, out=valid)
    xp.sum(valid, dtype="float64", out=count)
    xp.maximum(count, 1, out=count)
    xp.divide(p.grad_scale, count, out=count)
    xp.copyto(gdata, count, casting="unsafe")
