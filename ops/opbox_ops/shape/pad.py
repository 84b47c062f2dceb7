"""Pad, and mx.np's pad: data with a margin of a constant, of the nearest edge, or of its mirror image.

The mirror image leaves the edge out (reflect) or has it twice (symmetric, which mx.np alone has).

data (…, d, …), pad_width (…, before, after, …) -> (…, before + d + after, …)
gdata = gout's centre, and with the other modes what the margin copied, added to where it came from
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_use_none
from ..infer import ShapeList, show_shape, size_of
from ..params import Field, Float, Params, Shape
from ..registry import register, register_backward


class PadParams(Params):
    mode: Literal["constant", "edge", "reflect"] = Field(description="What the margin holds.")
    pad_width: Shape = Field(description="(before, after) of each axis in turn.")
    constant_value: Float = Field(0.0, description="The margin's value in mode constant.")


def _flat(value: Any) -> Any:
    """((1, 1), (0, 2)) as (1, 1, 0, 2), from a text too; numbers in a row stay as they are."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            raise ValueError("pairs (before, after), one for each axis") from None
    if not isinstance(value, tuple | list):
        raise ValueError("pairs (before, after), one for each axis")
    return tuple(width for pair in value for width in (pair if isinstance(pair, tuple | list) else (pair,)))


Pairs = Annotated[tuple[int, ...], BeforeValidator(_flat)]


class NumpyPadParams(Params):
    pad_width: Pairs = Field(description="(before, after) of each axis.")
    mode: Literal["constant", "edge", "reflect", "symmetric"] = Field("constant", description="What the margin holds.")
    constant_value: Float = Field(0.0, description="The margin's value in mode constant.")
    reflect_type: Literal["even"] = Field("even", description="The mirror image as it is, the only one.")


AnyPad = PadParams | NumpyPadParams

numpy_op = register("_npi_pad", NumpyPadParams, doc="data with a margin, as mx.np has it.")
numpy_backward = register_backward("_backward_npi_pad", NumpyPadParams)
numpy_op.set_attr("FGradient", grad_use_none("_backward_npi_pad"))
op = register("Pad", PadParams, aliases=("pad",))
backward = register_backward("_backward_Pad", PadParams)
op.set_attr("FGradient", grad_use_none("_backward_Pad"))


def _widths(p: AnyPad) -> list[tuple[int, int]]:
    return list(zip(p.pad_width[::2], p.pad_width[1::2], strict=True))


@op.infer_shape
@numpy_op.infer_shape
def _(p: AnyPad, ins: ShapeList, outs: ShapeList) -> None:
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
                least = {"reflect": max(pair) + 1, "symmetric": max(pair)}.get(p.mode, 1)
                if 0 <= size < least and max(pair) > 0:
                    raise ShapeError(
                        f"axis {axis}: expected at least {least} for mode {p.mode}, got {show_shape(data)}"
                    )
        out = outs.merge(0, tuple(size + width if size >= 0 else -1 for size, width in zip(data, widths, strict=True)))
    if out is not None:
        ins.merge(0, tuple(size - width if size >= 0 else -1 for size, width in zip(out, widths, strict=True)))


def _centre(p: AnyPad, shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(before, size - after) for size, (before, after) in zip(shape, _widths(p), strict=True))


def _margins(p: AnyPad, full: Array) -> Iterator[tuple[Array, Array, int]]:
    """Views of `full`: (a margin, what it copies, the axis), each axis relying on the ones before it."""
    for axis, (before, after) in enumerate(_widths(p)):
        lead = (slice(None),) * axis
        size = full.shape[axis]
        last = size - after - 1
        if p.mode == "edge":
            sources = (slice(before, before + 1), slice(last, last + 1))
        else:
            # Symmetric images begin with the edge itself.
            edge = int(p.mode == "symmetric")
            first, end = last - 1 + edge, last - 1 + edge - after
            sources = (
                slice(2 * before - edge, before - edge, -1),
                slice(first, end if end >= 0 else None, -1),
            )
        for width, margin, source in (
            (before, slice(0, before), sources[0]),
            (after, slice(size - after, size), sources[1]),
        ):
            if width:
                yield full[(*lead, margin)], full[(*lead, source)], axis


def _source(p: AnyPad, call: CallSpec) -> list[Temp]:
    """Temporary for the numbers that a margin copies: NumPy cannot tell that source and target do not overlap."""
    full = call.outputs[0]
    widths = zip(full.shape, _widths(p), strict=True)
    sizes = (size_of(full.shape) // max(1, size) * (1 if p.mode == "edge" else max(pair)) for size, pair in widths)
    return [] if p.mode == "constant" else [Temp((max(sizes, default=0),), full.dtype)]


@op.compute(temps=_source)
@numpy_op.compute(temps=_source)
def _(p: AnyPad, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    full = outputs[0]
    if p.mode == "constant":
        full.fill(p.constant_value)
    full[_centre(p, full.shape)] = inputs[0]
    if p.mode != "constant":
        for margin, source, _axis in _margins(p, full):
            copied = ctx.temp[0][: source.size].reshape(source.shape)
            copied[...] = source
            margin[...] = copied


def _folding(p: AnyPad, call: CallSpec) -> list[Temp]:
    """A copy of gout, whose margins are folded back; and the sum of a margin in mode edge."""
    gout = call.inputs[0]
    sums = max((size_of(gout.shape) // max(1, size) for size in gout.shape), default=1) if p.mode == "edge" else 0
    return [] if p.mode == "constant" else [Temp(gout.shape, gout.dtype), Temp((sums,), gout.dtype)]


@backward.compute(temps=_folding)
@numpy_backward.compute(temps=_folding)
def _(p: AnyPad, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (gout,) = ctx.xp, inputs
    if p.mode != "constant":
        folded, sums = ctx.temp
        folded[...] = gout
        for margin, source, axis in reversed(list(_margins(p, folded))):
            if p.mode == "edge":
                total = sums[: source.size].reshape(source.shape)
                source += xp.sum(margin, axis=axis, keepdims=True, out=total)
            else:
                source += margin
        gout = folded
    xp.copyto(outputs[0], gout[_centre(p, gout.shape)])
