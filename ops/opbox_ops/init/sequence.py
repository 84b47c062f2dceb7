"""_arange, _linspace, _contrib_arange_like: evenly spaced numbers.

_arange: start, start + step, … up to but not including stop, each `repeat` times in a row
_linspace: `num` numbers from start to stop, including stop unless endpoint is False
With infer_range, _arange has no stop: it is as long as what it is used with.
_contrib_arange_like: start, start + step, … in data's shape, or with an axis as many as data is long along it.
The shapes are (repeat * ceil((stop - start) / step),), (num,), and data's or (size of the axis,).
On the CPU they are counted in pieces that stay in the cache, between which a call may be stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from opbox_protocol.errors import ParamError

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..index.counting import count_up
from ..infer import ShapeList, canonical_axis, size_of
from ..node import Entry, Node
from ..params import AnyDType, Bool, Field, Float, NonNegativeInt, OptFloat, OptInt, Params, PositiveInt, as_int64
from ..pausing import pause
from ..registry import register
from .fill import fixed_type

PIECE = 1 << 17
"""Numbers that are counted at a time on the CPU: 1 MiB."""


class ArangeParams(Params):
    start: Float = Field(description="The first number; without stop: the end, and the first number is 0.")
    stop: OptFloat = Field(None, description="The end, exclusive.")
    step: Float = Field(1.0, description="The difference of two neighbours.")
    repeat: PositiveInt = Field(1, description="How often each number occurs.")
    infer_range: Bool = Field(False, description="Without stop: as long as what it is used with.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: AnyDType = Field("float32", description="Element type of the array.")


class LinspaceParams(Params):
    start: Float = Field(description="The first number.")
    stop: Float = Field(description="The last number, or the end when endpoint is False.")
    num: NonNegativeInt = Field(description="How many numbers.")
    endpoint: Bool = Field(True, description="Whether stop is the last number.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    dtype: AnyDType = Field("float32", description="Element type of the array.")


class ArangeLikeParams(Params):
    start: Float = Field(0.0, description="The first number.")
    step: Float = Field(1.0, description="The difference of two neighbours.")
    repeat: PositiveInt = Field(1, description="How often each number occurs.")
    ctx: str = Field("", description="Accepted; the device is the executor's.")
    axis: OptInt = Field(None, description="The axis of data to count along; None: all of data, in its shape.")


arange = register(
    "_arange", ArangeParams, inputs=(), aliases=("_npi_arange",), doc="Evenly spaced numbers from start up to stop."
)
linspace = register("_linspace", LinspaceParams, inputs=(), doc="A given number of evenly spaced numbers.")
arange_like = register("_contrib_arange_like", ArangeLikeParams, doc="Evenly spaced numbers, as many as data has.")
arange.infer_type(fixed_type)
linspace.infer_type(fixed_type)


@arange.infer_shape
def _(p: ArangeParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.rank(0, 1)
    if p.step == 0 or not all(math.isfinite(number) for number in (p.start, p.stop or 0, p.step)):
        raise ParamError(f"_arange: expected finite numbers and a step other than 0, got step {p.step}")
    if p.stop is None and p.infer_range:
        return
    first, last = (0.0, p.start) if p.stop is None else (p.start, p.stop)
    outs.merge(0, (max(0, math.ceil((last - first) / p.step)) * p.repeat,))


@linspace.infer_shape
def _(p: LinspaceParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.merge(0, (p.num,))


@arange_like.infer_shape
def _(p: ArangeLikeParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        return
    if p.axis is None:
        outs.merge(0, data)
    else:
        outs.merge(0, (data[canonical_axis(p.axis, len(data))],))


@arange_like.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [None]


def _exact(dtype: Any) -> np.dtype[Any]:
    """The type to count in: whole numbers where the type is whole, so that large ones stay exact."""
    return np.dtype("float64" if np.dtype(dtype).kind in "fV" else "int64")


def _numbers(p: Any, call: CallSpec) -> list[Temp]:
    out = call.outputs[0]
    return [Temp((_piece(-(-size_of(out.shape) // p.repeat), call),), _exact(out.dtype))]


def _piece(count: int, call: CallSpec) -> int:
    return min(count, PIECE) if call.device == "cpu" else count


def _counted(xp: Any, numbers: Array, count: int) -> Iterator[tuple[int, Array]]:
    """0, 1, … up to `count`, exclusive, as many at a time as `numbers` has room for: the first of them, and all."""
    for begin in range(0, count, max(1, len(numbers))):
        piece = numbers[: count - begin]
        count_up(xp, piece)
        if begin:
            pause()
            xp.add(piece, begin, out=piece)
        yield begin, piece


def _count(ctx: OpContext, start: float, step: float, repeat: int, out: Array) -> None:
    """Write start, start + step, …, each `repeat` times."""
    xp, (numbers,) = ctx.xp, ctx.temp
    whole = numbers.dtype.kind == "i"
    flat = out.reshape(-1)
    repeat = min(repeat, max(1, flat.size))  # no view is as long as a number that nothing holds
    full = flat.size // repeat
    for begin, piece in _counted(xp, numbers, -(-flat.size // repeat)):
        xp.multiply(piece, as_int64(step) if whole else step, out=piece, casting="unsafe")
        xp.add(piece, as_int64(start) if whole else start, out=piece)
        end = min(begin + len(piece), full)
        xp.copyto(
            flat[begin * repeat : end * repeat].reshape(end - begin, repeat),
            piece[: end - begin, None],
            casting="unsafe",
        )
        if end - begin < len(piece):
            xp.copyto(flat[full * repeat :], piece[end - begin :], casting="unsafe")


@arange.compute(temps=_numbers)
def _(p: ArangeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    first = 0.0 if p.stop is None and not p.infer_range else p.start
    _count(ctx, first, p.step, p.repeat, outputs[0])


@arange_like.compute(temps=_numbers)
def _(p: ArangeLikeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    _count(ctx, p.start, p.step, p.repeat, outputs[0])


@linspace.compute(temps=lambda p, call: [Temp((_piece(p.num, call),), "float64")])
def _(p: LinspaceParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (numbers,) = ctx.xp, ctx.temp
    steps = p.num - 1 if p.endpoint else p.num
    for begin, piece in _counted(xp, numbers, p.num):
        xp.multiply(piece, (p.stop - p.start) / max(1, steps), out=piece)
        xp.add(piece, p.start, out=piece)
        end = begin + len(piece)
        if p.endpoint and end == p.num > 1:
            piece[-1:] = p.stop
        xp.copyto(outputs[0][begin:end], piece, casting="unsafe")
