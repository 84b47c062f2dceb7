"""Pooling: the maximum, mean, sum or Lp norm of data under a sliding window, each channel for itself.

data (batch, channel, *spatial), out (batch, channel, *out); in a channels-last layout the channels come last. With
global_pool the window is all of data and kernel, stride and pad are not read. The pooling convention rounds the
output's size (spatial + 2 pad - kernel) / stride + 1: "valid" down, "full" up; "same" is ceil(spatial / stride).

    max     out = max, padding never chosen; gdata: gout at the first maximum of each window (row-major)
    sum     out = sum                        gdata = gout in the window
    avg     out = sum / count                gdata = gout / count; padding counts unless count_include_pad is False
    lp      out = (sum x^p)^(1/p)            gdata = gout * (x / out)^(p-1), p 1, 2 or 3, without absolute values
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from opbox_protocol.errors import ParamError, ShapeError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, Temp, assign
from ..gradient import backward_node
from ..infer import ShapeList
from ..node import Entry, Node
from ..params import Bool, Field, OptBool, OptInt, Params, Shape
from ..registry import register, register_backward
from .phases import Phases
from .taps import Taps, route, spread, tile_of, tiles
from .window import PoolingLayout, channels_first, channels_last, check_layout, first, spatial


class PoolingParams(Params):
    kernel: Shape = Field((), description="Size of the window; needed unless global_pool.")
    pool_type: Literal["max", "avg", "sum", "lp"] = Field("max", description="What is taken of a window.")
    global_pool: Bool = Field(False, description="Pool over all of data.")
    cudnn_off: Bool = Field(False, description="Has no effect; for MXNet's files.")
    pooling_convention: Literal["valid", "full", "same"] = Field("valid", description="How the output size is rounded.")
    stride: Shape = Field((), description="Step of the window; 1 by default.")
    pad: Shape = Field((), description="Padding before and after each spatial dimension; 0 by default.")
    p_value: OptInt = Field(None, description="The p of lp pooling: 1, 2 or 3.")
    count_include_pad: OptBool = Field(None, description="Whether avg counts padding; by default it does.")
    layout: PoolingLayout = Field(None, description="Order of data's axes; by default the channels are second.")


op = register("Pooling", PoolingParams)
backward = register_backward("_backward_Pooling", PoolingParams, outputs=("data",))


def _window(p: PoolingParams, ndim: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Kernel, stride and padding."""
    kernel = p.kernel
    if not 1 <= len(kernel) <= 3 or min(kernel) < 1:
        raise ShapeError(f"kernel: expected one to three positive numbers (or global_pool), got {kernel}")
    if p.pooling_convention == "same" and any(p.pad):
        raise ShapeError(f"pad: expected none with pooling_convention 'same', got {p.pad}")
    return kernel, spatial(p.stride, ndim, 1, "stride", 1), spatial(p.pad, ndim, 0, "pad", 0)


def _size(p: PoolingParams, size: int, kernel: int, stride: int, pad: int) -> int:
    if size < 0:
        return -1
    if p.pooling_convention == "same":
        return -(-size // stride)
    reach = size + 2 * pad - kernel
    if reach < 0:
        raise ShapeError(
            f"expected spatial dimensions of at least the kernel {kernel}, got {size} padded to {size + 2 * pad}",
            side="input",
            index=0,
        )
    return (-(-reach // stride) if p.pooling_convention == "full" else reach // stride) + 1


@op.infer_shape
def _(p: PoolingParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.pool_type == "lp" and p.p_value not in (1, 2, 3):
        raise ParamError(f"Pooling: parameter 'p_value': expected 1, 2 or 3 for lp pooling, got {p.p_value}")
    data = channels_first(ins.rank(0, 3, 4, 5) if p.global_pool else ins.rank(0, len(p.kernel) + 2), p.layout)
    if data is None and not p.global_pool:
        data = (-1,) * (len(p.kernel) + 2)
    if data is None:
        known = channels_first(outs[0], p.layout)
        if known is not None:
            ins.merge(0, channels_last((*known[:2], *(-1 for _ in known[2:])), p.layout))
        return
    ndim = len(data) - 2
    check_layout(p.layout, ndim)
    if p.global_pool:
        sizes = [1] * ndim
    else:
        sizes = [_size(p, *each) for each in zip(data[2:], *_window(p, ndim), strict=True)]
    out = channels_first(outs.merge(0, channels_last((*data[:2], *sizes), p.layout)), p.layout)
    assert out is not None
    ins.merge(0, channels_last((*out[:2], *(-1 for _ in sizes)), p.layout))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    linear = node.params is not None and getattr(node.params, "pool_type", "") in ("avg", "sum")
    return backward_node("_backward_Pooling", node, ograds if linear else [*ograds, node.inputs[0], *node.entries()])


def _taps(p: PoolingParams, data: tuple[int, ...], out: tuple[int, ...]) -> Taps:
    """From shapes with the channels second."""
    size, ndim = data[2:], len(data) - 2
    if p.global_pool:
        return Taps(size, out[2:], size, (1,) * ndim, (0,) * ndim)
    return Taps(size, out[2:], *_window(p, ndim))


def _space(p: PoolingParams, data: Any, out: Any, dtype: Any) -> list[Temp]:
    """What the CPU's largest tile is pooled in, where its windows overlap."""
    data, out = channels_first(data, p.layout), channels_first(out, p.layout)
    taps = _taps(p, data, out)
    if taps.whole or not math.prod(out) or not Phases.pay(taps):
        return []
    samples, channels = tile_of(out)
    outer = (min(samples, out[0]), min(channels, out[1]))
    return [Temp((Phases(np, taps, outer).needs(dtype, _wide(p, dtype)),), np.uint8)]


@op.resources
def _(p: PoolingParams, ins: Any, in_types: Any, outs: Any, out_types: Any) -> list[Temp]:
    return _space(p, ins[0], outs[0], in_types[0])


@backward.resources
def _(p: PoolingParams, ins: Any, in_types: Any, outs: Any, out_types: Any) -> list[Temp]:
    return [] if p.pool_type == "lp" else _space(p, outs[0], ins[0], in_types[0])


@op.compute()
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    data, out = first(inputs[0], p.layout), first(outputs[0], p.layout)
    taps = _taps(p, data.shape, out.shape)
    if taps.whole:
        assign(out, req[0], _over_all(p, ctx.xp, data).reshape(out.shape))
        return
    wide = _wide(p, out.dtype)
    for tile in tiles(ctx, out.shape):
        target = out[tile]
        direct = req[0] != OpReq.ADD and out.dtype == wide
        held = target if direct else ctx.xp.empty(target.shape, wide)
        _pool(p, ctx, taps, data[tile], held)
        if not direct:
            assign(target, req[0], held)


def _wide(p: PoolingParams, dtype: Any) -> Any:
    """The type that a window is summed in: half precision in single."""
    return np.dtype("f") if np.dtype(dtype).itemsize < 4 and p.pool_type != "max" else np.dtype(dtype)


def _over_all(p: PoolingParams, xp: Any, data: Array) -> Array:
    axes, wide = tuple(range(2, data.ndim)), _wide(p, data.dtype)
    if p.pool_type == "max":
        return data.max(axis=axes)
    if p.pool_type == "lp":
        return _root(p, xp, xp.sum(_power(p, xp, data.astype(wide, copy=False)), axis=axes))
    return (xp.mean if p.pool_type == "avg" else xp.sum)(data, axis=axes, dtype=wide)


def _power(p: PoolingParams, xp: Any, x: Array) -> Array:
    return x if p.p_value == 1 else xp.square(x) if p.p_value == 2 else x * x * x


def _root(p: PoolingParams, xp: Any, x: Array) -> Array:
    return x if p.p_value == 1 else xp.sqrt(x, out=x) if p.p_value == 2 else xp.cbrt(x, out=x)


def _pool(p: PoolingParams, ctx: OpContext, taps: Taps, data: Array, held: Array) -> None:
    """Pool `data` into `held`, one dimension after the other: a window of k by k takes 2 k passes, not k k."""
    xp = ctx.xp
    function = xp.maximum if p.pool_type == "max" else xp.add
    source = _power(p, xp, data.astype(held.dtype, copy=False)) if p.pool_type == "lp" else data
    margin = np.finfo(held.dtype).min if p.pool_type == "max" else 0
    if Phases.pay(taps):
        phases = Phases(xp, taps, data.shape[:2], *ctx.temp)
        held[...] = phases.narrowed(phases.reduce(function, phases.cut(source, margin, held.dtype)))
    else:
        _pool_by_taps(xp, function, taps, source, held, margin)
    if p.pool_type == "avg":
        xp.divide(held, taps.counts(xp, p.count_include_pad is not False, held.dtype), out=held)
    elif p.pool_type == "lp":
        _root(p, xp, held)


def _pool_by_taps(xp: Any, function: Any, taps: Taps, source: Array, held: Array, margin: Any) -> None:
    last = len(taps.out) - 1
    for axis in range(last + 1):
        shape = (*source.shape[: axis + 2], taps.out[axis], *source.shape[axis + 3 :])
        target = held if axis == last else xp.empty(shape, held.dtype)
        fresh = taps.covered
        if not fresh:
            target[...] = margin
        for valid, taken in taps.along(axis):
            if fresh:
                target[...] = source[taken]
                fresh = False
            else:
                part = target[valid]
                function(part, source[taken], out=part)
        source = target


@backward.compute()
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    xp = ctx.xp
    gdata, gout = first(outputs[0], p.layout), first(inputs[0], p.layout)
    given = [first(array, p.layout) for array in inputs[1:]]
    taps = _taps(p, gdata.shape, gout.shape)
    if taps.whole and p.pool_type != "max":
        assign(gdata, req[0], _linear(p, xp, taps, gout) if p.pool_type != "lp" else _lp(p, xp, gout, *given))
        return
    add = req[0] == OpReq.ADD
    for tile in tiles(ctx, gout.shape):
        target, given_tile = gdata[tile], [array[tile] for array in given]
        wide = _wide(p, target.dtype)
        if wide == target.dtype:
            _pool_back(p, ctx, taps, gout[tile], given_tile, target, add)
        else:
            held = xp.empty(target.shape, wide)
            _pool_back(p, ctx, taps, gout[tile], given_tile, held, False)
            assign(target, req[0], held)


def _pool_back(
    p: PoolingParams, ctx: OpContext, taps: Taps, gout: Array, given: Arrays, held: Array, add: bool
) -> None:
    """Write the gradient to `held`, or add it; `given` is data and out, where the kind of pooling needs them."""
    xp = ctx.xp
    if p.pool_type != "lp" and Phases.pay(taps):
        phases = Phases(xp, taps, gout.shape[:2], *ctx.temp)
        if p.pool_type == "max":
            found = phases.route(gout, given[0], given[1], held.dtype)
        else:
            found = phases.spread(phases.widened(_linear(p, xp, taps, gout)))
        phases.join(found, held, add)
        return
    if not add:
        held[...] = 0
    if p.pool_type == "max":
        route(xp, taps, gout, given[0], given[1], held, not add)
    elif p.pool_type == "lp":
        for valid, source in taps:
            held[source] += _lp(p, xp, gout[valid], given[0][source], given[1][valid])
    else:
        spread(xp, taps, _linear(p, xp, taps, gout), held)


def _linear(p: PoolingParams, xp: Any, taps: Taps, gout: Array) -> Array:
    if p.pool_type == "sum":
        return gout
    wide = _wide(p, gout.dtype)
    return xp.divide(gout, taps.counts(xp, p.count_include_pad is not False, wide), dtype=wide)


def _lp(p: PoolingParams, xp: Any, gout: Array, data: Array, out: Array) -> Array:
    if p.p_value == 1:
        return gout
    ratio = data / xp.where(out == 0, 1, out)
    return xp.where(out == 0, 0, gout * (ratio if p.p_value == 2 else ratio * ratio))
