"""Operators that take elements by their indices, of which those below 0 count from the end of the axis."""

from __future__ import annotations

import numpy as np

from ...symbol import Symbol
from ..importing import ImportCall, imports

EXACT = 2**24
"""Indices up to this one are exact as parameters, which are float32 in MXNet's files."""


@imports("Gather")
def _(call: ImportCall) -> Symbol:
    axis = call.axis()
    if not call.is_constant(1):
        taken = call.step("take", call.symbol(0), call.symbol(1), axis=axis, mode="wrap")
        if call.rank(1) == 0 and call.rank(0) > 1:  # MXNet has no index without dimensions
            return call.make("squeeze", taken, axis=axis)
        return call.make("_copy", taken)
    index, size = call.constant(1), call.shape(0)[axis]
    lowest, highest = (int(index.min()), int(index.max())) if index.size else (0, 0)
    if size is not None and not -size <= lowest <= highest < size:
        raise call.refuse(f"indices: expected {-size} to {size - 1}, got {lowest} to {highest}")
    if index.ndim == 0:
        first = int(index)
        one = call.step("slice_axis", call.symbol(0), axis=axis, begin=first, end=None if first == -1 else first + 1)
        return call.make("squeeze", one, axis=axis) if call.rank(0) > 1 else call.make("_copy", one)
    if max(-lowest, highest) > EXACT:
        raise call.refuse(f"indices: expected none beyond {EXACT}, got {lowest} to {highest}")
    place = call.graph.variable(call.input_name(1), index.astype(np.float32))
    return call.make("take", call.symbol(0), place, axis=axis, mode="wrap")


@imports("GatherElements")
def _(call: ImportCall) -> Symbol:
    axis, data, index = call.axis(), call.shape(0), call.shape(1)
    if index[axis] == 1 and None not in index and index[:axis] + index[axis + 1 :] == data[:axis] + data[axis + 1 :]:
        place = call.symbol(1) if len(data) == 1 else call.step("squeeze", call.symbol(1), axis=axis)
        if len(data) > 1:
            return call.make("pick", call.symbol(0), place, axis=axis, keepdims=True, mode="wrap")
    sizes = call.known_shape(1)
    grids = _grids(call, sizes)
    grids[axis] = call.step("Cast", call.symbol(1), dtype="float32")
    return call.make("gather_nd", call.symbol(0), call.step("stack", *grids, axis=0))


def _grids(call: ImportCall, sizes: tuple[int, ...]) -> list[Symbol]:
    """For each axis of an array of these sizes its own index, everywhere."""
    if max((*call.known_shape(0), *sizes)) > EXACT:
        raise call.refuse(f"expected sizes of at most {EXACT}, got {call.shape(0)} and {sizes}")
    return [
        call.parameter(f"grid{axis}", np.broadcast_to(grid, sizes).astype(np.float32))
        for axis, grid in enumerate(np.indices(sizes))
    ]


@imports("GatherND")
def _(call: ImportCall) -> Symbol:
    rank, batches = call.rank(1), int(call.attr("batch_dims", 0))
    order = (rank - 1, *range(rank - 1))
    if batches == 0:
        index = call.symbol(1) if rank == 1 else call.step("transpose", call.symbol(1), axes=order)
        return call.make("gather_nd", call.symbol(0), index)
    *head, width = call.known_shape(1)
    grids = [call.step("expand_dims", grid, axis=0) for grid in _grids(call, tuple(head))[:batches]]
    index = call.step("Cast", call.step("transpose", call.symbol(1), axes=order), dtype="float32")
    assert width
    return call.make("gather_nd", call.symbol(0), call.step("Concat", *grids, index, dim=0))


@imports("OneHot")
def _(call: ImportCall) -> Symbol:
    """MXNet has no element on for an index below 0, ONNX none for one below -depth."""
    values, depth = call.constant(2), int(call.scalar(1))
    off, on = values.tolist()
    rank = max(call.rank(0), 1)
    axis = call.axis(rank=call.rank(0) + 1)
    index = call.step("Cast", call.symbol(0), dtype="int64")
    lacking = call.step("_mul_scalar", call.step("_lesser_scalar", index, scalar=0), scalar=depth)
    index = call.step("elemwise_add", index, lacking)
    out = call.step("one_hot", index, depth=depth, on_value=on, off_value=off, dtype=values.dtype.name)
    if call.rank(0) == 0:
        return call.make("Reshape", out, shape=(depth,))
    order = list(range(rank))
    order.insert(axis, rank)
    return call.make("transpose", out, axes=tuple(order))
