"""_contrib_box_iou: out[i, j] = area(lhs[i] and rhs[j]) / area(lhs[i] or rhs[j]), for every pair of boxes.

lhs (*m, 4), rhs (*n, 4), out (*m, *n); m and n are one or more dimensions. Boxes that do not meet have 0.
The gradient is zero, as in MXNet.
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, OpContext, Outputs
from ..gradient import grad_zero
from ..infer import ShapeList, all_same_float, show_shape
from ..params import Field, Params
from ..registry import register
from .geometry import BoxFormat, areas, overlap, planes, to_corner


class BoxIouParams(Params):
    format: BoxFormat = Field("corner", description="corner: left, top, right, bottom; center: x, y, width, height.")


op = register("_contrib_box_iou", BoxIouParams, inputs=("lhs", "rhs"))
op.set_attr("FGradient", grad_zero)
op.infer_type(all_same_float)


@op.infer_shape
def _(p: BoxIouParams, ins: ShapeList, outs: ShapeList) -> None:
    for i, shape in enumerate(ins):
        if shape is not None:
            if len(shape) < 2:
                message = f"expected at least 2 dimensions, the last of 4, got {show_shape(shape)}"
                raise ShapeError(message, side="input", index=i)
            ins.merge(i, (*shape[:-1], 4))
    lhs, rhs, out = ins[0], ins[1], outs[0]
    if lhs is not None and rhs is not None:
        out = outs.merge(0, (*lhs[:-1], *rhs[:-1]))
    if out is not None and lhs is not None:
        ins.merge(0, (*out[: len(lhs) - 1], 4))
        ins.merge(1, (*out[len(lhs) - 1 :], 4))
    elif out is not None and rhs is not None:
        ins.merge(0, (*out[: len(out) - len(rhs) + 1], 4))
        ins.merge(1, (*out[len(out) - len(rhs) + 1 :], 4))


@op.compute(allocates="coordinates as planes")
def _(p: BoxIouParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (out,) = outputs
    if out is None:
        return
    xp = ctx.xp
    sides = []
    for boxes in inputs:
        box = planes(boxes.reshape(-1, 4))
        box = to_corner(box) if p.format == "center" else box
        sides.append([*box, areas(xp, box)])
    pairs = overlap(xp, [plane[:, None] for plane in sides[0]], [plane[None] for plane in sides[1]])
    out[...] = pairs.reshape(out.shape)
