"""tile, repeat, reverse: elements that occur again, or in the opposite order.

tile: data (a, b), reps (2, 3) -> (2 a, 3 b), data as a whole again and again
repeat: each element (or slice of an axis) `repeats` times in a row        reverse: data[::-1] on the given axes
gdata = the sum of gout over all copies of an element
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import ShapeError
from opbox_protocol.frame_header import MAX_RANK

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import grad_use_none
from ..infer import ShapeList, canonical_axis, known, size_of
from ..params import Field, NonNegativeInt, OptInt, Params, Shape
from ..registry import register, register_backward


class TileParams(Params):
    reps: Shape = Field(description="How often on each axis, aligned with data's last axes.")


class RepeatParams(Params):
    repeats: NonNegativeInt = Field(description="How often each element occurs.")
    axis: OptInt = Field(None, description="The axis to repeat on; None: on data as one row.")


class ReverseParams(Params):
    axis: Shape = Field(description="The axes to reverse; one that is named twice is reversed twice.")


tile = register("tile", TileParams, doc="data as a whole, again and again on each axis.")
repeat = register("repeat", RepeatParams, doc="Each element several times in a row.")
reverse = register(
    "reverse", ReverseParams, aliases=("flip", "_npi_flip"), doc="data in the opposite order on some axes."
)
tile_backward = register_backward("_backward_tile", TileParams)
repeat_backward = register_backward("_backward_repeat", RepeatParams)
reverse_backward = register_backward("_backward_reverse", ReverseParams)
for _op in (tile, repeat, reverse):
    _op.set_attr("FGradient", grad_use_none(f"_backward_{_op.name}"))


def _aligned(reps: tuple[int, ...], shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both with as many entries: 1s in front of the shorter."""
    ndim = max(len(reps), len(shape))
    return (1,) * (ndim - len(reps)) + reps, (1,) * (ndim - len(shape)) + shape


@tile.infer_shape
def _(p: TileParams, ins: ShapeList, outs: ShapeList) -> None:
    if any(rep < 0 for rep in p.reps):
        raise ShapeError(f"reps: expected no negative number, got {p.reps}")
    if ins[0] is None:
        return
    reps, data = _aligned(p.reps, ins[0])
    if len(reps) > MAX_RANK:  # each has an axis of copies, and NumPy has twice as many axes as an array may have here
        raise ShapeError(f"reps: expected numbers for at most {MAX_RANK} axes, got {len(reps)}")
    out = outs.merge(0, tuple(size * rep if size >= 0 else -1 for size, rep in zip(data, reps, strict=True)))
    assert out is not None
    back = [size // rep if rep and size >= 0 else -1 for size, rep in zip(out, reps, strict=True)]
    ins.merge(0, tuple(back[len(back) - len(ins[0]) :]))


@repeat.infer_shape
def _(p: RepeatParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if p.axis is None:
        outs.merge(0, (size_of(data) * p.repeats if known(data) else -1,))
        return
    axis = canonical_axis(p.axis, len(data))
    length = data[axis] * p.repeats if data[axis] >= 0 else -1
    out = outs.merge(0, (*data[:axis], length, *data[axis + 1 :]))
    assert out is not None
    length = out[axis] // p.repeats if p.repeats and out[axis] >= 0 else -1
    ins.merge(0, (*out[:axis], length, *out[axis + 1 :]))


@reverse.infer_shape
def _(p: ReverseParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None:
        for axis in p.axis:
            canonical_axis(axis, len(shape))


# Copies lie on axes of their own: tile's in front of each axis, repeat's behind its axis. Then copying is a broadcast
# assignment, and the gradient a sum over those axes.


def _tile_layout(p: TileParams, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the output's shape with an axis of copies before each axis, and data's shape to broadcast into it."""
    reps, shape = _aligned(p.reps, shape)
    pairs = list(zip(reps, shape, strict=True))
    return tuple(d for pair in pairs for d in pair), tuple(d for _, size in pairs for d in (1, size))


def _repeat_layout(p: RepeatParams, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if p.axis is None:
        return (size_of(shape), p.repeats), (size_of(shape), 1)
    axis = p.axis % len(shape) + 1
    return (*shape[:axis], p.repeats, *shape[axis:]), (*shape[:axis], 1, *shape[axis:])


def _spread(xp: Any, data: Array, layout: tuple[tuple[int, ...], tuple[int, ...]], out: Array) -> None:
    if out.size:
        xp.copyto(out.reshape(layout[0]), data.reshape(layout[1]))


def _wide_total(p: Any, call: CallSpec) -> list[Temp]:
    """A total in the accumulation type, where the gradient's own type is narrower."""
    gdata = call.outputs[0]
    wide = accumulation_type(gdata.dtype)
    return [Temp((size_of(gdata.shape),), wide)] if wide != gdata.dtype else []


def _gather(ctx: OpContext, gout: Array, layout: tuple[tuple[int, ...], tuple[int, ...]], gdata: Array) -> None:
    full, single = layout
    axes = tuple(axis for axis, (size, one) in enumerate(zip(full, single, strict=True)) if one == 1 != size)
    if not gout.size:
        gdata.fill(0)
        return
    copies = gout.reshape(full)
    if not axes:
        ctx.xp.copyto(gdata.reshape(copies.shape), copies)
        return
    total = (ctx.temp[0] if ctx.temp else gdata).reshape(single)
    ctx.xp.sum(copies, axis=axes, dtype=total.dtype, keepdims=True, out=total)
    if ctx.temp:
        ctx.xp.copyto(gdata, total.reshape(gdata.shape), casting="unsafe")


@tile.compute()
def _(p: TileParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _spread(ctx.xp, inputs[0], _tile_layout(p, inputs[0].shape), outputs[0])


@tile_backward.compute(temps=_wide_total)
def _(p: TileParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _gather(ctx, inputs[0], _tile_layout(p, outputs[0].shape), outputs[0])


@repeat.compute()
def _(p: RepeatParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _spread(ctx.xp, inputs[0], _repeat_layout(p, inputs[0].shape), outputs[0])


@repeat_backward.compute(temps=_wide_total)
def _(p: RepeatParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _gather(ctx, inputs[0], _repeat_layout(p, outputs[0].shape), outputs[0])


def _reversed(p: ReverseParams, data: Array) -> Array:
    axes = [axis % data.ndim for axis in p.axis]
    return data[tuple(slice(None, None, -1) if axes.count(axis) % 2 else slice(None) for axis in range(data.ndim))]


def _flip(p: ReverseParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.copyto(outputs[0], _reversed(p, inputs[0]))


reverse.compute()(_flip)
reverse_backward.compute()(_flip)
