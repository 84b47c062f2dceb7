"""mx.np's reshape and squeeze, and mx.npx's reshape, where they differ from those of the older interface.

_np_reshape: data (2, 3), newshape=(3, -1) -> (3, 2)        _np_squeeze: (1, 1) -> ()
_npx_reshape: -2 keeps a dimension, -3 drops one of size 1, -4 keeps the rest, -5 joins two, -6 splits one
"""

from __future__ import annotations

from typing import Literal

from opbox_protocol.errors import ShapeError
from opbox_protocol.reshape import INFERRED, reshape_target

from ..infer import ShapeList, canonical_axis, known, show_shape, size_of
from ..params import Bool, Field, Params, Shape
from ..registry import register
from .axes import SqueezeParams
from .view import as_view

_OLDER_CODES = {-2: 0, -4: -2, -5: -3, -6: -4}
"""mx.npx's codes of reshape as those of Reshape; -3 has no counterpart."""


class NumpyReshapeParams(Params):
    newshape: Shape = Field(description="The target shape; one size may be -1, which is inferred.")
    order: Literal["C"] = Field("C", description="Row-major order, the only one.")


class NpxReshapeParams(Params):
    newshape: Shape = Field(description="The target shape, with the codes -1 to -6.")
    reverse: Bool = Field(False, description="Read the codes from the right.")
    order: Literal["C"] = Field("C", description="Row-major order, the only one.")


reshape = as_view(register("_np_reshape", NumpyReshapeParams, inputs=("a",), doc="a's elements in another shape."))
npx_reshape = as_view(
    register("_npx_reshape", NpxReshapeParams, inputs=("a",), doc="a's elements in a shape that codes tell.")
)
squeeze = as_view(register("_np_squeeze", SqueezeParams, inputs=("a",), doc="a without axes of size 1."))


def _filled(ins: ShapeList, outs: ShapeList, target: tuple[int, ...]) -> None:
    """The output's shape, where one size of `target` may be unknown: what the elements leave."""
    data = ins[0]
    assert data is not None
    if known(data):
        rest = size_of(d for d in target if d != INFERRED)
        if INFERRED in target and rest and size_of(data) % rest == 0:
            target = tuple(size_of(data) // rest if d == INFERRED else d for d in target)
        if not known(target) or size_of(target) != size_of(data):
            raise ShapeError(f"newshape: expected a shape of {size_of(data)} elements, got {show_shape(target)}")
    outs.merge(0, target)


@reshape.infer_shape
def _(p: NumpyReshapeParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.newshape.count(-1) > 1 or any(d < -1 for d in p.newshape):
        raise ShapeError(f"newshape: expected sizes, of which one may be -1, got {p.newshape}")
    if ins[0] is not None:
        _filled(ins, outs, p.newshape)


@npx_reshape.infer_shape
def _(p: NpxReshapeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    codes = tuple(reversed(p.newshape)) if p.reverse else p.newshape
    sizes = tuple(reversed(data)) if p.reverse else data
    if 0 in codes or (-3 in codes and -6 in codes):
        raise ShapeError(f"newshape: expected sizes and codes that opbox knows together, got {p.newshape}")
    at = 0
    remaining: list[int] = []  # the sizes that are not dropped
    older: list[int] = []
    position = 0
    while position < len(codes):
        code = codes[position]
        taken = {-4: len(sizes) - at, -5: 2}.get(code, 1)
        if code == -3:
            if at >= len(sizes) or sizes[at] not in (1, -1):
                raise ShapeError(f"newshape: expected a dimension of size 1 for -3, got {show_shape(data)}")
        else:
            remaining += sizes[at : at + taken]
            older.append(_OLDER_CODES.get(code, code))
            if code == -6:
                older += codes[position + 1 : position + 3]
                position += 2
        at += taken
        position += 1
    remaining += sizes[at:]
    target = reshape_target(remaining, older)[0]
    _filled(ins, outs, tuple(reversed(target)) if p.reverse else target)


@squeeze.infer_shape
def _(p: SqueezeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if p.axis is None:
        if known(data):
            outs.merge(0, tuple(d for d in data if d != 1))
        return
    axes = {canonical_axis(axis, len(data)) for axis in p.axis}
    for axis in axes:
        if data[axis] > 1 or data[axis] == 0:
            raise ShapeError(f"axis {axis}: expected size 1, got {show_shape(data)}", side="input", index=0)
    outs.merge(0, tuple(d for axis, d in enumerate(data) if axis not in axes))
