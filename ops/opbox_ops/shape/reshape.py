"""Reshape: out = data's elements, in row-major order, under another shape.

`opbox_protocol.reshape` has the codes that `shape` may hold.

    gdata = gout under data's shape
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError
from opbox_protocol.reshape import INFERRED, reshape_target

from ..infer import Shape, ShapeList, known, show_shape, size_of
from ..params import Bool, Field, Params
from ..params import Shape as ShapeParam
from ..registry import register
from .view import as_view


class ReshapeParams(Params):
    shape: ShapeParam = Field((), description="The target shape, with the special codes 0, -1, -2, -3 and -4.")
    reverse: Bool = Field(False, description="Read the codes from the right.")
    target_shape: ShapeParam = Field((), description="Older form of shape, where 0 is the size to infer.")
    keep_highest: Bool = Field(False, description="With target_shape: keep the first dimension.")


op = as_view(register("Reshape", ReshapeParams, aliases=("reshape",)))


@op.infer_shape
def _(p: ReshapeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        if p.shape and all(code > 0 for code in p.shape):
            outs.merge(0, p.shape)
        return
    if p.shape:
        target, copied = reshape_target(data, p.shape, p.reverse)
        outs.merge(0, target)
        out = outs[0]
        if out is not None:
            ins.merge(0, tuple(out[copied[axis]] if axis in copied else -1 for axis in range(len(data))))
    elif p.target_shape:
        outs.merge(0, _legacy(p, data))
    ins.merge(0, _settle(ins[0], outs[0]))
    outs.merge(0, _settle(outs[0], ins[0]))
    if known(ins[0]) and known(outs[0]) and size_of(ins[0] or ()) != size_of(outs[0] or ()):
        raise ShapeError(
            f"expected a shape of {size_of(ins[0] or ())} elements for data {show_shape(ins[0])}, "
            f"got {show_shape(outs[0])}"
        )


def _legacy(p: ReshapeParams, data: tuple[int, ...]) -> tuple[int, ...]:
    target = [d if d else INFERRED for d in p.target_shape]
    if p.keep_highest and target:
        target[0] = data[0] if data else INFERRED
    unknown = [axis for axis, d in enumerate(target) if d == INFERRED]
    if len(unknown) == 1 and known(data):
        rest = size_of(d for d in target if d != INFERRED)
        target[unknown[0]] = size_of(data) // rest if rest else 0
    return tuple(target)


def _settle(shape: Shape, other: Shape) -> Shape:
    """`shape` with its one unknown dimension computed from the number of elements of `other`."""
    if shape is None or other is None or not known(other):
        return shape
    unknown = [axis for axis, d in enumerate(shape) if d < 0]
    rest = size_of(d for d in shape if d >= 0)
    if len(unknown) != 1 or rest == 0:
        return shape
    size, left_over = divmod(size_of(other), rest)
    if left_over:
        raise ShapeError(f"expected a multiple of {rest} elements for {show_shape(shape)}, got {show_shape(other)}")
    return (*shape[: unknown[0]], size, *shape[unknown[0] + 1 :])
