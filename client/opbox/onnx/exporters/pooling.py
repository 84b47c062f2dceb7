"""Pooling: the windows of all of MXNet's conventions as explicit padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..exporting import ExportCall, exports, refuse


@exports("Pooling", without_effect=("kernel", "stride", "pad", "pooling_convention", "count_include_pad", "p_value"))
def _(call: ExportCall) -> str:
    if call.attr("layout") and not str(call.attr("layout")).startswith("NC"):
        raise refuse(call, f"expected a layout with the channels second, got {call.attr('layout')}: transpose it")
    kind = call.attr("pool_type")
    return _global(call, kind) if call.attr("global_pool") else _windows(call, kind)


def _global(call: ExportCall, kind: str) -> str:
    data, axes = call.inputs[0], list(range(2, call.rank))
    if kind == "sum":
        return call.emit("ReduceSum", data, call.ints(axes), keepdims=1)
    if kind == "lp" and _is_signed(call):
        return _root(call, call.emit("ReduceSum", _power(call, data), call.ints(axes), keepdims=1))
    if kind == "lp":
        return call.emit("GlobalLpPool", data, p=int(call.attr("p_value")))
    return call.emit({"max": "GlobalMaxPool", "avg": "GlobalAveragePool"}[kind], data)


def _is_signed(call: ExportCall) -> bool:
    """Whether the power keeps the signs, as MXNet's sums do and ONNX's do not."""
    return int(call.attr("p_value")) % 2 == 1


def _power(call: ExportCall, data: str) -> str:
    """The data to the power of 1 or 3."""
    return data if int(call.attr("p_value")) == 1 else call.emit("Mul", call.emit("Mul", data, data), data)


def _root(call: ExportCall, total: str) -> str:
    """The sum itself, or its cube root."""
    if int(call.attr("p_value")) == 1:
        return total
    size = call.emit("Pow", call.emit("Abs", total), call.constant(1 / 3))
    return call.emit("Mul", call.emit("Sign", total), size)


def _windows(call: ExportCall, kind: str) -> str:
    kernel, stride, pad = call.spatial("kernel", 1), call.spatial("stride", 1), call.spatial("pad", 0)
    counts_padding = call.attr("count_include_pad") in (None, True, 1)
    after, rounded_up = list(pad), None
    if call.attr("pooling_convention") != "valid":
        if None in call.shapes[0][2:] and call.attr("pooling_convention") == "full":
            # ONNX leaves out a window that begins behind the data, and has no sums of windows that end there.
            if kind in ("sum", "lp") or any(s + p > k for k, s, p in zip(kernel, stride, pad, strict=True)):
                call.static(call.shapes[0][2:])
            rounded_up = 1
        else:
            inside, outside = call.static(call.shapes[0][2:]), call.static(call.out_shapes[0][2:])
            after = [
                max((o - 1) * s + k - n - p, 0)
                for o, s, k, n, p in zip(outside, stride, kernel, inside, pad, strict=True)
            ]
    windows = {"kernel_shape": kernel, "strides": stride, "pads": [*pad, *after], "ceil_mode": rounded_up}
    data = call.inputs[0]
    if kind == "max":
        return call.emit("MaxPool", data, **windows)
    if kind == "lp" and _is_signed(call):
        mean = call.emit("AveragePool", _power(call, data), count_include_pad=1, **windows)
        return _root(call, call.emit("Mul", mean, call.constant(math.prod(kernel))))
    if kind == "lp":
        windows.pop("ceil_mode")
        return call.emit("LpPool", data, p=int(call.attr("p_value")), **windows)
    if kind == "avg" and not counts_padding:
        return call.emit("AveragePool", data, count_include_pad=0, **windows)
    mean = call.emit("AveragePool", data, count_include_pad=1, **windows)
    area = math.prod(kernel)
    if kind == "sum":
        return call.emit("Mul", mean, call.constant(area))
    if all(a <= p for a, p in zip(after, pad, strict=True)):
        return mean
    counts = _counts(call.static(call.shapes[0][2:]), call.static(call.out_shapes[0][2:]), kernel, stride, pad)
    return call.emit("Mul", mean, call.constant(area / counts))


def _counts(
    inside: Sequence[int], outside: Sequence[int], kernel: Sequence[int], stride: Sequence[int], pad: Sequence[int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return MXNet's divisor of each window's sum: the size of the window's part before the padding's end."""
    counts = np.ones((1, 1, *outside))
    for axis, (n, o, k, s, p) in enumerate(zip(inside, outside, kernel, stride, pad, strict=True)):
        start = np.arange(o) * s - p
        length = np.minimum(start + k, n + p) - start
        counts = counts * length.reshape([-1 if a == axis + 2 else 1 for a in range(len(outside) + 2)])
    return counts


@exports("_contrib_AdaptiveAvgPooling2D")
def _(call: ExportCall) -> str:
    size = call.attr("output_size")
    size = tuple(size) if isinstance(size, tuple) else (size,) * 2 if size else (1, 1)
    if set(size) == {1}:
        return call.emit("GlobalAveragePool", call.inputs[0])
    inside = call.static(call.shapes[0][2:])
    outside = call.static(call.out_shapes[0][2:])
    if any(n % o for n, o in zip(inside, outside, strict=True)):
        raise refuse(call, f"expected an output size that divides {tuple(inside)}, got {tuple(outside)}")
    steps = [n // o for n, o in zip(inside, outside, strict=True)]
    return call.emit("AveragePool", call.inputs[0], kernel_shape=steps, strides=steps)
