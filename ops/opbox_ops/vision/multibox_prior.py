"""_contrib_MultiBoxPrior: anchor boxes around every position of a feature map (Liu et al., 2016, SSD).

data (batch, channel, height, width), read for its size only; out (1, height * width * k, 4) in corners, as parts of the
image. Around each position are k = len(sizes) + len(ratios) - 1 boxes: every size with the first ratio, then the first
size with the other ratios.

    x = (column + offsets[1]) steps[1]      width  = size sqrt(ratio) data_height / data_width
    y = (row + offsets[0]) steps[0]         height = size / sqrt(ratio)

The gradient is zero.
"""

from __future__ import annotations

import math

from opbox_protocol.errors import ParamError, ShapeError

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_zero
from ..index.counting import count_up
from ..infer import ShapeList, all_same_float, show_shape
from ..params import Bool, Field, FloatTuple, Params
from ..registry import register


class MultiBoxPriorParams(Params):
    sizes: FloatTuple = Field((1.0,), description="Sizes of the boxes, as parts of the image's height.")
    ratios: FloatTuple = Field((1.0,), description="Width to height of the boxes.")
    clip: Bool = Field(False, description="Cut the boxes off at the image's edges.")
    steps: FloatTuple = Field(
        (-1.0, -1.0), description="Distance of the positions (y, x); negative: one row, one column."
    )
    offsets: FloatTuple = Field((0.5, 0.5), description="Where the first position is (y, x), in steps.")


op = register("_contrib_MultiBoxPrior", MultiBoxPriorParams)
op.set_attr("FGradient", grad_zero)
op.infer_type(all_same_float)


def _check(p: MultiBoxPriorParams) -> None:
    for name in ("sizes", "ratios"):
        if not getattr(p, name):
            raise ParamError(f"_contrib_MultiBoxPrior: parameter {name!r}: expected at least one number, got ()")
    if min(p.ratios) <= 0:
        message = f"expected positive numbers, got {p.ratios}"
        raise ParamError(f"_contrib_MultiBoxPrior: parameter 'ratios': {message}")
    for name in ("steps", "offsets"):
        if len(getattr(p, name)) != 2:
            message = f"expected two numbers (y, x), got {getattr(p, name)}"
            raise ParamError(f"_contrib_MultiBoxPrior: parameter {name!r}: {message}")
    if p.steps[0] * p.steps[1] < 0:
        message = f"expected two positive numbers or two negative ones, got {p.steps}"
        raise ParamError(f"_contrib_MultiBoxPrior: parameter 'steps': {message}")


@op.infer_shape
def _(p: MultiBoxPriorParams, ins: ShapeList, outs: ShapeList) -> None:
    _check(p)
    data = ins[0]
    count = -1
    if data is not None:
        if len(data) < 4:
            message = f"expected 4 dimensions (batch, channel, height, width), got {show_shape(data)}"
            raise ShapeError(message, side="input", index=0)
        if min(data[2:4]) >= 0:
            count = data[2] * data[3] * (len(p.sizes) + len(p.ratios) - 1)
    outs.merge(0, (1, count, 4))


def _temps(p: MultiBoxPriorParams, call: CallSpec) -> list[Temp]:
    """Along x and y: the positions, half the sizes of a position's boxes, and the boxes' edges."""
    boxes = len(p.sizes) + len(p.ratios) - 1
    sides = reversed(call.inputs[0].shape[2:4])
    return [Temp(shape, "float64") for side in sides for shape in ((side, 1), (1, boxes), (side, boxes))]


@op.compute(temps=_temps)
def _(p: MultiBoxPriorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (out,) = outputs
    if out is None or not out.size:
        return
    xp, (height, width) = ctx.xp, inputs[0].shape[2:4]
    step_y, step_x = p.steps if min(p.steps) > 0 else (1 / height, 1 / width)
    shapes = [(size, p.ratios[0]) for size in p.sizes] + [(p.sizes[0], ratio) for ratio in p.ratios[1:]]
    boxes = out.reshape(height, width, len(shapes), 4)
    along_x, along_y = ctx.temp[:3], ctx.temp[3:]
    for k, (size, ratio) in enumerate(shapes):
        along_x[1][0, k] = size * height / width * math.sqrt(ratio) / 2
        along_y[1][0, k] = size / math.sqrt(ratio) / 2
    for axis, (position, half, edge), offset, step in (
        (0, along_x, p.offsets[1], step_x),
        (1, along_y, p.offsets[0], step_y),
    ):
        count_up(xp, position[:, 0])
        position += offset
        position *= step
        for corner, write in ((axis, xp.subtract), (axis + 2, xp.add)):
            write(position, half, out=edge)
            boxes[..., corner] = edge[:, None] if axis else edge[None]
    if p.clip:
        xp.clip(out, 0, 1, out=out)
