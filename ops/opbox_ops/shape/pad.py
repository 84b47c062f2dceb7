"""Pad: data with a margin of a constant, of the nearest edge, or of its mirror image.

data (…, d, …), pad_width (…, before, after, …) -> (…, before + d + after, …)
gdata = gout's centre, and with edge and reflect what the margin copied, added to where it came from
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, Temp, assign
from ..gradient import grad_use_none
from ..infer import DType, ShapeList, show_shape
from ..infer import Shape as InferredShape
from ..params import Field, Float, Params, Shape
from ..registry import register, register_backward


class PadParams(Params):
    mode: Literal["constant", "edge", "reflect"] = Field(description="What the margin holds.")
    pad_width: Shape = Field(description="(before, after) of each axis in turn.")
    constant_value: Float = Field(0.0, description="The margin's value in mode constant.")


op = register("Pad", PadParams, aliases=("pad",))
backward = register_backward("_backward_Pad", PadParams)
op.set_attr("FGradient", grad_use_none("_backward_Pad"))


def _widths(p: PadParams) -> list[tuple[int, int]]:
    return list(zip(p.pad_width[::2], p.pad_width[1::2], strict=True))


@op.infer_shape
def _(p: PadParams, ins: ShapeList, outs: ShapeList) -> None:
    data, out = ins[0], outs[0]
    if len(p.pad_width) % 2 or any(width < 0 for width in p.pad_width):
        raise ShapeError(f"pad_width: expected two numbers of at least 0 an axis, got {p.pad_width}")
    for slots, shape in ((ins, data), (outs, out)):
        if shape is not None:
            slots.rank(0, len(p.pad_width) // 2)
    widths = [before + after for before, after in _widths(p)]
    if data is not None:
        if p.mode != "constant":
            for axis, (size, pair) in enumerate(zip(data, _widths(p), strict=True)):
                least = max(pair) + 1 if p.mode == "reflect" else 1
                if 0 <= size < least and max(pair) > 0:
                    raise ShapeError(
                        f"axis {axis}: expected at least {least} for mode {p.mode}, got {show_shape(data)}"
                    )
        out = outs.merge(0, tuple(size + width if size >= 0 else -1 for size, width in zip(data, widths, strict=True)))
    if out is not None:
        ins.merge(0, tuple(size - width if size >= 0 else -1 for size, width in zip(out, widths, strict=True)))


def _centre(p: PadParams, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(before, size - after) for size, (before, after) in zip(shape, _widths(p), strict=True))


def _margins(p: PadParams, full: Array) -> Iterator[tuple[Array, Array, int]]:
    """Views of `full`: (a margin, what it copies, the axis), each axis relying on the ones before it."""
    for axis, (before, after) in enumerate(_widths(p)):
        lead = (slice(None),) * axis
        size = full.shape[axis]
        last = size - after - 1
        if p.mode == "edge":
            sources = (slice(before, before + 1), slice(last, last + 1))
        else:
            sources = (slice(2 * before, before, -1), slice(last - 1, last - after - 1 if last > after else None, -1))
        for width, margin, source in (
            (before, slice(0, before), sources[0]),
            (after, slice(size - after, size), sources[1]),
        ):
            if width:
                yield full[(*lead, margin)], full[(*lead, source)], axis


@op.compute()
def _(p: PadParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    full = ctx.xp.empty_like(outputs[0]) if req[0] == OpReq.ADD else outputs[0]
    if p.mode == "constant":
        full.fill(p.constant_value)
    full[_centre(p, full.shape)] = inputs[0]
    if p.mode != "constant":
        for margin, source, _axis in _margins(p, full):
            margin[...] = source
    if req[0] == OpReq.ADD:
        assign(outputs[0], req[0], full)


@backward.resources
def _(
    p: PadParams,
    in_shapes: list[InferredShape],
    in_types: list[DType],
    out_shapes: list[InferredShape],
    out_types: list[DType],
) -> list[Temp]:
    return [] if p.mode == "constant" else [Temp(in_shapes[0] or (), in_types[0])]


@backward.compute()
def _(p: PadParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    (gout,) = inputs
    if p.mode != "constant":
        (folded,) = ctx.temp
        folded[...] = gout
        for margin, source, axis in reversed(list(_margins(p, folded))):
            source += margin.sum(axis=axis, keepdims=True) if p.mode == "edge" else margin
        gout = folded
    assign(outputs[0], req[0], gout[_centre(p, gout.shape)])
