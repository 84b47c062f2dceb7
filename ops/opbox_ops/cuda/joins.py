"""Concat, stack, SliceChannel, slice and their gradients on a GPU: all slices of a call are copied in one launch.

Channels that lie last are joined as the last axis of arrays as they lie. Arrays of several types are the reference's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ..bound_calls import Call, as_one
from ..compute import PLAIN, Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs
from ..infer import size_of
from ..layout import physical_arrays, share_layout
from ..operator import Op
from ..shape import concat, split
from ..shape.slice import SLICES, sliced
from .strided_copies import Pair, copies

_MAX_BYTES = 1 << 34
"""Maximum size of an array: units of 16 bytes are counted in int."""


def _of_one_type(arrays: Sequence[ArraySpec]) -> bool:
    dtype = arrays[0].dtype
    return all(array.dtype == dtype and size_of(array.shape) * dtype.itemsize < _MAX_BYTES for array in arrays)


# -- joined along an axis ----------------------------------------------------------------------------------------------


def _takes_layout(p: Any, call: CallSpec) -> bool:
    """True for arrays that lie alike; with the channels last for those that are joined along the channels."""
    everything = range(len(call.inputs)), range(len(call.outputs))
    arrays = (*call.inputs, *call.outputs)
    by_channels = p.dim % len(arrays[0].shape) == 1 if arrays[0].shape else False
    return _of_one_type(arrays) and share_layout(call, *everything) and (call.plain or by_channels)


def _along(joined: Array, axis: int, arrays: Sequence[Array | None], sizes: Sequence[int]) -> list[Pair]:
    """Each array, and where it is in the joined one."""
    pairs, begin = [], 0
    for array, size in zip(arrays, sizes, strict=True):
        if array is not None:
            pairs.append((array, joined[(*(slice(None),) * axis, slice(begin, begin + size))]))
        begin += size
    return pairs


def _bind(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, apart: bool) -> Call:
    specs = ctx.call.outputs if apart else ctx.call.inputs
    axis = p.dim % len(specs[0].shape)
    sizes = [spec.shape[axis] for spec in specs]
    ins, outs = physical_arrays(ctx.call, inputs, outputs)
    axis = axis if specs[0].layout == PLAIN else len(specs[0].shape) - 1
    if apart:
        return copies(ctx.xp, _along(ins[0], axis, outs, sizes))
    return copies(ctx.xp, [(place, array) for array, place in _along(outs[0], axis, ins, sizes)])


for _op in (concat.concat, concat.numpy_concat):
    _op.compute("gpu", level="generated", prepares=True, accepts=_takes_layout)(partial(_bind, apart=False))
for _op in (concat.concat_backward, concat.numpy_concat_backward):
    _op.compute("gpu", level="generated", prepares=True, accepts=_takes_layout)(partial(_bind, apart=True))


# -- stacked, split, sliced --------------------------------------------------------------------------------------------


def _takes_plain(p: Any, call: CallSpec) -> bool:
    return call.plain and _of_one_type((*call.inputs, *call.outputs))


def _attach(op: Op, parts: Any, *, apart: bool) -> None:
    """Give an operator a compute; `parts` are views of its one input (`apart`) or output, one for each other array."""

    @op.compute("gpu", level="generated", prepares=True, accepts=_takes_plain)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        views, arrays = parts(p, (inputs if apart else outputs)[0]), outputs if apart else inputs
        pairs = [(array, view) for array, view in zip(arrays, views, strict=True) if array is not None]
        return copies(ctx.xp, pairs if apart else [(view, array) for array, view in pairs])


for _forward, _backward in split.PARTED:
    _attach(_forward, split.parts_of, apart=True)
    _attach(_backward, split.parts_of, apart=False)
_attach(concat.stack, concat.stacked_parts, apart=False)
_attach(concat.stack_backward, concat.stacked_parts, apart=True)


def _takes_slice(p: Any, call: CallSpec) -> bool:
    """True for arrays of one type; of slice_like's shape_like only the shape counts."""
    return call.plain and _of_one_type((call.inputs[0], *call.outputs))


def _bind_slice(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    return copies(ctx.xp, [(outputs[0], sliced(p, inputs[0], inputs))])


def _bind_slice_gradient(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    gdata = outputs[0]
    return as_one([partial(gdata.fill, 0), copies(ctx.xp, [(sliced(p, gdata, inputs), inputs[0])])])


for _forward, _backward in SLICES:
    _forward.compute("gpu", level="generated", prepares=True, accepts=_takes_slice)(_bind_slice)
    _backward.compute("gpu", level="generated", prepares=True, accepts=_takes_slice)(_bind_slice_gradient)
