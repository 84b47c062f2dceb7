"""mx.np's roll and rot90: the same elements at other places.

_np_roll     out[i + shift] = data[i] along the axes, what passes the end comes in at the beginning; without axis on
             the flattened array
_npi_rot90   the plane of two axes rotated by k quarters, from the first axis towards the second
data (2, 3) -> (2, 3), and rotated by an odd number of quarters (3, 2).
gdata = gout moved back
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, Outputs
from ..gradient import grad_use_none, linear_gradient
from ..infer import ShapeList, canonical_axis
from ..params import Field, Int, OptShape, Params, Shape
from ..registry import register, register_backward


class RollParams(Params):
    shift: Shape = Field(description="By how many places, one number or one for each axis.")
    axis: OptShape = Field(None, description="The axes; the flattened array when it is None.")


class Rot90Params(Params):
    k: Int = Field(1, description="How many quarter turns.")
    axes: Shape = Field(description="The two axes of the plane.")


roll = register("_np_roll", RollParams, doc="data moved along axes; what passes the end comes in at the beginning.")
rot90 = register("_npi_rot90", Rot90Params, doc="data rotated by quarters in the plane of two axes.")
roll_backward = register_backward("_backward_np_roll", RollParams)
rot90_backward = register_backward("_backward_npi_rot90", Rot90Params)
for _op, _backward in ((roll, roll_backward), (rot90, rot90_backward)):
    _op.set_attr("FGradient", grad_use_none(_backward.name))
    _backward.set_attr("FGradient", linear_gradient())


def _shifts(p: RollParams, ndim: int) -> dict[int, int]:
    """By how many places each axis is moved."""
    if not p.shift:
        raise ShapeError(f"shift: expected a number, or one for each axis, got {p.shift}")
    if p.axis is None:
        if len(p.shift) != 1:
            raise ShapeError(f"shift: expected one number where axis is None, got {p.shift}")
        return {0: p.shift[0]}
    shift = p.shift * len(p.axis) if len(p.shift) == 1 else p.shift
    if len(shift) != len(p.axis):
        raise ShapeError(f"shift, axis: expected as many of each, got {p.shift} and {p.axis}")
    shifts: dict[int, int] = {}
    for number, axis in zip(shift, p.axis, strict=True):
        place = canonical_axis(axis, ndim)
        shifts[place] = shifts.get(place, 0) + number
    return shifts


@roll.infer_shape
def _(p: RollParams, ins: ShapeList, outs: ShapeList) -> None:
    shape = ins.merge(0, outs.merge(0, ins[0]))
    if shape is not None:
        _shifts(p, len(shape))


def _blocks(shape: tuple[int, ...], shifts: dict[int, int]) -> Iterator[tuple[Any, Any]]:
    """The blocks that stay together: where each is, and where it goes."""
    pairs = []
    for axis, size in enumerate(shape):
        shift = shifts.get(axis, 0) % size if size else 0
        rest = size - shift
        whole = [(slice(0, rest), slice(shift, size))]
        pairs.append([*whole, (slice(rest, size), slice(0, shift))] if shift else whole)
    for block in product(*pairs):
        yield tuple(source for source, _ in block), tuple(target for _, target in block)


def _roll(p: RollParams, ctx: OpContext, data: Array, out: Array, sign: int) -> None:
    if p.axis is None:
        data, out = data.reshape(-1), out.reshape(-1)
    shifts = {axis: sign * number for axis, number in _shifts(p, data.ndim).items()}
    for source, target in _blocks(data.shape, shifts):
        ctx.xp.copyto(out[target], data[source])


@roll.compute()
def _(p: RollParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _roll(p, ctx, inputs[0], outputs[0], 1)


@roll_backward.compute()
def _(p: RollParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _roll(p, ctx, inputs[0], outputs[0], -1)


@rot90.infer_shape
def _(p: Rot90Params, ins: ShapeList, outs: ShapeList) -> None:
    if len(p.axes) != 2:
        raise ShapeError(f"axes: expected two axes, got {p.axes}")
    data = ins[0]
    if data is None:
        return
    one, other = (canonical_axis(axis, len(data), "axes") for axis in p.axes)
    if one == other:
        raise ShapeError(f"axes: expected two axes, got {p.axes}, which are one")
    shape = list(data)
    if p.k % 2:
        shape[one], shape[other] = shape[other], shape[one]
    outs.merge(0, tuple(shape))


def _flipped(array: Array, *axes: int) -> Array:
    back = slice(None, None, -1)
    return array[tuple(back if axis in axes else slice(None) for axis in range(array.ndim))]


def _rotated(p: Rot90Params, array: Array, k: int) -> Array:
    """A view of the array, rotated by k quarters."""
    one, other = (axis % array.ndim for axis in p.axes)
    if k % 4 == 1:
        return _flipped(array, other).swapaxes(one, other)
    if k % 4 == 3:
        return _flipped(array.swapaxes(one, other), other)
    return _flipped(array, one, other) if k % 4 else array


@rot90.compute()
def _(p: Rot90Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.copyto(outputs[0], _rotated(p, inputs[0], p.k))


@rot90_backward.compute()
def _(p: Rot90Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    ctx.xp.copyto(outputs[0], _rotated(p, inputs[0], -p.k))
