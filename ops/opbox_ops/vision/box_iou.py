"""_contrib_box_iou: out[i, j] = area(lhs[i] and rhs[j]) / area(lhs[i] or rhs[j]), for every pair of boxes.

lhs (*m, 4), rhs (*n, 4), out (*m, *n); m and n are one or more dimensions. Boxes that do not meet have 0.
The gradient is zero, as in MXNet.
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..cache import elements
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_zero
from ..infer import ShapeList, all_same_float, show_shape, size_of
from ..params import Field, Params
from ..registry import register
from .geometry import BoxFormat, write_corners, write_overlap


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


def _tile(call: CallSpec) -> tuple[int, int, int]:
    """Boxes of lhs and of rhs, and those of lhs whose pairs are worked out together."""
    left, right = (size_of(boxes.shape[:-1]) for boxes in call.inputs)
    return left, right, min(left, max(1, elements(4 * call.outputs[0].dtype.itemsize) // max(right, 1)))


def _temps(p: BoxIouParams, call: CallSpec) -> list[Temp]:
    """Planes of both sides; heights, unions and which boxes are apart, for a tile of pairs."""
    (left, right, tile), dtype = _tile(call), call.outputs[0].dtype
    pairs = (tile, right)
    return [
        Temp((6, left), dtype),
        Temp((6, right), dtype),
        Temp(pairs, dtype),
        Temp(pairs, dtype),
        Temp(pairs, "bool"),
    ]


@op.compute(temps=_temps)
def _(p: BoxIouParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    xp, (one, other, *scratch), (left, right, step) = ctx.xp, ctx.temp, _tile(ctx.call)
    for boxes, side in zip(inputs, (one, other), strict=True):
        write_corners(xp, boxes.reshape(-1, 4), p.format, side)
    pairs = outputs[0].reshape(left, right)
    for start in range(0, left, max(step, 1)):
        out = pairs[start : start + step]
        rows = one[:5, start : start + step, None]
        write_overlap(xp, rows, other[:5, None], out, *(array[: len(out)] for array in scratch))
