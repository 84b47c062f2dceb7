"""moments: the mean of data over some axes, and its biased variance there.

data is any shape; mean and var are what is left of it without axes, or with length 1 along them with keepdims. With
n elements to a mean:

    mean = sum data / n        var = sum (data - mean)^2 / n        gdata = (gmean + 2 (data - mean) gvar) / n

Of integers both are whole: each quotient is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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


def moment_axes(p: MomentsParams, ndim: int) -> tuple[int, ...]:
    if not p.axes:
        raise ParamError(
            f"moments: parameter 'axes': expected at least one axis, got {p.axes}; name every axis for all"
        )
    return tuple(sorted({canonical_axis(axis, ndim, "axes") for axis in p.axes}))


@op.infer_shape
def _(p: MomentsParams, ins: ShapeList, outs: ShapeList) -> None:
    data = ins[0]
    if data is None:
        moment_axes(p, 1 << 31)
        outs.merge(1, outs.merge(0, outs.merge(1, outs[0])))
        return
    axes = moment_axes(p, len(data))
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
    """An array like data, one of its means, and for whole numbers one more like data, to divide in."""

    def rule(p: MomentsParams, call: CallSpec) -> Sequence[Temp]:
        shape, dtype = call.inputs[data].shape, call.inputs[data].dtype
        whole = dtype.kind in "iu"
        wide = np.dtype(np.int64) if whole else accumulation_type(dtype)
        mean = kept_dims(shape, moment_axes(p, len(shape)))
        return [Temp(shape, wide), Temp(mean, wide), *[Temp(mean if 0 in shape else shape, wide)] * whole]

    return rule


def _divide(xp: Any, total: Array, n: int, scratch: Arrays) -> None:
    """total / n in place; whole numbers are cut off, as C does it, in `scratch`, which is no smaller."""
    if scratch:
        quotient = scratch[0].reshape(-1)[: total.size].reshape(total.shape)
        xp.absolute(total, out=quotient)
        quotient //= n
        xp.sign(total, out=total)
        total *= quotient
    else:
        total /= n


def _centre(p: MomentsParams, xp: Any, data: Array, work: Arrays) -> tuple[tuple[int, ...], int]:
    """Write data - mean and the mean to `work`; the axes, and how many elements a mean is taken over."""
    axes = moment_axes(p, data.ndim)
    n = 1
    for axis in axes:
        n *= data.shape[axis]
    centred, mean, *scratch = work
    xp.sum(data, axis=axes, keepdims=True, dtype=centred.dtype, out=mean)
    _divide(xp, mean, max(1, n), scratch)
    xp.subtract(data, mean, out=centred)
    return axes, max(1, n)


@op.compute(temps=_temps(0))
def _(p: MomentsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (centred, mean, *scratch) = ctx.xp, ctx.temp
    axes, n = _centre(p, xp, inputs[0], ctx.temp)
    if outputs[0] is not None:
        outputs[0][...] = mean.reshape(outputs[0].shape)
    if outputs[1] is not None:
        xp.multiply(centred, centred, out=centred)
        variance = xp.sum(centred, axis=axes, keepdims=True, dtype=centred.dtype, out=mean)
        _divide(xp, variance, n, scratch)
        outputs[1][...] = variance.reshape(outputs[1].shape)


@backward.compute(temps=_temps(2))
def _(p: MomentsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    gmean, gvar, data = inputs
    xp, (centred, share, *scratch) = ctx.xp, ctx.temp
    _, n = _centre(p, xp, data, ctx.temp)
    centred *= gvar.reshape(share.shape)
    centred *= 2
    _divide(xp, centred, n, scratch)
    share[...] = gmean.reshape(share.shape)
    _divide(xp, share, n, scratch)
    centred += share
    outputs[0][...] = centred
