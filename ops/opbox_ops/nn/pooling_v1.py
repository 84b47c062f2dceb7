"""Pooling_v1: the maximum, mean or sum of data under a sliding window, as the first version of Pooling has it.

data (batch, channel, height, width), out (batch, channel, *out). With global_pool the window is all of data and stride
and pad are not read. The convention rounds the output's size (spatial + 2 pad - kernel) / stride + 1: "valid" down,
"full" up. Other than Pooling's, the padding is zeros for every kind of pooling, the mean divides by the size of the
whole window even where that reaches outside of the padding, and the maximum's gradient goes to every element that
equals it:

    max  out = max    gdata = sum of gout over the windows whose maximum the element equals
    sum  out = sum    gdata = sum of gout over the windows that have the element
    avg  out = sum / prod(kernel)    gdata = that sum / prod(kernel)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, Params, Shape
from ..registry import register, register_backward
from .window import spatial


class PoolingV1Params(Params):
    kernel: Shape = Field((), description="Size of the window; needed unless global_pool.")
    pool_type: Literal["avg", "max", "sum"] = Field("max", description="What is taken of a window.")
    global_pool: Bool = Field(False, description="Pool over all of data.")
    pooling_convention: Literal["full", "valid"] = Field("valid", description="How the output size is rounded.")
    stride: Shape = Field((), description="Step of the window; 1 by default.")
    pad: Shape = Field((), description="Zeros before and after each spatial dimension; 0 by default.")


op = register("Pooling_v1", PoolingV1Params)
op.infer_type(all_same_float)
backward = register_backward("_backward_Pooling_v1", PoolingV1Params, outputs=("data",))


def _window(p: PoolingV1Params, size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, stride and padding, for data's spatial dimensions."""
    ndim = len(size)
    if p.global_pool:
        return size, (1,) * ndim, (0,) * ndim
    return p.kernel, spatial(p.stride, ndim, 1, "stride", 1), spatial(p.pad, ndim, 0, "pad", 0)


@op.infer_shape
def _(p: PoolingV1Params, ins: ShapeList, outs: ShapeList) -> None:
    if not p.global_pool and (len(p.kernel) not in (2, 3) or min(p.kernel) < 1):
        raise ShapeError(f"kernel: expected two or three positive numbers (or global_pool), got {p.kernel}")
    data = ins.rank(0, 4, 5) if p.global_pool else ins.rank(0, len(p.kernel) + 2)
    if data is None:
        out = outs.rank(0, 4, 5) if p.global_pool else outs.rank(0, len(p.kernel) + 2)
        if out is None:
            return
        data = (*out[:2], *(-1 for _ in out[2:]))
    sizes = [1] * (len(data) - 2)
    if not p.global_pool:
        spans = [n + 2 * q - k if n >= 0 else None for n, k, _, q in _axes(p, data[2:])]
        if any(span is not None and span < 0 for span in spans):
            message = f"expected spatial dimensions of at least the kernel {p.kernel}, got {show_shape(data)}"
            raise ShapeError(message, side="input", index=0)
        up = p.pooling_convention == "full"
        strides = [s for _, _, s, _ in _axes(p, data[2:])]
        sizes = [
            -1 if span is None else (-(-span // s) if up else span // s) + 1
            for span, s in zip(spans, strides, strict=True)
        ]
    out = outs.merge(0, (*data[:2], *sizes)) or ()
    ins.merge(0, (*out[:2], *data[2:]))


def _axes(p: PoolingV1Params, size: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Size, kernel, stride and padding of each spatial dimension."""
    return zip(size, *_window(p, tuple(size)), strict=True)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Pooling_v1", node, [*ograds, node.inputs[0], *node.entries()])


def _padded(p: PoolingV1Params, data: tuple[int, ...], out: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of data with its padding, and as many zeros after it as the last windows reach over."""
    sizes = [max(n + 2 * q, (o - 1) * s + k) for o, (n, k, s, q) in zip(out[2:], _axes(p, data[2:]), strict=True)]
    return (*data[:2], *sizes)


def _inside(p: PoolingV1Params, data: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the slices of the padded array that data fills."""
    return (..., *(slice(q, q + n) for n, _, _, q in _axes(p, data[2:])))


def _taps(
    p: PoolingV1Params, data: tuple[int, ...], out: tuple[int, ...]
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """For each tap of the window: the output positions whose window has it, and where it is in the padding.

    A window of the "full" convention ends where the padding ends, before the zeros beyond it.
    """
    limits = [(n + 2 * q, s) for n, _, s, q in _axes(p, data[2:])]
    for tap in itertools.product(*map(range, _window(p, data[2:])[0])):
        counts = [max(0, min(o, (n - 1 - t) // s + 1)) for t, o, (n, s) in zip(tap, out[2:], limits, strict=True)]
        source = tuple(
            slice(t, t + max(0, c - 1) * s + (c > 0), s) for t, c, (_, s) in zip(tap, counts, limits, strict=True)
        )
        yield (..., *map(slice, counts)), (..., *source)


def _temps(p: PoolingV1Params, call: CallSpec) -> Sequence[Temp]:
    data, out = call.inputs[0], call.outputs[0]
    wide = accumulation_type(data.dtype)
    return [Temp(_padded(p, data.shape, out.shape), wide), Temp(out.shape, wide)]


def _back_temps(p: PoolingV1Params, call: CallSpec) -> Sequence[Temp]:
    gout, data = call.inputs[0], call.inputs[1]
    padded, wide = _padded(p, data.shape, gout.shape), accumulation_type(data.dtype)
    largest = gout.shape if p.pool_type == "max" else (0,)
    scratch = [Temp(largest, wide), Temp(largest, "bool")]
    return [Temp(padded, wide), Temp(padded, data.dtype), Temp(gout.shape, wide), *scratch]


def _fill(p: PoolingV1Params, data: Array, padded: Array) -> None:
    padded[...] = 0
    padded[_inside(p, data.shape)] = data


@op.compute(temps=_temps)
def _(p: PoolingV1Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    data, (padded, total) = inputs[0], ctx.temp
    _fill(p, data, padded)
    function = ctx.xp.maximum if p.pool_type == "max" else ctx.xp.add
    total[...] = -math.inf if p.pool_type == "max" else 0
    for valid, source in _taps(p, data.shape, total.shape):
        part = total[valid]
        function(part, padded[source], out=part)
    if p.pool_type == "avg":
        total /= math.prod(_window(p, data.shape[2:])[0])
    outputs[0][...] = total


@backward.compute(temps=_back_temps)
def _(p: PoolingV1Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    xp, (gout, data, out), (gpadded, padded, share, part, largest) = ctx.xp, inputs, ctx.temp
    _fill(p, data, padded)
    gpadded[...] = 0
    share[...] = gout
    if p.pool_type == "avg":
        share /= math.prod(_window(p, data.shape[2:])[0])
    for valid, source in _taps(p, data.shape, gout.shape):
        if p.pool_type == "max":
            part.fill(0)
            xp.equal(padded[source], out[valid], out=largest[valid])
            xp.copyto(part[valid], share[valid], where=largest[valid])
            gpadded[source] += part[valid]
        else:
            gpadded[source] += share[valid]
    outputs[0][...] = gpadded[_inside(p, data.shape)]
