"""_arange, _linspace, _contrib_arange_like: evenly spaced numbers.

_arange: start, start + step, … up to but not including stop, each `repeat` times in a row
_linspace: `num` numbers from start to stop, including stop unless endpoint is False
With infer_range, _arange has no stop: it is as long as what it is used with.
"""

from __future__ import annotations

import math
from typing import Any

from opbox_protocol.errors import ParamError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..infer import ShapeList, canonical_axis, known, size_of
from ..node import Entry, Node
from ..params import AnyDType, Bool, Field, Float, NonNegativeInt, OptFloat, OptInt, Params, PositiveInt
from ..registry import register
from .fill import fixed_type


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


arange = register("_arange", ArangeParams, inputs=(), doc="Evenly spaced numbers from start up to stop.")
linspace = register("_linspace", LinspaceParams, inputs=(), doc="A given number of evenly spaced numbers.")
arange_like = register("_contrib_arange_like", ArangeLikeParams, doc="Evenly spaced numbers, as many as data has.")
arange.infer_type(fixed_type)
linspace.infer_type(fixed_type)


@arange.infer_shape
def _(p: ArangeParams, ins: ShapeList, outs: ShapeList) -> None:
    outs.rank(0, 1)
    if p.step == 0 or not all(math.isfinite(each) for each in (p.start, p.stop or 0, p.step)):
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
    if known(data) and size_of(outs[0] or ()) % p.repeat:
        raise ParamError(
            f"_contrib_arange_like: repeat: expected a divisor of {size_of(outs[0] or ())}, got {p.repeat}"
        )


@arange_like.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return [None]


def _count(xp: Any, start: float, step: float, repeat: int, req: OpReq, out: Array) -> None:
    if not req or not out.size:
        return
    exact = "float64" if out.dtype.kind == "f" else "int64"
    # In whole numbers where the type is whole, so that large ones stay exact.
    first, by = (start, step) if exact == "float64" else (int(start), step if step % 1 else int(step))
    numbers = xp.arange(-(-out.size // repeat), dtype=exact) * by + first
    if out.flags.c_contiguous and repeat == 1:
        assign(out.reshape(-1), req, numbers.astype(out.dtype))
    else:
        assign(out, req, xp.repeat(numbers, repeat)[: out.size].astype(out.dtype).reshape(out.shape))


@arange.compute()
def _(p: ArangeParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    first = 0.0 if p.stop is None and not p.infer_range else p.start
    _count(ctx.xp, first, p.step, p.repeat, req[0], outputs[0])


@arange_like.compute()
def _(p: ArangeLikeParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    _count(ctx.xp, p.start, p.step, p.repeat, req[0], outputs[0])


@linspace.compute()
def _(p: LinspaceParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if req[0] and p.num:
        numbers = ctx.xp.linspace(p.start, p.stop, p.num, endpoint=p.endpoint, dtype="float64")
        assign(outputs[0], req[0], numbers.astype(outputs[0].dtype))
