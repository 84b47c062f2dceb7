"""moments: the mean of data over some axes, and its biased variance there.

data is any shape; mean and var are what is left of it without axes, or with length 1 along them with keepdims. With
n elements to a mean:

    mean = sum data / n        var = sum (data - mean)^2 / n        gdata = (gmean + 2 (data - mean) gvar) / n

Of integers both are whole: each quotient is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opbox_protocol.errors import ParamError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import FLOATS, Shape, ShapeList, TypeList, canonical_axis
from ..node import Entry, Node
from ..params import Bool, Field, OptShape, Params
from ..registry import register, register_backward
from .axes import kept_dims, reduced


class MomentsParams(Params):
    axes: OptShape = Field(None, description="The axes to take the mean over; at least one.")
    keepdims: Bool = Field(False, description="Keep the axes, with length 1.")


op = register("moments", MomentsParams, outputs=("output0", "output1"))
backward = register_backward("_backward_moments", MomentsParams, outputs=("data",))


def _axes(p: MomentsParams, ndim: int) -> tuple[int, ...]:
    if not p.axes:
        raise ParamError(
            f"moments: parameter 'axes': expected at least one axis, got {p.axes}; name every axis for all"
        )
    return tuple(sorted({canonical_axis(axis, ndim, "axes") for axis in p.axes}))


@op.infer_shape
def _(p: MomentsParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        _axes(p, 1 << 31)
        outs.merge(1, outs.merge(0, outs.merge(1, outs[0])))
        return
    axes = _axes(p, len(data))
    out: Shape = reduced(data, axes, p.keepdims)
    for k in (0, 1, 0):
        out = outs.merge(k, out)
    if out is not None and len(axes) < len(data):
        lengths = iter(d for a, d in enumerate(out) if not p.keepdims or a not in axes)
        ins.merge(0, tuple(-1 if a in axes else next(lengths) for a in range(len(data))))


@op.infer_type
def _(p: MomentsParams, ins: TypeList, outs: TypeList) -> None:
    dtype = ins.only(0, *FLOATS, "int8", "uint8", "int32", "int64")
    for slots, k in ((outs, 0), (outs, 1), (ins, 0), (outs, 0)):
        dtype = slots.merge(k, dtype)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_moments", node, [*ograds, node.inputs[0]])


def _temps(data: int) -> Any:
    def rule(p: MomentsParams, call: CallSpec) -> Sequence[Temp]:
        dtype = call.inputs[data].dtype
        return [Temp(call.inputs[data].shape, "int64" if dtype.kind in "iu" else accumulation_type(dtype))]

    return rule


def _divide(xp: Any, total: Array, n: int) -> None:
    """total / n in place; whole numbers are cut off, as C does it."""
    if total.dtype.kind == "i":
        xp.copyto(total, xp.sign(total) * (abs(total) // n))
    else:
        total /= n


def _centred(p: MomentsParams, xp: Any, data: Array, centred: Array) -> tuple[Array, tuple[int, ...], int]:
    """Write data - mean; the mean, the axes, and how many elements a mean is taken over."""
    axes = _axes(p, data.ndim)
    n = 1
    for axis in axes:
        n *= data.shape[axis]
    mean = data.sum(axis=axes, keepdims=True, dtype=centred.dtype)
    _divide(xp, mean, max(1, n))
    xp.subtract(data, mean, out=centred)
    return mean, axes, max(1, n)


@op.compute(temps=_temps(0), allocates="the means in the type that is summed in")
def _(p: MomentsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    centred = ctx.temp[0]
    mean, axes, n = _centred(p, ctx.xp, inputs[0], centred)
    if outputs[0] is not None:
        outputs[0][...] = mean.reshape(outputs[0].shape)
    if outputs[1] is not None:
        ctx.xp.multiply(centred, centred, out=centred)
        variance = centred.sum(axis=axes, keepdims=True, dtype=centred.dtype)
        _divide(ctx.xp, variance, n)
        outputs[1][...] = variance.reshape(outputs[1].shape)


@backward.compute(temps=_temps(2), allocates="the means in the type that is summed in")
def _(p: MomentsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    gmean, gvar, data = inputs
    centred = ctx.temp[0]
    _, axes, n = _centred(p, ctx.xp, data, centred)
    shape = kept_dims(data.shape, axes)
    centred *= gvar.reshape(shape)
    centred *= 2
    _divide(ctx.xp, centred, n)
    share = gmean.astype(centred.dtype).reshape(shape)
    _divide(ctx.xp, share, n)
    centred += share
    outputs[0][...] = centred
