"""Operators that move elements: shapes, slices, joins, indexing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...symbol import Symbol
from ..importing import ImportCall, imports

FAR = 2**31 - 1


@imports("Concat")
def _(call: ImportCall) -> Symbol:
    return call.make("Concat", *(call.symbol(i) for i in range(call.count)), dim=call.attr("axis") % call.rank(0))


@imports("Flatten")
def _(call: ImportCall) -> Symbol:
    axis = call.attr("axis", 1) % max(call.rank(0), 1)
    if axis == 1:
        return call.make("Flatten", call.symbol(0))
    head = [size for size in call.shape(0)[:axis] if size is not None]
    if len(head) != axis:
        raise call.refuse(f"axis: expected 1, or known sizes before it, got {axis} of {call.shape(0)}")
    return call.make("Reshape", call.symbol(0), shape=(int(np.prod(head)), -1))


@imports("Reshape")
def _(call: ImportCall) -> Symbol:
    target = [int(size) for size in call.constant(1).reshape(-1)] if call.has(1) else list(call.attr("shape"))
    if call.attr("allowzero", 0) and 0 in target:
        raise call.refuse("allowzero: expected sizes above 0, got 0")
    return call.make("Reshape", call.symbol(0), shape=tuple(target) or (1,))


@imports("Transpose")
def _(call: ImportCall) -> Symbol:
    return call.make("transpose", call.symbol(0), axes=tuple(call.attr("perm", ())))


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
    axis, count = call.attr("axis", 0) % call.rank(0), len(call.node.output)
    sizes = call.ints(1, "split")
    if sizes is None or len(set(sizes)) == 1:
        if count == 1:
            return [call.make("_copy", call.symbol(0))]
        return list(call.make("SliceChannel", call.symbol(0), num_outputs=count, axis=axis))
    indices = [0, *np.cumsum(sizes)[:-1].tolist()]
    return list(call.make("_split_v2", call.symbol(0), indices=tuple(indices), axis=axis))


@imports("Tile")
def _(call: ImportCall) -> Symbol:
    return call.make("tile", call.symbol(0), reps=tuple(int(r) for r in call.constant(1)))


@imports("Expand")
def _(call: ImportCall) -> Symbol:
    target = [int(size) for size in call.constant(1)]
    sizes = call.shape(0)
    data = call.symbol(0)
    if len(target) > len(sizes) and sizes:
        known = [-1 if size is None else size for size in sizes]
        data = call.step("Reshape", data, shape=(*[1] * (len(target) - len(sizes)), *known))
    wide = (*[1] * (len(target) - len(sizes)), *sizes)
    target = [1] * (len(wide) - len(target)) + target
    axes = [axis for axis, (size, wanted) in enumerate(zip(wide, target, strict=True)) if size == 1 and wanted > 1]
    if not axes:
        return call.make("_copy", data)
    return call.make("broadcast_axis", data, axis=tuple(axes), size=tuple(target[axis] for axis in axes))


@imports("Pad")
def _(call: ImportCall) -> Symbol:
    pads, mode = call.ints(1, "pads") or [], call.attr("mode", "constant")
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
    op = "depth_to_space" if call.node.op_type == "DepthToSpace" else "space_to_depth"
    return call.make(op, call.symbol(0), block_size=call.attr("blocksize"))


@imports("Resize", "Upsample")
def _(call: ImportCall) -> Symbol:
    place = 2 if call.node.op_type == "Resize" and call.graph.opset >= 11 else 1
    scales = call.constant(place).reshape(-1).tolist() if call.has(place) else call.attr("scales") or []
    same = len(scales) == 4 and scales[:2] == [1, 1] and scales[2] == scales[3] and float(scales[2]).is_integer()
    floor = call.attr("nearest_mode", "round_prefer_floor") == "floor" or place == 1
    asymmetric = call.attr("coordinate_transformation_mode", "half_pixel") == "asymmetric" or place == 1
    if call.attr("mode", "nearest") != "nearest" or not (same and floor and asymmetric):
        raise call.refuse(
            "expected mode nearest (floor, asymmetric) and one whole scale of height and width, got "
            f"{call.attr('mode', 'nearest')} and {scales}"
        )
    return call.make("UpSampling", call.symbol(0), scale=int(scales[2]), sample_type="nearest", num_args=1)


@imports("Gather")
def _(call: ImportCall) -> Symbol:
    axis = call.attr("axis", 0)
    if call.is_constant(1):
        index = call.constant(1)
        if index.ndim == 0:
            first = int(index)
            one = call.step(
                "slice_axis", call.symbol(0), axis=axis, begin=first, end=None if first == -1 else first + 1
            )
            return call.make("squeeze", one, axis=axis)
        size = call.shape(0)[axis]
        if (index < 0).any() and size is None:
            raise call.refuse("expected indices from 0 on, got negative ones on an axis of unknown size")
        index = np.where(index < 0, index + (size or 0), index)
        # Parameters are float32 in MXNet's files; integers up to 2**24 are exact there.
        place = call.graph.variable(call.node.input[1], index.astype(np.float32))
    else:
        place = call.symbol(1)
    return call.make("take", call.symbol(0), place, axis=axis, mode="clip")


@imports("GatherElements")
def _(call: ImportCall) -> Symbol:
    axis = call.attr("axis", 0) % call.rank(0)
    if call.shape(1)[axis] != 1:
        raise call.refuse(f"expected one index along axis {axis}, got {call.shape(1)}")
    place = call.step("squeeze", call.symbol(1), axis=axis)
    return call.make("pick", call.symbol(0), place, axis=axis, keepdims=True)


@imports("GatherND")
def _(call: ImportCall) -> Symbol:
    rank = call.rank(1)
    index = call.step("transpose", call.symbol(1), axes=(rank - 1, *range(rank - 1)))
    return call.make("gather_nd", call.symbol(0), index)


@imports("OneHot")
def _(call: ImportCall) -> Symbol:
    off, on = call.constant(2).tolist()
    if call.attr("axis", -1) not in (-1, call.rank(0)):
        raise call.refuse(f"axis: expected -1, got {call.attr('axis')}")
    dtype = call.constant(2).dtype.name
    depth = int(call.scalar(1))
    return call.make("one_hot", call.symbol(0), depth=depth, on_value=on, off_value=off, dtype=dtype)


@imports("Shape")
def _(call: ImportCall) -> Symbol:
    if "start" in call.attrs or "end" in call.attrs:
        raise call.refuse("expected the whole shape, got a part by start or end")
    return call.make("shape_array", call.symbol(0))


@imports("Size")
def _(call: ImportCall) -> Symbol:
    return call.make("size_array", call.symbol(0))
