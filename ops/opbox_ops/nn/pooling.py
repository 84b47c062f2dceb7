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

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, assign
from ..errors import ParamError, ShapeError
from ..gradient import backward_node
from ..infer import ShapeList
from ..node import Entry, Node
from ..params import Bool, Field, OptBool, OptInt, Params, Shape
from ..registry import register, register_backward
from .window import PoolingLayout, channels_first, channels_last, check_layout, first, spatial, under

TILE = 1 << 15
"""Output elements that the CPU works on at once: what the taps of a window read again is still in the cache."""


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


@dataclass(frozen=True, slots=True)
class _Taps:
    """A pooling's sizes, a number a spatial dimension, and where each tap of the window meets the data."""

    data: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]

    @staticmethod
    def of(p: PoolingParams, data: tuple[int, ...], out: tuple[int, ...]) -> _Taps:
        """From shapes with the channels second."""
        size, ndim = data[2:], len(data) - 2
        if p.global_pool:
            return _Taps(size, out[2:], size, (1,) * ndim, (0,) * ndim)
        return _Taps(size, out[2:], *_window(p, ndim))

    @property
    def whole(self) -> bool:
        """Whether one window covers all the data."""
        return self.kernel == self.data and not any(self.pad) and math.prod(self.out) == 1

    @property
    def covered(self) -> bool:
        """Whether no window reaches outside the data."""
        reach = [(o - 1) * s + k for o, s, k in zip(self.out, self.stride, self.kernel, strict=True)]
        return not any(self.pad) and all(r <= n for r, n in zip(reach, self.data, strict=True))

    def __iter__(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """For each tap: the output positions where it is inside the data, and the data there."""
        for tap in itertools.product(*map(range, self.kernel)):
            starts = [t - q for t, q in zip(tap, self.pad, strict=True)]
            met = [under(*each) for each in zip(starts, self.out, self.stride, self.data, strict=True)]
            yield (..., *(valid for valid, _ in met)), (..., *(source for _, source in met))

    def counts(self, xp: Any, include_pad: bool, dtype: Any) -> Any:
        """How many positions avg divides by: a number, or an array (*out) where windows differ."""
        if self.covered:
            return math.prod(self.kernel)
        counts = None
        for axis, (n, o, k, s, q) in enumerate(
            zip(self.data, self.out, self.kernel, self.stride, self.pad, strict=True)
        ):
            start = xp.arange(o) * s - q
            stop = xp.minimum(start + k, n + q)
            if not include_pad:
                start, stop = xp.maximum(start, 0), xp.minimum(stop, n)
            # A window that lies beyond the padding ("full") has the sum 0, whatever it is divided by.
            along = xp.maximum(stop - start, 1).reshape([-1 if a == axis else 1 for a in range(len(self.out))])
            counts = along if counts is None else counts * along
        assert counts is not None
        return counts.astype(dtype)


def _tiles(ctx: OpContext, shape: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Parts of the batch and channel axes, of about TILE elements on the CPU; all at once on a GPU."""
    batch, channels = shape[:2]
    size = math.prod(shape[2:]) or 1
    if ctx.backend.device_type != "cpu":
        size = 0
    across = max(1, TILE // size) if size else channels or 1
    samples = max(1, TILE // (size * channels)) if size * channels else batch or 1
    across = channels or 1 if samples > 1 else across
    for n in range(0, batch, samples):
        for c in range(0, channels, across):
            yield slice(n, n + samples), slice(c, c + across)


@op.compute()
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    data, out = first(inputs[0], p.layout), first(outputs[0], p.layout)
    taps = _Taps.of(p, data.shape, out.shape)
    if taps.whole:
        assign(out, req[0], _over_all(p, ctx.xp, data).reshape(out.shape))
        return
    wide = _wide(p, out.dtype)
    for tile in _tiles(ctx, out.shape):
        target = out[tile]
        direct = req[0] != OpReq.ADD and out.dtype == wide
        held = target if direct else ctx.xp.empty(target.shape, wide)
        _pool(p, ctx.xp, taps, data[tile], held)
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


def _pool(p: PoolingParams, xp: Any, taps: _Taps, data: Array, held: Array) -> None:
    """Pool `data` into `held`, tap by tap."""
    function = xp.maximum if p.pool_type == "max" else xp.add
    fresh = taps.covered
    if not fresh:
        held[...] = np.finfo(held.dtype).min if p.pool_type == "max" else 0
    for valid, source in taps:
        value = _power(p, xp, data[source]) if p.pool_type == "lp" else data[source]
        if fresh:
            held[...] = value
            fresh = False
        else:
            part = held[valid]
            function(part, value, out=part)
    if p.pool_type == "avg":
        xp.divide(held, taps.counts(xp, p.count_include_pad is not False, held.dtype), out=held)
    elif p.pool_type == "lp":
        _root(p, xp, held)


@backward.compute()
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    xp = ctx.xp
    gdata, gout = first(outputs[0], p.layout), first(inputs[0], p.layout)
    given = [first(array, p.layout) for array in inputs[1:]]
    taps = _Taps.of(p, gdata.shape, gout.shape)
    if taps.whole and p.pool_type != "max":
        assign(gdata, req[0], _linear(p, xp, taps, gout) if p.pool_type != "lp" else _lp(p, xp, gout, *given))
        return
    for tile in _tiles(ctx, gout.shape):
        target = gdata[tile]
        wide = _wide(p, target.dtype) != target.dtype
        held = xp.zeros(target.shape, "f") if wide else target
        if not wide and req[0] != OpReq.ADD:
            held[...] = 0
        if p.pool_type == "max":
            _route(xp, taps, gout[tile], given[0][tile], given[1][tile], held)
        elif p.pool_type == "lp":
            for valid, source in taps:
                where = (gout[tile][valid], given[0][tile][source], given[1][tile][valid])
                held[source] += _lp(p, xp, *where)
        else:
            value = _linear(p, xp, taps, gout[tile])
            for valid, source in taps:
                held[source] += value[valid]
        if wide:
            assign(target, req[0], held)


def _linear(p: PoolingParams, xp: Any, taps: _Taps, gout: Array) -> Array:
    if p.pool_type == "sum":
        return gout
    wide = _wide(p, gout.dtype)
    return xp.divide(gout, taps.counts(xp, p.count_include_pad is not False, wide), dtype=wide)


def _lp(p: PoolingParams, xp: Any, gout: Array, data: Array, out: Array) -> Array:
    if p.p_value == 1:
        return gout
    ratio = data / xp.where(out == 0, 1, out)
    return xp.where(out == 0, 0, gout * (ratio if p.p_value == 2 else ratio * ratio))


def _route(xp: Any, taps: _Taps, gout: Array, data: Array, out: Array, held: Array) -> None:
    """Add gout to `held` at the first element of each window that equals its maximum.

    Chosen by masks on the bits, not by products, so that an infinite gradient stays in its place.
    """
    bits = np.dtype(f"i{gout.dtype.itemsize}")
    given = xp.ascontiguousarray(gout).view(bits)
    left = xp.ones(gout.shape, bool)
    chosen, mask, value = xp.empty(gout.shape, bool), xp.empty(gout.shape, bits), xp.empty(gout.shape, gout.dtype)
    for valid, source in taps:
        here, free = chosen[valid], left[valid]
        xp.equal(data[source], out[valid], out=here)
        xp.logical_and(here, free, out=here)
        xp.logical_xor(free, here, out=free)
        xp.negative(here.view("i1"), out=mask[valid], dtype=bits)
        xp.bitwise_and(mask[valid], given[valid], out=value.view(bits)[valid])
        part = held[source]
        xp.add(part, value[valid], out=part)
