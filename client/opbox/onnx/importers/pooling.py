"""Pooling. ONNX's windows are MXNet's only where the padding is the same before and after, and none is cut off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...symbol import Symbol
from ..importing import ImportCall, imports
from .padding import padded, padding

POOLS = {"MaxPool": "max", "AveragePool": "avg", "LpPool": "lp"}
POWERS = (1, 2, 3)
"""The powers that MXNet's pooling takes."""


@dataclass(frozen=True)
class Windows:
    """The windows of one node.

    Attributes:
        kernel, strides: for each spatial dimension.
        before, after: the padding that the model asks for.
        beyond: padding after the data up to the end of the last window.
        full: whether MXNet's convention of that name is to find the windows, of data whose size is unknown.
    """

    kernel: Sequence[int]
    strides: Sequence[int]
    before: Sequence[int]
    after: Sequence[int]
    beyond: Sequence[int]
    full: bool = False


def _windows(call: ImportCall) -> Windows:
    """The windows, of which `ceil_mode` adds one that is not full, if it begins in the data or before."""
    kernel = list(call.attr("kernel_shape"))
    ones = [1] * len(kernel)
    strides, dilations = list(call.attr("strides", ones)), list(call.attr("dilations", ones))
    if dilations != ones:
        raise call.refuse(f"dilations: expected 1, got {dilations}")
    before, after = padding(call, kernel, strides, dilations)
    if any(pad >= size for size, pad in zip(kernel * 2, [*before, *after], strict=True)):
        raise call.refuse(f"pads: expected less than kernel_shape {kernel}, got {before} and {after}")
    ceil = bool(call.attr("ceil_mode")) and call.attr("auto_pad") in ("NOTSET", "")
    sizes = call.shape(0)[2:]
    if not ceil:
        return Windows(kernel, strides, before, after, after)
    inside = all(s + a <= k for k, s, a in zip(kernel, strides, after, strict=True))  # no window begins behind the data
    if None in sizes and inside and before == after:
        return Windows(kernel, strides, before, after, after, full=True)
    known = call.known(sizes, "input 0, whose windows ceil_mode counts,")
    beyond = []
    for n, k, s, b, a in zip(known, kernel, strides, before, after, strict=True):
        count = -(-(n + b + a - k) // s) + 1
        count -= (count - 1) * s >= n + b
        beyond.append(max((count - 1) * s + k - n - b, 0))
    return Windows(kernel, strides, before, after, beyond)


def _pooled(call: ImportCall, data: Symbol, windows: Windows, kind: str, named: bool, power: int | None) -> Symbol:
    """MXNet's pooling over padding of its own, or, where that is not the same on both sides, over padded data."""
    before = list(windows.before)
    if before != list(windows.beyond):
        lowest = -math.inf if kind == "max" else 0.0
        data, before = padded(call, data, before, windows.beyond, lowest), [0] * len(before)
    return call.make(
        "Pooling",
        data,
        named=named,
        kernel=tuple(windows.kernel),
        stride=tuple(windows.strides),
        pad=tuple(before),
        pool_type=kind,
        pooling_convention="full" if windows.full else "valid",
        p_value=power,
    )


@imports("MaxPool")
def _(call: ImportCall) -> Symbol:
    call.without_effect("storage_order")  # of the second output, which is refused
    return _pooled(call, call.symbol(0), _windows(call), "max", True, None)


@imports("AveragePool")
def _(call: ImportCall) -> Symbol:
    windows, counted = _windows(call), bool(call.attr("count_include_pad"))
    symmetric = list(windows.before) == list(windows.beyond)
    if symmetric and (not counted or list(windows.beyond) == list(windows.after)):
        return call.make(
            "Pooling",
            call.symbol(0),
            kernel=tuple(windows.kernel),
            stride=tuple(windows.strides),
            pad=tuple(windows.before),
            pool_type="avg",
            pooling_convention="full" if windows.full else "valid",
            count_include_pad=counted or not any(windows.before),
        )
    total = _pooled(call, call.symbol(0), windows, "sum", False, None)
    counts = _counts(call, windows, counted)
    dtype = call.dtype(0) or np.dtype(np.float32)
    return call.make("broadcast_mul", total, call.parameter("factors", (1 / counts).astype(dtype)))


def _counts(call: ImportCall, windows: Windows, counted: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """How many elements each window's mean is of: those of the data, and of the model's own padding if counted."""
    sizes = call.known(call.shape(0)[2:], "input 0, whose padding is not the same on both sides,")
    counts = np.ones((1,) * (len(sizes) + 2))
    rows = zip(sizes, windows.kernel, windows.strides, windows.before, windows.after, windows.beyond, strict=True)
    for axis, (n, k, s, b, a, beyond) in enumerate(rows):
        starts = np.arange((n + b + beyond - k) // s + 1) * s - b
        first, last = (-b, n + a) if counted else (0, n)
        length = np.minimum(starts + k, last) - np.maximum(starts, first)
        counts = counts * length.reshape([-1 if i == axis + 2 else 1 for i in range(counts.ndim)])
    return counts


@imports("LpPool")
def _(call: ImportCall) -> Symbol:
    windows, power = _windows(call), int(call.attr("p"))
    size = call.step("abs", call.symbol(0))  # MXNet's sums keep the signs
    if power in POWERS:
        return _pooled(call, size, windows, "lp", True, power)
    total = _pooled(call, call.step("_power_scalar", size, scalar=power), windows, "sum", False, None)
    return call.make("_power_scalar", total, scalar=1 / power)


@imports("GlobalMaxPool", "GlobalAveragePool")
def _(call: ImportCall) -> Symbol:
    kind = "max" if call.op_type == "GlobalMaxPool" else "avg"
    ones = (1,) * (call.rank(0) - 2)
    return call.make("Pooling", call.symbol(0), kernel=ones, pool_type=kind, global_pool=True)


@imports("GlobalLpPool")
def _(call: ImportCall) -> Symbol:
    power, axes = int(call.attr("p")), tuple(range(2, call.rank(0)))
    size = call.step("abs", call.symbol(0))
    if power in POWERS:
        return call.make("Pooling", size, kernel=(1,) * len(axes), pool_type="lp", global_pool=True, p_value=power)
    total = call.step("sum", call.step("_power_scalar", size, scalar=power), axis=axes, keepdims=True)
    return call.make("_power_scalar", total, scalar=1 / power)


@imports("MaxRoiPool")
def _(call: ImportCall) -> Symbol:
    return call.make(
        "ROIPooling",
        call.symbol(0),
        call.symbol(1),
        pooled_size=tuple(call.attr("pooled_shape")),
        spatial_scale=call.attr("spatial_scale"),
    )
