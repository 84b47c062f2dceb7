"""Dropout: in training, out = data * mask, with mask 0 at probability p and 1 / (1 - p) otherwise; else out = data.

data and out have one shape; the hidden output mask too, but for the axes named in `axes`, where it is 1 and one draw
serves the whole axis. gdata = gout * mask. Srivastava et al., "Dropout" (2014), scaled in training.
"""

from __future__ import annotations

from typing import Literal

from ..compute import Arrays, CallSpec, OpContext, OpReq, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, canonical_axis
from ..node import Entry, Node
from ..params import Field, OptBool, Params, Shape, Share
from ..registry import Slot, register, register_backward


class DropoutParams(Params):
    p: Share = Field(0.5, description="Share of the elements that is dropped.")
    mode: Literal["always", "training"] = Field("training", description="When to drop.")
    axes: Shape = Field((), description="Axes along which elements are dropped together.")
    cudnn_off: OptBool = Field(False, description="Has no effect; for MXNet's files.")


op = register("Dropout", DropoutParams, outputs=("output", Slot("mask", visible=False))).inplace((0, 0))
op.set_attr("TRandom", True).set_attr("TSkipsUnread", True)
op.set_attr("FDrawsInInference", lambda p: p.mode == "always")
backward = register_backward("_backward_Dropout", DropoutParams, outputs=("data",)).inplace((0, 0))


@op.infer_shape
def _(p: DropoutParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None:
        together = {canonical_axis(axis, len(shape), "axes") for axis in p.axes}
        outs.merge(1, tuple(1 if axis in together else d for axis, d in enumerate(shape)))


op.infer_type(all_same_float)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Dropout", node, [ograds[0], Entry(node, 1)])


def _draws(p: DropoutParams, call: CallSpec) -> list[Temp]:
    """Temporary for the random numbers, where the mask is unwanted or of half precision."""
    mask = call.outputs[1]
    narrow = mask.dtype.itemsize < 4
    return [] if call.wants(1) and not narrow else [Temp(mask.shape, "float32" if narrow else mask.dtype)]


def passes(p: DropoutParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> bool:
    """Write the output and the mask of a call that drops nothing; for one that does, return False and write nothing."""
    if p.p > 0 and (ctx.is_train or p.mode == "always"):
        return False
    out, mask = outputs
    if mask is not None:
        mask.fill(1)
    if out is not None and ctx.req[0] != OpReq.INPLACE:
        ctx.xp.copyto(out, inputs[0])
    return True


@op.compute(temps=_draws)
def _(p: DropoutParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if passes(p, ctx, inputs, outputs):
        return
    xp, (out, mask) = ctx.xp, outputs
    keep = 1 - p.p
    drawn = ctx.temp[0] if ctx.temp else mask
    ctx.random.uniform(drawn)
    xp.less(drawn, keep, out=drawn, casting="unsafe")
    if keep > 0:
        xp.multiply(drawn, 1 / keep, out=drawn)
    if mask is None:
        mask = drawn
    elif mask is not drawn:
        xp.copyto(mask, drawn, casting="unsafe")
    if out is not None:
        xp.multiply(inputs[0], mask, out=out, casting="unsafe")


@backward.compute()
def _(p: DropoutParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.multiply(inputs[0], inputs[1], out=outputs[0])
