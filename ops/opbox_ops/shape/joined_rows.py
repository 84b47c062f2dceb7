"""Concat, SliceChannel, _split_v2 and their gradients as copies of rows: what lies behind the axis lies together.

    joined[row] = part_0[row], part_1[row], …        a row for each element in front of the axis

Channels that lie last are joined so too, as the last axis of arrays as they lie. A C kernel copies in threads, as soon
as there is one, and NumPy before, and where an array does not lie in order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from ctypes import addressof, c_long, c_void_p
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from ..compute import PLAIN, Array, Arrays, ArraySpec, CallSpec, Kernel, OpContext, Outputs, Reusable
from ..cpu.runtime.c_kernel import CKernel
from ..cpu.runtime.kernel_text import kernel_text
from ..layout import physical_arrays, physical_shape, share_layout
from ..operator import Op
from .concat import ConcatParams, concat, concat_backward, join, take_apart
from .split import PARTED, join_parts, parts_of, take_parts

__all__ = ["new_kernel"]

HOT = 1 << 26
"""Bytes that NumPy copies before the kernel is asked for: some 20 ms."""

_TEXT = kernel_text("joined_rows.c")


def new_kernel() -> CKernel:
    """The kernel, not compiled yet."""
    types = [c_void_p, c_void_p, c_long, c_void_p, c_long, c_long, c_long]
    return CKernel(_TEXT, "opbox_joined_rows", types, HOT, threads=True)


_KERNEL = new_kernel()


def _copied(arrays: Sequence[Array | None], widths: Sequence[int], joined: Array, apart: bool) -> Callable[[], None]:
    """A call that writes `arrays` side by side to `joined`, or with `apart` the other way, where there is an array.

    Args:
        arrays: of as many rows as `joined`, and their `widths`.
        joined: a matrix.
    """
    rows, all_bytes = len(joined), joined.shape[1] * joined.itemsize
    pairs = [
        (array, joined[:, end - width : end])
        for array, width, end in zip(arrays, widths, accumulate(widths), strict=True)
        if array is not None
    ]
    places = (c_void_p * len(arrays))(*[None if array is None else array.ctypes.data for array in arrays])
    sizes = (c_long * len(arrays))(*[width * joined.itemsize for width in widths])
    numbers = joined.ctypes.data, rows, all_bytes, int(apart)
    arguments, kernel = (addressof(places), addressof(sizes), len(arrays), *numbers), _KERNEL.asked_by(joined.nbytes)

    def call(alive: Any = (arrays, joined, places, sizes)) -> None:
        function = kernel()
        if function is not None:
            function(*arguments)
            return
        for array, place in pairs:
            if apart:
                np.copyto(array, place)
            else:
                np.copyto(place, array)

    return call


def _axis(p: ConcatParams, call: CallSpec, joined: ArraySpec) -> int | None:
    """Where the axis lies in memory; None where the arrays do not lie alike, or are empty."""
    everything = range(len(call.inputs)), range(len(call.outputs))
    if 0 in joined.shape or not share_layout(call, *everything):
        return None
    axis = p.dim % len(joined.shape)
    if joined.layout == PLAIN:
        return axis
    return len(joined.shape) - 1 if axis == 1 else None


def _rows(array: Array, axis: int) -> Array:
    """A contiguous array as a matrix of its rows."""
    return array.reshape(math.prod(array.shape[:axis]), math.prod(array.shape[axis:]))


concat.set_attr("FSpatialOperands", lambda p: (tuple(range(p.num_args)), (0,)) if p.dim == 1 else None)
concat_backward.set_attr("FSpatialOperands", lambda p: ((0,), tuple(range(p.num_args))) if p.dim == 1 else None)


@concat.kernel("cpu", level="library")
def _(p: ConcatParams, call: CallSpec) -> Kernel | None:
    axis = _axis(p, call, call.outputs[0])
    return None if axis is None else Kernel(partial(_bind, axis, apart=False), rebind=_rebind)


@concat_backward.kernel("cpu", level="library")
def _(p: ConcatParams, call: CallSpec) -> Kernel | None:
    axis = _axis(p, call, call.inputs[0])
    return None if axis is None else Kernel(partial(_bind, axis, apart=True))


def _bind(
    axis: int, p: ConcatParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, apart: bool
) -> Callable[[], Any]:
    ins, outs = physical_arrays(ctx.call, inputs, outputs)
    joined = (ins if apart else outs)[0]
    arrays, specs = (outs, ctx.call.outputs) if apart else (ins, ctx.call.inputs)
    if not all(array is None or array.flags.c_contiguous for array in (joined, *arrays)):
        return partial(take_apart if apart else join, p, ctx, inputs, outputs)
    rows = [None if array is None else _rows(array, axis) for array in arrays]
    return _copied(rows, [math.prod(physical_shape(spec)[axis:]) for spec in specs], _rows(joined, axis), apart)


def _rebind(p: ConcatParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Reusable:
    def run(inputs: Arrays, outputs: Outputs) -> None:
        join(p, ctx, inputs, outputs)

    return run


def _parts_call(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, apart: bool) -> Callable[[], Any]:
    joined, arrays = (inputs[0], outputs) if apart else (outputs[0], inputs)
    assert joined is not None
    if not all(array is None or array.flags.c_contiguous for array in (joined, *arrays)):
        return partial(take_parts if apart else join_parts, p, ctx, inputs, outputs)
    axis = p.axis % joined.ndim
    behind, matrix = math.prod(joined.shape[axis + 1 :]), _rows(joined, axis)
    widths = [behind * (1 if p.squeeze_axis else part.shape[axis]) for part in parts_of(p, joined)]
    rows = [None if array is None else array.reshape(len(matrix), -1) for array in arrays]
    return _copied(rows, widths, matrix, apart)


def _attach_parts(op: Op, *, apart: bool) -> None:
    @op.kernel("cpu", level="library")
    def _(p: Any, call: CallSpec) -> Kernel | None:
        if not call.plain or any(0 in spec.shape for spec in (*call.inputs, *call.outputs)):
            return None
        return Kernel(partial(_parts_call, apart=apart))


for _forward, _backward in PARTED:
    _attach_parts(_forward, apart=True)
    _attach_parts(_backward, apart=False)
