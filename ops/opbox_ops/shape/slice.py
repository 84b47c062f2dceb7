"""slice, slice_axis, slice_like: a regular part of an array.

slice: data[begin[0]:end[0]:step[0], …], None for an open end, negative steps allowed
slice_axis: data[:, …, begin:end] on one axis        slice_like: data cut to shape_like's sizes
out's shape has for each axis the length of its part, ceil((end - begin) / step).
gdata = zeros with gout in the part
"""

from __future__ import annotations

from typing import Any, TypeAlias

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import backward_node
from ..infer import ShapeList, TypeList, canonical_axis, show_shape
from ..node import Entry, Node
from ..params import Field, Int, OptInt, OptInts, Params
from ..params import Shape as ShapeParam
from ..registry import Op, register, register_backward

__all__ = ["SLICES", "Part", "SliceParams", "length", "part_of", "sliced"]

Part: TypeAlias = "tuple[slice, ...]"


class SliceParams(Params):
    begin: OptInts = Field(description="Where each axis's part begins; None: at the start.")
    end: OptInts = Field(description="Where each axis's part ends, exclusive; None: after the last.")
    step: OptInts = Field((), description="The step on each axis; None or nothing: 1.")


class SliceAxisParams(Params):
    axis: Int = Field(description="The axis to cut.")
    begin: Int = Field(description="The first position kept; negative: counted from the end.")
    end: OptInt = Field(description="The position after the last one kept; None: all the rest.")


class SliceLikeParams(Params):
    axes: ShapeParam = Field((), description="The axes to cut, counted in data; all, of equal ranks, when it is empty.")


slice_op = register("slice", SliceParams, aliases=("crop",), doc="data[begin:end:step], axis by axis.")
slice_axis = register("slice_axis", SliceAxisParams, doc="data[begin:end] on one axis.")
slice_like = register(
    "slice_like", SliceLikeParams, inputs=("data", "shape_like"), doc="data cut from its start to shape_like's sizes."
)


def part_of(p: Any, ndim: int) -> Part:
    """The Python slices that `begin`, `end` and `step` of `p` mean for an array of `ndim` dimensions."""
    if not len(p.begin) == len(p.end) or (p.step and len(p.step) != len(p.begin)):
        raise ShapeError(f"begin, end, step: expected equally many, got {p.begin}, {p.end}, {p.step}")
    if len(p.begin) > ndim:
        raise ShapeError(f"begin: expected at most {ndim} axes, got {p.begin}")
    if 0 in p.step:
        raise ShapeError(f"step: expected no 0, got {p.step}")
    steps = p.step or (None,) * len(p.begin)
    return tuple(slice(b, e, s) for b, e, s in zip(p.begin, p.end, steps, strict=True))


def length(part: slice, size: int) -> int:
    """Return the number of elements that the slice takes of an axis of `size`; -1 where it is unknown."""
    if size < 0:
        return -1
    return len(range(*part.indices(size)))


def _is_whole(part: slice) -> bool:
    forwards = part.start in (None, 0) and part.step in (None, 1)
    return part.stop is None and (forwards or (part.start is None and part.step == -1))


def _merge(part: Part, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    rest = len(data) - len(part)
    whole = (*part, *(slice(None),) * rest)
    out = outs.merge(0, tuple(length(one, size) for one, size in zip(whole, data, strict=True)))
    assert out is not None
    ins.merge(0, tuple(size if _is_whole(one) else -1 for one, size in zip(whole, out, strict=True)))


@slice_op.infer_shape
def _(p: SliceParams, ins: ShapeList, outs: ShapeList) -> None:
    if ins[0] is not None:
        _merge(part_of(p, len(ins[0])), ins, outs)


def _axis_part(p: SliceAxisParams, ndim: int) -> Part:
    axis = canonical_axis(p.axis, ndim)
    return (*(slice(None),) * axis, slice(p.begin, p.end))


@slice_axis.infer_shape
def _(p: SliceAxisParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    size = data[canonical_axis(p.axis, len(data))]
    if size >= 0:
        begin = p.begin + size if p.begin < 0 else p.begin
        end = size if p.end is None else p.end + size if p.end < 0 else p.end
        if not 0 <= begin <= end <= size:
            raise ShapeError(f"begin, end: expected a range of an axis {size} long, got {p.begin} to {p.end}")
    _merge(_axis_part(p, len(data)), ins, outs)


def _like_axes(p: SliceLikeParams, data: tuple[int, ...], like: tuple[int, ...]) -> list[int]:
    """The axes to cut, counted from data's front."""
    if not p.axes:
        if len(like) != len(data):
            raise ShapeError(
                f"expected {len(data)} dimensions, as data has, got {show_shape(like)}: name the axes to cut in axes",
                side="input",
                index=1,
            )
        return list(range(len(data)))
    axes = [canonical_axis(axis, len(data), "axes") for axis in p.axes]
    if axes and max(axes) >= len(like):
        raise ShapeError(
            f"expected an axis {max(axes)}, as axes={p.axes} names for data of shape {show_shape(data)}, "
            f"got {show_shape(like)}",
            side="input",
            index=1,
        )
    return axes


@slice_like.infer_shape
def _(p: SliceLikeParams, ins: ShapeList, outs: ShapeList) -> None:
    data, like = ins
    if data is None or like is None:
        return
    axes = _like_axes(p, data, like)
    for axis in axes:
        if data[axis] >= 0 and like[axis] > data[axis]:
            raise ShapeError(f"axis {axis}: expected at most {data[axis]}, got {like[axis]}", side="input", index=1)
    outs.merge(0, tuple(like[axis] if axis in axes else size for axis, size in enumerate(data)))
    out = outs[0]
    if out is not None:
        ins.merge(0, tuple(-1 if axis in axes else size for axis, size in enumerate(out)))


@slice_like.infer_type
def _(p: SliceLikeParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))


def _like_part(p: SliceLikeParams, data: tuple[int, ...], like: tuple[int, ...]) -> Part:
    axes = _like_axes(p, data, like)
    return tuple(slice(0, like[axis]) if axis in axes else slice(None) for axis in range(len(data)))


def sliced(p: Any, data: Array, inputs: Arrays) -> Array:
    """The view of data, or of its gradient, that one of these operators takes; `inputs` are the operator's."""
    if isinstance(p, SliceParams):
        return data[part_of(p, data.ndim)]
    if isinstance(p, SliceAxisParams):
        return data[_axis_part(p, data.ndim)]
    return data[_like_part(p, data.shape, inputs[1].shape)]


def _declare(op: Op) -> tuple[Op, Op]:
    """Give an operator its gradient and what they compute; return both."""
    backward = register_backward(f"_backward_{op.name}", op.params)

    @op.gradient
    def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
        # slice_like's part is read from shape_like, whose own gradient is zero.
        return backward_node(backward.name, node, [ograds[0], *node.inputs[1:]], outputs=1)

    @op.compute()
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        ctx.xp.copyto(outputs[0], sliced(p, inputs[0], inputs))

    @backward.compute()
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
        gdata = outputs[0]
        gdata.fill(0)
        ctx.xp.copyto(sliced(p, gdata, inputs), inputs[0])

    return op, backward


SLICES = [_declare(definition) for definition in (slice_op, slice_axis, slice_like)]
"""The operators and their gradients."""
