"""_ravel_multi_index, _unravel_index: positions in an array of `shape` as numbers of its flattened form, and back.

    ravel    data (m, n), one position a column -> (n,)        data[0] * shape[1] * … + … + data[m - 1]
    unravel  data (…) -> (m, …), m being shape's length

Positions are of data's type, fractions cut off, and are not compared with shape, whose first size may be -1: it is not
needed. The gradient is zero.
"""

from __future__ import annotations

from opbox_protocol.errors import ShapeError

from ..compute import Arrays, OpContext, Outputs, Temp, TempsRule
from ..infer import ShapeList
from ..node import Entry, Node
from ..params import Field, OptShape, Params
from ..registry import register
from .positions import whole


class RavelParams(Params):
    shape: OptShape = Field(None, description="The shape of the array that the positions are in.")


ravel = register(
    "_ravel_multi_index",
    RavelParams,
    aliases=("ravel_multi_index",),
    doc="Positions along several axes as positions in the flattened array.",
)
unravel = register(
    "_unravel_index",
    RavelParams,
    aliases=("unravel_index",),
    doc="Positions in a flattened array as positions along its axes.",
)


@ravel.gradient
@unravel.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [None]


def _sizes(p: RavelParams) -> tuple[int, ...]:
    if not p.shape or min(p.shape[1:], default=1) < 1 or p.shape[0] < -1 or p.shape[0] == 0:
        raise ShapeError(f"shape: expected sizes of at least 1, the first one -1 if it is not known, got {p.shape}")
    return p.shape


@ravel.infer_shape
def _(p: RavelParams, ins: ShapeList, outs: ShapeList) -> None:
    sizes = _sizes(p)
    ins.rank(0, 2)
    out = outs.rank(0, 1)
    data = ins.merge(0, (len(sizes), -1 if out is None else out[0]))
    assert data is not None
    outs.merge(0, data[1:])


@unravel.infer_shape
def _(p: RavelParams, ins: ShapeList, outs: ShapeList) -> None:
    sizes = _sizes(p)
    if ins[0] is not None:
        outs.merge(0, (len(sizes), *ins[0]))
    out = outs[0]
    if out is not None:
        if not out or out[0] not in (-1, len(sizes)):
            raise ShapeError(f"expected {len(sizes)} positions on the first axis, got {out}", side="output", index=0)
        ins.merge(0, out[1:])


def _whole(count: int) -> TempsRule:
    """So many arrays like data, of int64."""
    return lambda p, call: [Temp(call.inputs[0].shape, "int64")] * count


@ravel.compute(temps=_whole(1))
def _(p: RavelParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    total, *rows = whole(ctx.xp, inputs[0], ctx.temp[0])
    for size, row in zip(_sizes(p)[1:], rows, strict=True):
        total *= size
        total += row
    outputs[0][...] = total


@unravel.compute(temps=_whole(3))
def _(p: RavelParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (data,), (out,), (rest, quotient, scratch) = ctx.xp, inputs, outputs, ctx.temp
    sizes = _sizes(p)
    whole(xp, data, rest)
    for axis in range(len(sizes) - 1, 0, -1):
        # As in C: a negative number's quotient is cut off towards zero.
        xp.absolute(rest, out=quotient)
        quotient //= sizes[axis]
        xp.sign(rest, out=scratch)
        quotient *= scratch
        xp.multiply(quotient, sizes[axis], out=scratch)
        rest -= scratch
        out[axis] = rest
        rest, quotient = quotient, rest
    out[0] = rest
