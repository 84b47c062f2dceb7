"""SliceChannel and _split_v2: one array in several parts along an axis.

SliceChannel: data (…, n * d, …) -> n outputs (…, d, …), or (…) without the axis where d is 1 and squeeze_axis is set
_split_v2: `sections` equal parts, or parts that begin at `indices`
gdata = the parts of gout, joined again
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import grad_use_none
from ..infer import ShapeList, canonical_axis, show_shape
from ..params import Bool, Count, Field, Int, OptCount, Params, Shape
from ..registry import Counted, Op, register, register_backward

__all__ = ["PARTED", "join_parts", "parts_of", "take_parts"]


class SliceChannelParams(Params):
    num_outputs: Count = Field(description="How many equal parts.")
    axis: Int = Field(1, description="The axis to split.")
    squeeze_axis: Bool = Field(False, description="Drop the axis; it must then be num_outputs long.")


class SplitV2Params(Params):
    indices: Shape = Field(description="Where parts begin; a leading 0 is MXNet's and is optional.")
    axis: Int = Field(1, description="The axis to split.")
    squeeze_axis: Bool = Field(False, description="Drop the axis; each part must then be 1 long.")
    sections: OptCount = Field(0, description="How many equal parts; 0: split at indices.")


class NumpySplitParams(SplitV2Params):
    """Those of mx.np's hsplit and dsplit: the operator's name says the axis."""


def _axis(p: Any, ndim: int) -> int:
    """The axis to split, from the front: that of hsplit is a vector's only one."""
    if isinstance(p, NumpySplitParams) and p.axis == 1 and ndim == 1:
        return 0
    return canonical_axis(p.axis, ndim)


def _parts_v2(p: SplitV2Params) -> int:
    return p.sections or len(_starts(p))


def _starts(p: SplitV2Params) -> tuple[int, ...]:
    return p.indices if p.indices[:1] == (0,) else (0, *p.indices)


slice_channel = register(
    "SliceChannel",
    SliceChannelParams,
    outputs=Counted("num_outputs"),
    aliases=("split",),
    doc="Equal parts of data along an axis.",
)
split_v2 = register(
    "_split_v2",
    SplitV2Params,
    outputs=Counted("sections", begins="indices"),
    doc="Parts of data along an axis, equal or split at given indices.",
)


hsplit = register(
    "_npi_hsplit",
    NumpySplitParams,
    outputs=Counted("sections", begins="indices"),
    doc="Parts of data along its second axis, or a vector's only one.",
)
dsplit = register(
    "_npi_dsplit",
    NumpySplitParams,
    outputs=Counted("sections", begins="indices"),
    doc="Parts of data along its third axis.",
)


def _count(p: Any) -> int:
    return p.num_outputs if isinstance(p, SliceChannelParams) else _parts_v2(p)


def _sizes(p: Any, length: int) -> list[int]:
    """The parts' sizes along the axis, -1 where unknown."""
    count = _count(p)
    if isinstance(p, SliceChannelParams) or p.sections:
        if length >= 0 and length % count:
            raise ShapeError(f"axis {p.axis}: expected a multiple of {count}, got {length}", side="input", index=0)
        return [length // count if length >= 0 else -1] * count
    bounds = [*_starts(p), length]
    sizes = [end - begin for begin, end in pairwise(bounds)]
    if length < 0:
        sizes[-1] = -1
    elif min(sizes) < 0:
        raise ShapeError(f"indices: expected rising positions up to {length}, got {p.indices}")
    return sizes


def _declare(op: Op) -> tuple[Op, Op]:
    """Give an operator and its gradient what they have in common; return both."""
    backward = register_backward(f"_backward_{op.name}", op.params)
    op.set_attr("FGradient", grad_use_none(backward.name))
    op.set_attr("FInferShape", _infer_shape)
    op.set_attr("FParts", parts_of)
    backward.set_attr("FParts", parts_of)
    op.compute()(take_parts)
    backward.compute()(join_parts)
    return op, backward


def _infer_shape(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    squeeze = p.squeeze_axis
    ranked = next((shape for shape in outs if shape is not None), None)
    if ins[0] is None and ranked is not None:
        ins.merge(0, (-1,) * (len(ranked) + squeeze))
    data = ins[0]
    if data is None:
        return
    axis = _axis(p, len(data))
    if squeeze and data[axis] >= 0 and any(size != 1 for size in _sizes(p, data[axis])):
        raise ShapeError(
            f"squeeze_axis: expected axis {axis} to be {_count(p)} long, got {show_shape(data)}", side="input", index=0
        )
    rest_before, rest_after = data[:axis], data[axis + 1 :]
    for _ in range(2):
        for i, size in enumerate(_sizes(p, data[axis])):
            out = outs.merge(i, (*rest_before, *(() if squeeze else (size,)), *rest_after))
            assert out is not None
            rest_before, rest_after = out[:axis], out[axis + (not squeeze) :]
    lengths = [1 if squeeze else shape[axis] for shape in outs if shape is not None]
    equal = isinstance(p, SliceChannelParams) or p.sections
    if equal and max(lengths) >= 0:
        total = max(lengths) * len(lengths)
    else:
        total = sum(lengths) if min(lengths) >= 0 else -1
    ins.merge(0, (*rest_before, total, *rest_after))
    if equal and not squeeze and max(lengths) >= 0:
        for i in range(len(outs)):
            outs.merge(i, (*rest_before, max(lengths), *rest_after))


def parts_of(p: Any, array: Array) -> list[Array]:
    """Views of the parts of `array`, without the axis when it is squeezed."""
    axis = _axis(p, array.ndim)
    lead = (slice(None),) * axis
    if p.squeeze_axis:
        # The ellipsis keeps a view where nothing else would: a scalar could not be written.
        return [array[(*lead, i, ...)] for i in range(_count(p))]
    views, begin = [], 0
    for size in _sizes(p, array.shape[axis]):
        views.append(array[(*lead, slice(begin, begin + size))])
        begin += size
    return views


def take_parts(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for part, out in zip(parts_of(p, inputs[0]), outputs, strict=True):
        if out is not None:
            ctx.xp.copyto(out, part)


def join_parts(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    for part, gout in zip(parts_of(p, outputs[0]), inputs, strict=True):
        ctx.xp.copyto(part, gout)


PARTED = _declare(slice_channel), _declare(split_v2)
"""The operators and their gradients."""
for _op in (hsplit, dsplit):
    _declare(_op)
