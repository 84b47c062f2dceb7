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

import ml_dtypes
import numpy as np

from opbox_protocol.errors import ParamError, ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float
from ..node import Entry, Node
from ..params import Bool, Field, OptBool, OptInt, Params, Shape
from ..registry import register, register_backward
from .phases import Phases
from .space import Space, bytes_for
from .taps import Taps, route, spread, tile_of, tiles
from .window import PoolingLayout, channels_first, channels_last, check_layout, data_shape, first, is_last, spatial


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
op.infer_type(all_same_float)
backward = register_backward("_backward_Pooling", PoolingParams, outputs=("data",))


op.set_attr("FSpatialOperands", lambda p: None if is_last(p.layout) else ((0,), (0,)))
backward.set_attr(
    "FSpatialOperands",
    lambda p: None if is_last(p.layout) else ((0,) if p.pool_type in ("avg", "sum") else (0, 1, 2), (0,)),
)


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
    data = channels_first(ins.rank(0, 3, 4, 5) if p.global_pool else data_shape(ins, p.kernel), p.layout)
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
        sizes = [_size(p, *axis) for axis in zip(data[2:], *_window(p, ndim), strict=True)]
    out = channels_first(outs.merge(0, channels_last((*data[:2], *sizes), p.layout)), p.layout)
    assert out is not None
    ins.merge(0, channels_last((*out[:2], *(-1 for _ in sizes)), p.layout))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    linear = node.params is not None and getattr(node.params, "pool_type", "") in ("avg", "sum")
    return backward_node("_backward_Pooling", node, ograds if linear else [*ograds, node.inputs[0], *node.entries()])


def taps_of(p: PoolingParams, data: tuple[int, ...], out: tuple[int, ...]) -> Taps:
    """From shapes with the channels second."""
    size, ndim = data[2:], len(data) - 2
    if p.global_pool:
        return Taps(size, out[2:], size, (1,) * ndim, (0,) * ndim)
    return Taps(size, out[2:], *_window(p, ndim))


def _wide(p: PoolingParams, dtype: Any) -> Any:
    """The type that a window is summed in: half precision in single."""
    return np.dtype(dtype) if p.pool_type == "max" else accumulation_type(dtype)


def _temps(p: PoolingParams, device: str, data: ArraySpec, out: tuple[int, ...]) -> list[Temp]:
    """Bytes for all that a tile's pooling, or its gradient, takes of its space; an upper bound."""
    shape, out = channels_first(data.shape, p.layout) or (), channels_first(out, p.layout) or ()
    taps, wide = taps_of(p, shape, out), _wide(p, data.dtype)
    if not math.prod(out):
        return [Temp((0,), np.uint8)]
    outer = (shape[0], shape[1]) if taps.whole else tile_of(out, device)
    windows, elements = math.prod(outer) * math.prod(taps.out), math.prod(outer) * math.prod(taps.data)
    chain = sum(
        bytes_for((*outer, *a[:axis], *b[axis:]), wide)
        for a, b in ((taps.out, taps.data), (taps.data, taps.out))
        for axis in range(1, len(taps.out))
    )
    # Of the size of the data: its powers or what it is pooled into. Of the windows: seven arrays at most, in `route`.
    own = 2 * bytes_for((elements,), wide) + 7 * bytes_for((windows,), wide)
    phases = 0 if taps.whole or not Phases.pay(taps) else Phases(np, taps, outer).needs(data.dtype, wide)
    return [Temp((chain + own + phases,), np.uint8)]


@op.compute(temps=lambda p, call: _temps(p, call.device, call.inputs[0], call.outputs[0].shape))
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, data, out = ctx.xp, first(inputs[0], p.layout), first(outputs[0], p.layout)
    taps = taps_of(p, data.shape, out.shape)
    if taps.whole:
        _pool_whole(p, xp, data, out, Space(ctx.temp[0]))
        return
    wide = _wide(p, out.dtype)
    for tile in tiles(ctx.backend.device_type, out.shape):
        space, target = Space(ctx.temp[0]), out[tile]
        pooled = target if out.dtype == wide else space.take(target.shape, wide)
        _pool(p, xp, taps, data[tile], pooled, space)
        if pooled is not target:
            xp.copyto(target, pooled, casting="unsafe")


def _pool_whole(p: PoolingParams, xp: Any, data: Array, out: Array, space: Space) -> None:
    """One window over all the data."""
    axes, wide = tuple(range(2, data.ndim)), _wide(p, data.dtype)
    if p.pool_type == "max":
        xp.max(data, axis=axes, keepdims=True, out=out)
        return
    pooled = out if out.dtype == wide else space.take(out.shape, wide)
    source = _power(p, xp, data, wide, space) if p.pool_type == "lp" else data
    xp.sum(source, axis=axes, keepdims=True, dtype=wide, out=pooled)
    if p.pool_type == "avg":
        xp.divide(pooled, max(1, math.prod(data.shape[2:])), out=pooled)
    elif p.pool_type == "lp":
        _root(p, xp, pooled)
    if pooled is not out:
        xp.copyto(out, pooled, casting="unsafe")


def _power(p: PoolingParams, xp: Any, x: Array, wide: Any, space: Space) -> Array:
    if p.p_value == 1 and x.dtype == wide:
        return x
    power = space.take(x.shape, wide)
    xp.copyto(power, x)
    if p.p_value != 1:
        xp.multiply(power, power, out=power)
    if p.p_value == 3:
        xp.multiply(power, x, out=power)
    return power


def _root(p: PoolingParams, xp: Any, x: Array) -> None:
    if p.p_value != 1:
        (xp.sqrt if p.p_value == 2 else xp.cbrt)(x, out=x)


def _pool(p: PoolingParams, xp: Any, taps: Taps, data: Array, pooled: Array, space: Space) -> None:
    """Pool `data` into `pooled`, one dimension after the other: a window of k by k takes 2 k passes, not k k."""
    function = xp.maximum if p.pool_type == "max" else xp.add
    source = _power(p, xp, data, pooled.dtype, space) if p.pool_type == "lp" else data
    # NumPy's finfo does not know bfloat16.
    margin = ml_dtypes.finfo(pooled.dtype).min if p.pool_type == "max" else 0  # type: ignore[no-untyped-call]
    if Phases.pay(taps):
        phases = Phases(xp, taps, data.shape[:2], space)
        pooled[...] = phases.narrowed(phases.reduce(function, phases.cut(source, margin, pooled.dtype)))
    else:
        _pool_by_taps(xp, function, taps, source, pooled, margin, space)
    if p.pool_type == "avg":
        xp.divide(pooled, taps.counts(xp, p.count_include_pad is not False, pooled.dtype), out=pooled)
    elif p.pool_type == "lp":
        _root(p, xp, pooled)


def _pool_by_taps(xp: Any, function: Any, taps: Taps, source: Array, pooled: Array, margin: Any, space: Space) -> None:
    last = len(taps.out) - 1
    for axis in range(last + 1):
        shape = (*source.shape[: axis + 2], taps.out[axis], *source.shape[axis + 3 :])
        target = pooled if axis == last else space.take(shape, pooled.dtype)
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


@backward.compute(temps=lambda p, call: _temps(p, call.device, call.outputs[0], call.inputs[0].shape))
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp = ctx.xp
    gdata, gout = first(outputs[0], p.layout), first(inputs[0], p.layout)
    arrays = [first(array, p.layout) for array in inputs[1:]]
    taps = taps_of(p, gdata.shape, gout.shape)
    if taps.whole and p.pool_type != "max":
        space = Space(ctx.temp[0])
        share = (
            _lp(p, xp, gout, arrays[0], arrays[1], space) if p.pool_type == "lp" else _linear(p, xp, taps, gout, space)
        )
        xp.copyto(gdata, share, casting="unsafe")
        return
    for tile in tiles(ctx.backend.device_type, gout.shape):
        space, target = Space(ctx.temp[0]), gdata[tile]
        wide = _wide(p, target.dtype)
        spread_out = target if wide == target.dtype else space.take(target.shape, wide)
        _pool_back(p, xp, taps, gout[tile], [array[tile] for array in arrays], spread_out, space)
        if spread_out is not target:
            xp.copyto(target, spread_out, casting="unsafe")


def _pool_back(p: PoolingParams, xp: Any, taps: Taps, gout: Array, forward: Arrays, gdata: Array, space: Space) -> None:
    """Write the gradient to `gdata`; `given` is data and out, where the kind of pooling needs them."""
    if p.pool_type != "lp" and Phases.pay(taps):
        phases = Phases(xp, taps, gout.shape[:2], space)
        if p.pool_type == "max":
            pieces = phases.route(gout, forward[0], forward[1], gdata.dtype)
        else:
            pieces = phases.spread(phases.widened(_linear(p, xp, taps, gout, space)))
        phases.join(pieces, gdata)
        return
    gdata[...] = 0
    if p.pool_type == "max":
        route(xp, taps, gout, forward[0], forward[1], gdata, space)
    elif p.pool_type == "lp":
        scratches = [space.take(gout.shape, dtype) for dtype in (gdata.dtype, gdata.dtype, bool)]
        for valid, source in taps:
            gdata[source] += _lp_share(
                p, xp, gout[valid], forward[0][source], forward[1][valid], [r[valid] for r in scratches]
            )
    else:
        spread(xp, taps, _linear(p, xp, taps, gout, space), gdata, space)


def _linear(p: PoolingParams, xp: Any, taps: Taps, gout: Array, space: Space) -> Array:
    if p.pool_type == "sum":
        return gout
    wide = _wide(p, gout.dtype)
    share = space.take(gout.shape, wide)
    xp.copyto(share, gout)
    return xp.divide(share, taps.counts(xp, p.count_include_pad is not False, wide), out=share)


def _lp(p: PoolingParams, xp: Any, gout: Array, data: Array, out: Array, space: Space) -> Array:
    scratches = [
        space.take(data.shape, _wide(p, data.dtype)),
        space.take(out.shape, out.dtype),
        space.take(out.shape, bool),
    ]
    return _lp_share(p, xp, gout, data, out, scratches)


def _lp_share(p: PoolingParams, xp: Any, gout: Array, data: Array, out: Array, scratches: Arrays) -> Array:
    """gout (data / out)^(p - 1), and 0 where out is; the rooms are one like data, and one and a mask like out."""
    if p.p_value == 1:
        return gout
    ratio, divisor, zero = scratches
    xp.equal(out, 0, out=zero)
    xp.copyto(divisor, out)
    xp.copyto(divisor, 1, where=zero)
    xp.divide(data, divisor, out=ratio)
    if p.p_value == 3:
        xp.multiply(ratio, ratio, out=ratio)
    xp.multiply(ratio, gout, out=ratio)
    xp.copyto(ratio, 0, where=zero)
    return ratio
