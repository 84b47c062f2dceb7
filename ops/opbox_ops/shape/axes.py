"""expand_dims, squeeze, reshape_like: shapes that gain, lose or borrow axes; the elements stay where they are.

expand_dims: data (a, b), axis=1 -> (a, 1, b)        squeeze: data (a, 1, b) -> (a, b)
reshape_like: lhs's elements in rhs's shape; with begins and ends, only lhs's axes [lhs_begin, lhs_end) take the
sizes of rhs's axes [rhs_begin, rhs_end).
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..infer import ShapeList, TypeList, canonical_axis, known, show_shape, size_of
from ..params import Field, Int, OptInt, OptShape, Params
from ..registry import register
from .view import as_view


class ExpandDimsParams(Params):
    axis: Int = Field(description="Where the new axis goes, from -(ndim + 1) to ndim.")


class SqueezeParams(Params):
    axis: OptShape = Field(None, description="The axes of size 1 to drop; all of them when it is None.")


class ReshapeLikeParams(Params):
    lhs_begin: OptInt = Field(None, description="First axis of lhs that changes; 0 by default.")
    lhs_end: OptInt = Field(None, description="Axis of lhs before which the change ends; all by default.")
    rhs_begin: OptInt = Field(None, description="First axis of rhs that is taken; 0 by default.")
    rhs_end: OptInt = Field(None, description="Axis of rhs before which the taking ends; all by default.")


expand_dims = as_view(
    register("expand_dims", ExpandDimsParams, doc="data with a new axis of size 1 in front of `axis`.")
)
squeeze = as_view(register("squeeze", SqueezeParams, doc="data without axes of size 1."))
reshape_like = as_view(
    register("reshape_like", ReshapeLikeParams, inputs=("lhs", "rhs"), doc="lhs's elements in rhs's shape.")
)


@expand_dims.infer_shape
def _(p: ExpandDimsParams, ins: ShapeList, outs: ShapeList) -> None:
    data, out = ins[0], outs[0]
    if data is not None:
        axis = canonical_axis(p.axis, len(data) + 1)
        out = outs.merge(0, (*data[:axis], 1, *data[axis:]))
    if out is not None:
        if not out:
            raise ShapeError("expected at least 1 dimension, got ()", side="output", index=0)
        axis = canonical_axis(p.axis, len(out))
        ins.merge(0, (*out[:axis], *out[axis + 1 :]))


@squeeze.infer_shape
def _(p: SqueezeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if p.axis is None:
        if known(data):
            outs.merge(0, tuple(d for d in data if d != 1) or (1,))
        return
    axes = [canonical_axis(axis, len(data)) for axis in p.axis]
    if len(set(axes)) < len(axes):
        raise ShapeError(f"axis: expected each axis once, got {p.axis}")
    for axis in axes:
        if data[axis] > 1 or data[axis] == 0:
            raise ShapeError(f"axis {axis}: expected size 1, got {show_shape(data)}", side="input", index=0)
    ins.merge(0, tuple(1 if axis in axes else -1 for axis in range(len(data))))
    remaining = [axis for axis in range(len(data)) if axis not in axes]
    out = outs.merge(0, tuple(data[axis] for axis in remaining) or (1,))
    if out is not None and remaining:
        back = [1] * len(data)
        for axis, size in zip(remaining, out, strict=True):
            back[axis] = size
        ins.merge(0, tuple(back))


@reshape_like.infer_type
def _(p: ReshapeLikeParams, ins: TypeList, outs: TypeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))


@reshape_like.infer_shape
def _(p: ReshapeLikeParams, ins: ShapeList, outs: ShapeList) -> None:
    lhs, rhs = ins
    if (p.lhs_begin, p.lhs_end, p.rhs_begin, p.rhs_end) == (None, None, None, None):
        ins.merge(1, outs.merge(0, rhs))
        out = outs[0]
    else:
        if lhs is None or rhs is None:
            return
        l0, l1 = _range(p.lhs_begin, p.lhs_end, len(lhs), "lhs")
        r0, r1 = _range(p.rhs_begin, p.rhs_end, len(rhs), "rhs")
        out = outs.merge(0, (*lhs[:l0], *rhs[r0:r1], *lhs[l1:]))
    if lhs is not None and out is not None and known(lhs) and known(out) and size_of(lhs) != size_of(out):
        raise ShapeError(
            f"expected as many elements as {show_shape(out)}, got {show_shape(lhs)}", side="input", index=0
        )


def _range(begin: int | None, end: int | None, ndim: int, side: str) -> tuple[int, int]:
    first = 0 if begin is None else begin + ndim if begin < 0 else begin
    last = ndim if end is None else end + ndim if end < 0 else end
    if not 0 <= first <= last <= ndim:
        raise ShapeError(f"{side}_begin, {side}_end: expected a range of {ndim} axes, got {begin} to {end}")
    return first, last
