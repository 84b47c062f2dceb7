"""Operators that move elements: shapes, slices, joins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...symbol import Symbol
from ..importing import ImportCall, imports

FAR = 2**31 - 1
NEAREST = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"))
"""Resize's ways to find a neighbour that are the same for whole scales."""


@imports("Concat")
def _(call: ImportCall) -> Symbol:
    return call.make("Concat", *(call.symbol(i) for i in range(call.count)), dim=call.axis())


@imports("Flatten")
def _(call: ImportCall) -> Symbol:
    rank, axis = call.rank(0), call.attr("axis")
    if not -rank <= axis <= rank:
        raise call.refuse(f"axis: expected {-rank} to {rank}, got {axis}")
    axis = axis + rank if axis < 0 else axis
    if axis == 1:
        return call.make("Flatten", call.symbol(0))
    if axis == rank:
        return call.make("Reshape", call.symbol(0), shape=(-1, 1))
    head = call.known(call.shape(0)[:axis], f"input 0 before axis {axis}")
    return call.make("Reshape", call.symbol(0), shape=(math.prod(head), -1))


@imports("Reshape")
def _(call: ImportCall) -> Symbol:
    target = tuple(call.ints(1, "shape") or ())
    if call.attr("allowzero") and 0 in target:
        raise call.refuse("allowzero: expected sizes above 0, got 0")
    return call.make("Reshape", call.symbol(0), shape=target or (1,))


@imports("Transpose")
def _(call: ImportCall) -> Symbol:
    return call.make("transpose", call.symbol(0), axes=tuple(call.attr("perm", [])))


@imports("Squeeze")
def _(call: ImportCall) -> Symbol:
    axes = call.ints(1, "axes")
    return call.make("squeeze", call.symbol(0), axis=tuple(axes) if axes is not None else None)


@imports("Unsqueeze")
def _(call: ImportCall) -> Symbol:
    axes = call.ints(1, "axes") or []
    rank = call.rank(0) + len(axes)
    data = call.symbol(0)
    for axis in sorted(axis % rank for axis in axes)[:-1]:
        data = call.step("expand_dims", data, axis=axis)
    return call.make("expand_dims", data, axis=max(axis % rank for axis in axes))


@imports("Slice")
def _(call: ImportCall) -> Symbol:
    begins, ends = call.ints(1, "starts") or [], call.ints(2, "ends") or []
    axes = call.ints(3, "axes") or list(range(len(begins)))
    steps = call.ints(4, "steps") or [1] * len(begins)
    rank = call.rank(0)
    begin: list[int | None] = [None] * rank
    end: list[int | None] = [None] * rank
    step: list[int | None] = [None] * rank
    for first, last, axis, stride in zip(begins, ends, axes, steps, strict=True):
        size = call.shape(0)[axis]
        far = FAR if size is None else size
        begin[axis] = None if (stride > 0 and first == 0) or (stride < 0 and first >= far - 1) else first
        end[axis] = None if (stride > 0 and last >= far) or (stride < 0 and last <= -far - 1) else last
        step[axis] = stride
    return call.make("slice", call.symbol(0), begin=tuple(begin), end=tuple(end), step=tuple(step))


@imports("Split")
def _(call: ImportCall) -> Sequence[Symbol]:
    axis, count = call.axis(), len(call.outputs)
    sizes = call.ints(1, "split")
    if call.attr("num_outputs", count) != count:
        raise call.refuse(f"num_outputs: expected {count}, the number of outputs, got {call.attr('num_outputs')}")
    if sizes is None:
        size = call.shape(0)[axis]
        if size is None and call.attr("num_outputs") and count > 1:
            raise call.refuse(
                f"num_outputs: expected an axis of known size, got {call.shape(0)}, whose parts may differ"
            )
        part = -(-(size or count) // count)
        sizes = [part] * (count - 1) + [(size or count) - part * (count - 1)]
    if count == 1:
        return [call.make("_copy", call.symbol(0))]
    if min(sizes) < 0:
        raise call.refuse(f"split: expected {count} parts of the axis, got {sizes}")
    if len(set(sizes)) == 1:
        return list(call.make("SliceChannel", call.symbol(0), num_outputs=count, axis=axis))
    indices = [0, *np.cumsum(sizes)[:-1].tolist()]
    return list(call.make("_split_v2", call.symbol(0), indices=tuple(indices), axis=axis))


@imports("Tile")
def _(call: ImportCall) -> Symbol:
    return call.make("tile", call.symbol(0), reps=tuple(int(r) for r in call.constant(1)))


@imports("Expand")
def _(call: ImportCall) -> Symbol:
    """A size of 1 in the target leaves the data's, as 0 does for MXNet."""
    target = [int(size) for size in call.constant(1)]
    rank = max(len(target), call.rank(0), 1)
    data = call.widened(0, rank)
    sizes = [0 if size == 1 else size for size in (*[1] * (rank - len(target)), *target)]
    return call.make("broadcast_to", data, shape=tuple(sizes)) if any(sizes) else call.make("_copy", data)


@imports("Pad")
def _(call: ImportCall) -> Symbol:
    pads, mode = call.ints(1, "pads") or [], call.attr("mode")
    if call.has(3):
        raise call.refuse("axes: expected none, got some")
    if mode not in ("constant", "edge", "reflect"):
        raise call.refuse(f"mode: expected constant, edge or reflect, got {mode}")
    half = len(pads) // 2
    width = tuple(part for pair in zip(pads[:half], pads[half:], strict=True) for part in pair)
    value = call.scalar(2, call.attr("value", 0.0))
    return call.make("Pad", call.symbol(0), mode=mode, pad_width=width, constant_value=value)


@imports("DepthToSpace", "SpaceToDepth")
def _(call: ImportCall) -> Symbol:
    if call.attr("mode", "DCR") != "DCR":
        raise call.refuse(f"mode: expected DCR, got {call.attr('mode')}")
    op = "depth_to_space" if call.op_type == "DepthToSpace" else "space_to_depth"
    return call.make(op, call.symbol(0), block_size=call.attr("blocksize"))


@imports("Resize", "Upsample")
def _(call: ImportCall) -> Symbol:
    """Nearest neighbours by a whole scale: the nearest to a pixel's middle are those below its corner."""
    new = call.op_type == "Resize" and call.graph.opset >= 11
    place = 2 if new else 1
    scales = call.constant(place).reshape(-1).tolist() if call.has(place) else call.attr("scales", [])
    same = len(scales) == 4 and scales[:2] == [1, 1] and scales[2] == scales[3] and float(scales[2]).is_integer()
    nearest = ("asymmetric", "floor")
    if new:
        call.without_effect("extrapolation_value", "exclude_outside", "cubic_coeff_a", inputs=[1])
        nearest = (call.attr("coordinate_transformation_mode"), call.attr("nearest_mode"))
    mode = call.attr("mode")
    if mode != "nearest" or not same or nearest not in NEAREST:
        raise call.refuse(
            "expected mode nearest (asymmetric with floor, or half_pixel with round_prefer_floor) and one whole scale "
            f"of height and width, got {mode} ({' with '.join(nearest)}) and {scales or 'no scales'}"
        )
    return call.make("UpSampling", call.symbol(0), scale=int(scales[2]), sample_type="nearest", num_args=1)


@imports("Shape")
def _(call: ImportCall) -> Symbol:
    begin, end = call.attr("start", 0), call.attr("end")
    if begin == 0 and end is None:
        return call.make("shape_array", call.symbol(0))
    part = range(call.rank(0))[begin:end]
    if not part:
        raise call.refuse(f"expected a part of the shape with sizes, got start {begin} and end {end}")
    whole = call.step("shape_array", call.symbol(0))
    return call.make("slice_axis", whole, axis=0, begin=part.start, end=part.stop)


@imports("Size")
def _(call: ImportCall) -> Symbol:
    return call.make("size_array", call.symbol(0))
