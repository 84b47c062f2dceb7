"""Reshape: out = data's elements, in row-major order, under another shape.

The numbers of `shape` are read from the left (from the right with reverse=True) along data's dimensions: a positive one
is that size; 0 keeps data's dimension; -1 is whatever size remains; -2 keeps all remaining dimensions; -3 joins two
dimensions; -4 splits one into the two numbers that follow (one of which may be -1).

    gdata = gout under data's shape
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

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

INFER = -1
"""Both an unknown dimension and the code for one that is inferred."""


@op.infer_shape
def _(p: ReshapeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        if p.shape and all(code > 0 for code in p.shape):
            outs.merge(0, p.shape)
        return
    if p.shape:
        target, kept = _decode(p, data)
        outs.merge(0, target)
        out = outs[0]
        if out is not None:
            ins.merge(0, tuple(out[kept[axis]] if axis in kept else -1 for axis in range(len(data))))
    elif p.target_shape:
        outs.merge(0, _legacy(p, data))
    ins.merge(0, _settle(ins[0], outs[0]))
    outs.merge(0, _settle(outs[0], ins[0]))
    if known(ins[0]) and known(outs[0]) and size_of(ins[0] or ()) != size_of(outs[0] or ()):
        raise ShapeError(
            f"expected a shape of {size_of(ins[0] or ())} elements for data {show_shape(ins[0])}, "
            f"got {show_shape(outs[0])}"
        )


def _decode(p: ReshapeParams, data: tuple[int, ...]) -> tuple[tuple[int, ...], dict[int, int]]:
    """The target shape that the codes mean for `data`, and which input axis is kept as which output axis."""
    source = list(reversed(data)) if p.reverse else list(data)
    codes = _codes(p)
    target: list[int] = []
    kept: dict[int, int] = {}
    inferred: int | None = None
    at = 0

    def take(count: int) -> list[int]:
        nonlocal at
        if at + count > len(source):
            raise ShapeError(f"shape: expected at least {at + count} dimensions of data, got {show_shape(data)}")
        at += count
        return source[at - count : at]

    for code, *pair in reversed(codes) if p.reverse else codes:
        if code == 0:
            kept[at] = len(target)
            target += take(1)
        elif code == -1:
            if inferred is not None:
                raise ShapeError(f"shape: expected at most one -1, got {p.shape}")
            inferred = len(target)
            target.append(INFER)
            at += 1
        elif code == -2:
            while at < len(source):
                kept[at] = len(target)
                target += take(1)
        elif code == -3:
            left, right = take(2)
            target.append(INFER if min(left, right) < 0 else left * right)
        elif code == -4:
            split = _split(take(1)[0], *pair)
            target += reversed(split) if p.reverse else split
        elif code > 0:
            target.append(code)
            at += 1
        else:
            raise ShapeError(f"shape: expected sizes or codes from -4 to 0, got {code}")
    if inferred is not None and known(data):
        rest = size_of(d for axis, d in enumerate(target) if axis != inferred)
        if rest >= 0 and INFER not in target[:inferred] + target[inferred + 1 :]:
            target[inferred] = size_of(data) // rest if rest else 0
    if p.reverse:
        last, first = len(target) - 1, len(source) - 1
        return tuple(reversed(target)), {first - axis: last - to for axis, to in kept.items()}
    return tuple(target), kept


def _codes(p: ReshapeParams) -> list[tuple[int, ...]]:
    """The codes one by one, each -4 together with its two numbers."""
    codes: list[tuple[int, ...]] = []
    rest = iter(p.shape)
    for code in rest:
        if code == -4:
            pair = (code, next(rest, 0), next(rest, 0))
            if 0 in pair:
                raise ShapeError(f"shape: expected two sizes after -4, got {p.shape}")
            codes.append(pair)
        else:
            codes.append((code,))
    return codes


def _split(size: int, left: int, right: int) -> list[int]:
    if left == -1 and right == -1:
        raise ShapeError("shape: expected at most one -1 after -4, got two")
    if size >= 0:
        left = size // right if left == -1 and right else left
        right = size // left if right == -1 and left else right
        if left * right != size:
            raise ShapeError(f"shape: expected two numbers after -4 whose product is {size}, got {left} and {right}")
    return [left, right]


def _legacy(p: ReshapeParams, data: tuple[int, ...]) -> tuple[int, ...]:
    target = [d if d else INFER for d in p.target_shape]
    if p.keep_highest and target:
        target[0] = data[0] if data else INFER
    unknown = [axis for axis, d in enumerate(target) if d == INFER]
    if len(unknown) == 1 and known(data):
        rest = size_of(d for d in target if d != INFER)
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
