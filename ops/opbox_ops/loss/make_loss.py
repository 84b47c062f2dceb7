"""MakeLoss: out = data, taken as a loss: gdata = grad_scale / count, and no head gradient is read.

count is 1 ("null"), the batch ("batch"), or how many elements of data are above valid_thresh ("valid", at least 1).
"""

from __future__ import annotations

from typing import Literal

from ..compute import Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import all_same_shape
from ..node import Entry, Node
from ..params import Field, Float, Params
from ..registry import register, register_backward


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


@op.compute()
def _(p: MakeLossParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if req[0] != OpReq.INPLACE:
        assign(outputs[0], req[0], inputs[0])


@backward.compute()
def _(p: MakeLossParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    gdata, value = outputs[0], p.grad_scale
    if p.normalization == "batch":
        value = value / max(1, gdata.shape[0])
    elif p.normalization == "valid":
        value = value / ctx.xp.maximum((inputs[0] > p.valid_thresh).sum(), 1)
    assign(gdata, req[0], value)
