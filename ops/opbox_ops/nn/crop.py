"""Crop: a window of each image, of the size h_w or of the input crop_like, at an offset or in the middle.

data (batch, channel, height, width), out (batch, channel, *size), size being h_w with one input and crop_like's
height and width with two. out = data[:, :, y : y + size[0], x : x + size[1]] with (y, x) = offset, or half of what is
left over with center_crop. gdata is gout there and 0 elsewhere; crop_like's gradient is 0.
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ParamError, ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, TypeList
from ..node import Entry, Node
from ..params import Bool, Count, Field, Params, Shape
from ..registry import Variadic, register, register_backward


class CropParams(Params):
    num_args: Count = Field(description="1: the size is h_w; 2: that of the second input.")
    offset: Shape = Field((0, 0), description="First row and column of the window.")
    h_w: Shape = Field((0, 0), description="Height and width of the window, with one input.")
    center_crop: Bool = Field(False, description="Take the window from the middle, and not from offset.")


op = register("Crop", CropParams, inputs=Variadic())
backward = register_backward("_backward_Crop", CropParams, outputs=lambda p: [f"arg{k}" for k in range(p.num_args)])


@op.infer_shape
def _(p: CropParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.num_args > 2:
        raise ParamError(f"Crop: parameter 'num_args': expected 1 or 2, got {p.num_args}")
    # A parameter that has no effect may be anything.
    if not p.center_crop and (len(p.offset) != 2 or min(p.offset) < 0):
        raise ShapeError(f"offset: expected two numbers of at least 0, got {p.offset}")
    if p.num_args == 1 and (len(p.h_w) != 2 or min(p.h_w) < 1):
        raise ShapeError(f"h_w: expected a height and a width with one input, got {p.h_w}")
    data = ins.rank(0, 4) or (-1,) * 4
    like = ins.rank(1, 4) if p.num_args == 2 else None
    size = p.h_w if p.num_args == 1 else (-1, -1) if like is None else like[2:]
    out = outs.merge(0, (*data[:2], *size)) or ()
    ins.merge(0, (*out[:2], *data[2:]))
    if p.num_args == 2:
        ins.merge(1, (-1, -1, *out[2:]))
    offset = (0, 0) if p.center_crop else p.offset
    for whole, part, start in zip(data[2:], out[2:], offset, strict=True):
        if whole >= 0 and part >= 0 and start + part > whole:
            message = f"expected a height and width of at least {out[2:]} behind offset {offset}, got {data[2:]}"
            raise ShapeError(message, side="input", index=0)


@op.infer_type
def _(p: CropParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))
    if p.num_args == 2:
        ins.merge(1, ins[0])


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Crop", node, ograds)


def _window(p: CropParams, data: Array, out: Array) -> Any:
    """The window as a view of data."""
    spare = [whole - part for whole, part in zip(data.shape[2:], out.shape[2:], strict=True)]
    y, x = (n // 2 for n in spare) if p.center_crop else p.offset
    return data[:, :, y : y + out.shape[2], x : x + out.shape[3]]


@op.compute()
def _(p: CropParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is not None:
        outputs[0][...] = _window(p, inputs[0], outputs[0])


@backward.compute()
def _(p: CropParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for target in outputs:
        if target is not None:
            target[...] = 0
    if outputs[0] is not None:
        _window(p, outputs[0], inputs[0])[...] = inputs[0]
