"""Dropout: in training, out = data * mask, with mask 0 at probability p and 1 / (1 - p) otherwise; else out = data.

data and out have one shape; the hidden output mask too, but for the axes named in `axes`, where it is 1 and one draw
serves the whole axis. gdata = gout * mask. Srivastava et al., "Dropout" (2014), scaled in training.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field as Range

from ..compute import Arrays, OpContext, OpReq, Reqs, assign
from ..gradient import backward_node
from ..infer import ShapeList, canonical_axis
from ..node import Entry, Node
from ..params import Field, Float, OptBool, Params, Shape
from ..registry import Slot, register, register_backward


class DropoutParams(Params):
    p: Annotated[Float, Range(ge=0, le=1)] = Field(0.5, description="Share of the elements that is dropped.")
    mode: Literal["always", "training"] = Field("training", description="When to drop.")
    axes: Shape = Field((), description="Axes along which elements are dropped together.")
    cudnn_off: OptBool = Field(False, description="Has no effect; for MXNet's files.")


op = register("Dropout", DropoutParams, outputs=("output", Slot("mask", visible=False))).inplace((0, 0))
backward = register_backward("_backward_Dropout", DropoutParams, outputs=("data",)).inplace((0, 0))


@op.infer_shape
def _(p: DropoutParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None:
        together = {canonical_axis(axis, len(shape), "axes") for axis in p.axes}
        outs.merge(1, tuple(1 if axis in together else d for axis, d in enumerate(shape)))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Dropout", node, [ograds[0], Entry(node, 1)])


@op.compute()
def _(p: DropoutParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    data, mask = inputs[0], outputs[1]
    if not (p.p > 0 and (ctx.is_train or p.mode == "always")):
        assign(mask, req[1], 1)
        if req[0] != OpReq.INPLACE:
            assign(outputs[0], req[0], data)
        return
    if req[1] != OpReq.WRITE:
        mask = ctx.xp.empty(mask.shape, mask.dtype)
    keep = 1 - p.p
    ctx.random.uniform(mask)
    ctx.xp.less(mask, keep, out=mask, casting="unsafe")
    if keep > 0:
        ctx.xp.multiply(mask, 1 / keep, out=mask)
    if req[0] == OpReq.ADD:
        assign(outputs[0], req[0], data * mask)
    elif req[0]:
        ctx.xp.multiply(data, mask, out=outputs[0])
    if mask is not outputs[1]:
        assign(outputs[1], req[1], mask)


@backward.compute()
def _(p: DropoutParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if req[0] == OpReq.ADD:
        assign(outputs[0], req[0], inputs[0] * inputs[1])
    elif req[0]:
        ctx.xp.multiply(inputs[0], inputs[1], out=outputs[0])
