"""The codes of MXNet's Reshape, for the operator and for `NDArray.reshape` alike.

The numbers are read from the left (from the right when reversed) along the dimensions of the data: a positive one is
that size; 0 keeps the dimension; -1 is whatever size remains; -2 keeps all remaining dimensions; -3 joins two
dimensions; -4 splits one into the two numbers that follow it where they are read (one of which may be -1): from the
right, these stand before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import ShapeError
from .shapes import known, show_shape, size_of

__all__ = ["INFERRED", "reshape_target"]

INFERRED = -1
"""Both an unknown dimension and the code for one that is inferred."""


def reshape_target(
    data: Sequence[int], shape: Sequence[int], reverse: bool = False
) -> tuple[tuple[int, ...], dict[int, int]]:
    """The shape that the codes mean for data of a shape.

    Args:
        data: its shape; -1 for unknown dimensions.
        shape: sizes and codes.
        reverse: read from the right.

    Returns:
        The target, -1 where it stays unknown; and by the number of each axis that is kept, its number in the target.

    Raises:
        ShapeError: the codes do not fit the dimensions. Whether sizes agree is not checked, but for -4.

    Example:
        >>> reshape_target((2, 3, 4), (-3, 0))[0]
        (6, 4)
    """
    source = list(reversed(data)) if reverse else list(data)
    codes = _codes(shape, reverse)
    target: list[int] = []
    copied: dict[int, int] = {}
    inferred: int | None = None
    at = 0

    def take(count: int) -> list[int]:
        nonlocal at
        if at + count > len(source):
            raise ShapeError(f"shape: expected at least {at + count} dimensions of data, got {show_shape(tuple(data))}")
        at += count
        return source[at - count : at]

    for code, *pair in codes:
        if code == 0:
            copied[at] = len(target)
            target += take(1)
        elif code == -1:
            if inferred is not None:
                raise ShapeError(f"shape: expected at most one -1, got {tuple(shape)}")
            inferred = len(target)
            target.append(INFERRED)
            at += 1
        elif code == -2:
            while at < len(source):
                copied[at] = len(target)
                target += take(1)
        elif code == -3:
            left, right = take(2)
            target.append(INFERRED if min(left, right) < 0 else left * right)
        elif code == -4:
            target += _split(take(1)[0], *pair)
        elif code > 0:
            target.append(code)
            at += 1
        else:
            raise ShapeError(f"shape: expected sizes or codes from -4 to 0, got {code}")
    if inferred is not None and known(tuple(data)):
        rest = size_of(d for axis, d in enumerate(target) if axis != inferred)
        if rest >= 0 and INFERRED not in target[:inferred] + target[inferred + 1 :]:
            target[inferred] = size_of(data) // rest if rest else 0
    if reverse:
        last, first = len(target) - 1, len(source) - 1
        return tuple(reversed(target)), {first - axis: last - to for axis, to in copied.items()}
    return tuple(target), copied


def _codes(shape: Sequence[int], reverse: bool) -> list[tuple[int, ...]]:
    """The codes one by one, in the order that they are read in, each -4 together with its two numbers."""
    codes: list[tuple[int, ...]] = []
    rest = iter(shape[::-1] if reverse else shape)
    for code in rest:
        if code == -4:
            pair = (code, next(rest, 0), next(rest, 0))
            if 0 in pair:
                raise ShapeError(f"shape: expected two sizes {'before' if reverse else 'after'} -4, got {tuple(shape)}")
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
