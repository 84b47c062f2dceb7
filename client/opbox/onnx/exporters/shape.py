"""Operators that move elements: shapes, slices, joins, indexing; and constants."""

from __future__ import annotations

import numpy as np

from ...symbol import Symbol
from ..exporting import ExportCall, exports, refuse

FAR = 2**31 - 1


def _name(call: ExportCall) -> str:
    return call.node.op.name if call.node.op is not None else ""


@exports("Concat")
def _(call: ExportCall) -> str:
    return call.emit("Concat", *call.inputs, axis=int(call.attr("dim")) % call.rank)


@exports("stack")
def _(call: ExportCall) -> str:
    axis = call.axis(rank=call.rank + 1)
    wide = [call.emit("Unsqueeze", value, call.ints([axis])) for value in call.inputs]
    return call.emit("Concat", *wide, axis=axis)


@exports("Flatten")
def _(call: ExportCall) -> str:
    return call.emit("Flatten", call.inputs[0], axis=1)


@exports(
    "Reshape",
    "reshape_like",
    "squeeze",
    "expand_dims",
    without_effect=(
        "shape",
        "reverse",
        "target_shape",
        "keep_highest",
        "lhs_begin",
        "lhs_end",
        "rhs_begin",
        "rhs_end",
        "axis",
    ),
)
def _(call: ExportCall) -> str:
    if _name(call) == "expand_dims":
        return call.emit("Unsqueeze", call.inputs[0], call.ints([call.axis(rank=call.rank + 1)]))
    if _name(call) == "reshape_like" and call.shapes[1] == call.out_shapes[0] and call.attr("lhs_begin") is None:
        return call.reshape_as(call.inputs[0], 1)
    out = call.reshape(call.inputs[0], call.shapes[0], call.out_shapes[0])
    return call.emit("Identity", out) if out == call.inputs[0] else out


@exports("transpose")
def _(call: ExportCall) -> str:
    axes = [int(a) % call.rank for a in call.attr("axes") or ()] or list(reversed(range(call.rank)))
    return call.emit("Transpose", call.inputs[0], perm=axes)


@exports("SwapAxis")
def _(call: ExportCall) -> str:
    axes = list(range(call.rank))
    a, b = call.axis("dim1"), call.axis("dim2")
    axes[a], axes[b] = axes[b], axes[a]
    return call.emit("Transpose", call.inputs[0], perm=axes)


def _sliced(call: ExportCall, begin: list[int], end: list[int], axes: list[int], step: list[int] | None = None) -> str:
    steps = [call.ints(step)] if step is not None else []
    return call.emit("Slice", call.inputs[0], call.ints(begin), call.ints(end), call.ints(axes), *steps)


@exports("slice")
def _(call: ExportCall) -> str:
    begins, ends, steps = (call.attr(key) or () for key in ("begin", "end", "step"))
    begin, end, step = [], [], []
    for axis, (first, last) in enumerate(zip(begins, ends, strict=True)):
        stride = (steps[axis] if axis < len(steps) else None) or 1
        begin.append(first if first is not None else 0 if stride > 0 else FAR)
        end.append(last if last is not None else FAR if stride > 0 else -FAR)
        step.append(stride)
    return _sliced(call, begin, end, list(range(len(begin))), step)


@exports("slice_axis")
def _(call: ExportCall) -> str:
    end = call.attr("end")
    return _sliced(call, [int(call.attr("begin") or 0)], [FAR if end is None else int(end)], [call.axis()])


@exports("slice_like")
def _(call: ExportCall) -> str:
    axes = [int(a) % call.rank for a in call.attr("axes") or ()] or list(range(call.rank))
    ends = call.emit("Gather", call.emit("Shape", call.inputs[1]), call.ints(axes), axis=0)
    return call.emit("Slice", call.inputs[0], call.ints([0] * len(axes)), ends, call.ints(axes))


@exports("SliceChannel", "_split_v2", without_effect=("indices", "sections"))
def _(call: ExportCall) -> list[str]:
    axis = call.axis()
    whole = call.size(0, axis)
    begins = list(call.attr("indices") or ()) if _name(call) == "_split_v2" else []
    if begins and not call.attr("sections"):
        begins = begins if begins[0] == 0 else [0, *begins]
        sizes = [end - begin for begin, end in zip(begins, [*begins[1:], whole], strict=True)]
    else:
        count = int(call.attr("num_outputs") or call.attr("sections"))
        sizes = [whole // count] * count
    parts = call.emit_all("Split", call.inputs[0], call.ints(sizes), outputs=len(sizes), axis=axis)
    if call.attr("squeeze_axis"):
        parts = [call.emit("Squeeze", part, call.ints([axis])) for part in parts]
    return parts


@exports("tile")
def _(call: ExportCall) -> str:
    reps = [int(r) for r in call.attr("reps")]
    data = call.inputs[0]
    if len(reps) > call.rank:
        data = call.emit("Unsqueeze", data, call.ints(list(range(len(reps) - call.rank))))
    return call.emit("Tile", data, call.ints([1] * (call.rank - len(reps)) + reps))


@exports("repeat")
def _(call: ExportCall) -> str:
    count, data, shape = int(call.attr("repeats")), call.inputs[0], call.shapes[0]
    if call.attr("axis") is None:
        flat = call.emit("Reshape", data, call.ints([-1, 1]))
        return call.emit("Reshape", call.emit("Tile", flat, call.ints([1, count])), call.ints([-1]))
    axis = call.axis()
    wide = call.emit("Unsqueeze", data, call.ints([axis + 1]))
    tiled = call.emit("Tile", wide, call.ints([count if a == axis + 1 else 1 for a in range(call.rank + 1)]))
    return call.reshape(tiled, (*shape[: axis + 1], count, *shape[axis + 1 :]), call.out_shapes[0])


@exports("reverse")
def _(call: ExportCall) -> str:
    axis = call.attr("axis")
    axes = [int(a) for a in (axis if isinstance(axis, tuple) else (axis,))]
    return _sliced(call, [FAR] * len(axes), [-FAR] * len(axes), axes, [-1] * len(axes))


@exports(
    "broadcast_to", "broadcast_axis", "broadcast_like", without_effect=("shape", "axis", "size", "lhs_axes", "rhs_axes")
)
def _(call: ExportCall) -> str:
    before, after = call.shapes[0], call.out_shapes[0]
    same_rank = len(before) == len(after)
    sizes = tuple(1 if same_rank and size is None and before[i] is None else size for i, size in enumerate(after))
    if _name(call) == "broadcast_like" and None in sizes and call.attr("lhs_axes") is None:
        return call.emit("Expand", call.inputs[0], call.emit("Shape", call.inputs[1]))
    return call.emit("Expand", call.inputs[0], call.ints(call.static(sizes)))


@exports("Pad", without_effect=("constant_value",))
def _(call: ExportCall) -> str:
    width = [int(w) for w in call.attr("pad_width")]
    mode = call.attr("mode")
    value = [call.constant(call.attr("constant_value"))] if mode == "constant" else []
    return call.emit("Pad", call.inputs[0], call.ints([*width[::2], *width[1::2]]), *value, mode=mode)


@exports("depth_to_space")
def _(call: ExportCall) -> str:
    return call.emit("DepthToSpace", call.inputs[0], blocksize=int(call.attr("block_size")), mode="DCR")


@exports("space_to_depth")
def _(call: ExportCall) -> str:
    return call.emit("SpaceToDepth", call.inputs[0], blocksize=int(call.attr("block_size")))


# -- indexing -------------------------------------------------------------------------------------------------------


def _within(call: ExportCall, index: str, dtype: np.dtype[np.generic], size: int, mode: str) -> str:
    """The index as int64, clipped to the axis or wrapped round it."""
    index = call.as_type(index, dtype, np.int64)
    if mode == "wrap":
        return call.emit("Mod", index, call.ints(size))
    return call.emit("Clip", index, call.ints(0), call.ints(size - 1))


@exports("take")
def _(call: ExportCall) -> str:
    axis, mode = call.axis(), call.attr("mode")
    if mode == "raise":
        index = call.as_type(call.inputs[1], call.dtypes[1], np.int64)
    else:
        index = _within(call, call.inputs[1], call.dtypes[1], call.size(0, axis), mode)
    return call.emit("Gather", call.inputs[0], index, axis=axis)


@exports("pick", without_effect=("keepdims",))
def _(call: ExportCall) -> str:
    axis = call.attr("axis")
    if axis is None:
        raise refuse(call, "expected an axis, got None: reshape to one dimension and give axis=0")
    axis = int(axis) % call.rank
    index = _within(call, call.inputs[1], call.dtypes[1], call.size(0, axis), call.attr("mode"))
    if len(call.shapes[1]) < call.rank:
        index = call.emit("Unsqueeze", index, call.ints([axis]))
    taken = call.emit("GatherElements", call.inputs[0], index, axis=axis)
    return taken if len(call.out_shapes[0]) == call.rank else call.emit("Squeeze", taken, call.ints([axis]))


@exports("gather_nd")
def _(call: ExportCall) -> str:
    index = call.as_type(call.inputs[1], call.dtypes[1], np.int64)
    rank = len(call.shapes[1])
    return call.emit("GatherND", call.inputs[0], call.moved(index, 0, rank - 1, rank))


@exports("one_hot")
def _(call: ExportCall) -> str:
    values = call.constant([call.attr("off_value"), call.attr("on_value")])
    depth = int(call.attr("depth"))
    index = call.as_type(call.inputs[0], call.dtypes[0], np.int64)
    # ONNX counts negative indices from the end; MXNet has no element on for them.
    index = call.emit("Where", call.emit("Less", index, call.ints(0)), call.ints(depth), index)
    return call.emit("OneHot", index, call.ints(depth), values, axis=-1)


# -- constants ------------------------------------------------------------------------------------------------------


@exports("_zeros", "_ones", "_full", without_effect=("shape",))
def _(call: ExportCall) -> str:
    value = {"_zeros": 0, "_ones": 1}.get(_name(call))
    value = call.attr("value") if value is None else value
    return call.constant(np.full(call.static(call.out_shapes[0]), value))


@exports("_arange", without_effect=("start", "stop", "step", "repeat"))
def _(call: ExportCall) -> str:
    if call.attr("infer_range"):
        raise refuse(call, "infer_range: expected False, got True: give stop")
    return call.constant(Symbol([(call.node, 0)]).eval()[0].asnumpy())


@exports("zeros_like", "ones_like")
def _(call: ExportCall) -> str:
    value = call.constant(0 if _name(call) == "zeros_like" else 1)
    return call.emit("Expand", value, call.emit("Shape", call.inputs[0]))


@exports("shape_array")
def _(call: ExportCall) -> str:
    return call.emit("Shape", call.inputs[0])


@exports("size_array")
def _(call: ExportCall) -> str:
    return call.emit("Reshape", call.emit("Size", call.inputs[0]), call.ints([1]))
