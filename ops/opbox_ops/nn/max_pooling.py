"""Max pooling in C, of float32, float16 and bfloat16, over arrays whose channels lie last, forward and backward.

    out[n, y, x, c] = the largest of data[n, i, j, c] in the window at y, x; NaN where there is one
    gdata[n, i, j, c] = the sum of gout[n, y, x, c] over the windows whose first largest element is i, j

Windows may reach beyond data, but contain some of it. Backward looks for the first element of a window that equals its
maximum. So a window with a NaN hands its gradient to none.
A gradient is added up in the order of windows, whatever the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from ctypes import addressof, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..accumulation import NARROW, is_narrow
from ..bound_calls import c_call
from ..call_list import CallList
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..cpu.algorithms.window_sizes import WindowSizes
from ..cpu.runtime import c_compiler
from ..cpu.runtime.kernel_text import kernel_text
from ..expression.conversion import converting
from ..layout import CHANNELS_LAST, as_laid, laid, lie
from .pooling import PoolingParams, backward, op, taps_of
from .window import channels_first, is_last

__all__ = ["MaxPooling", "backward_windows", "forward_windows", "max_pooling"]

TEXTS = {"float32": kernel_text("max_pooling.c")}
TEXTS |= {dtype: kernel_text("max_pooling.c", **{dtype.upper(): 1}) for dtype in NARROW}
"""By type of the arrays; a gradient of data is float32's."""


@dataclass(frozen=True, slots=True)
class MaxPooling:
    """The compiled functions. Arrays are contiguous, of one type, with their channels last."""

    _forward: Any
    _gradient: Any

    def forward(self, windows: WindowSizes, data: Array, out: Array) -> Callable[[], None]:
        """Return a call that writes out (batch, *windows.out, channels)."""
        return self._call(self._forward, windows, data, out)

    def gradient(self, windows: WindowSizes, gout: Array, data: Array, out: Array, gdata: Array) -> Callable[[], None]:
        """Return a call that writes the gradient of data, of float32; out is what `forward` has written."""
        return self._call(self._gradient, windows, gout, data, out, gdata)

    @staticmethod
    def _call(function: Any, windows: WindowSizes, *arrays: Array) -> Callable[[], None]:
        structure = windows.structure
        return c_call(function, (*[array.ctypes.data for array in arrays], addressof(structure)), (arrays, structure))


def max_pooling(dtype: str = "float32") -> MaxPooling | None:
    """The compiled functions for a type; None without a compiler.

    They are compiled when they are first asked for, which takes a part of a second, and are on disk from then on.
    """
    return None if c_compiler.mode() == "off" else _compiled(dtype)


@cache
def _compiled(dtype: str) -> MaxPooling | None:
    types = {"opbox_max_pooling": [c_void_p] * 3, "opbox_max_pooling_gradient": [c_void_p] * 5}
    functions = c_compiler.compiled_functions(TEXTS[dtype], types)
    return None if functions is None else MaxPooling(*functions)


def _windows(p: PoolingParams, call: CallSpec, data: ArraySpec, out: ArraySpec) -> WindowSizes | None:
    specs = *call.inputs, *call.outputs
    last = is_last(p.layout)
    if p.pool_type != "max" or len(data.shape) != 4 or not lie(call, range(len(call.inputs)), (0,)):
        return None
    if {spec.dtype for spec in specs} != {data.dtype} or data.dtype.name not in TEXTS:
        return None
    if (data.layout == CHANNELS_LAST) == last:
        return None
    shape = channels_first(data.shape, p.layout) or ()
    taps = taps_of(p, shape, channels_first(out.shape, p.layout) or ())
    if not (math.prod(shape) and taps.meet_data and taps.fit_one_call) or max_pooling(data.dtype.name) is None:
        return None
    batch, channels, height, width = shape
    out_size, kernel, stride, pad = map(_pair, (taps.out, taps.kernel, taps.stride, taps.pad))
    return WindowSizes((batch, height, width, channels), out_size, kernel, stride, (1, 1), pad)


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = sizes
    return rows, columns


def forward_windows(p: PoolingParams, call: CallSpec) -> WindowSizes | None:
    """Return the windows of a call of Pooling that these kernels compute; None of another."""
    return _windows(p, call, call.inputs[0], call.outputs[0])


def backward_windows(p: PoolingParams, call: CallSpec) -> WindowSizes | None:
    """The same of a call of its gradient."""
    return _windows(p, call, call.outputs[0], call.inputs[0])


@op.compute("cpu", level="library", accepts=lambda p, call: forward_windows(p, call) is not None, prepares=True)
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> CallList:
    windows, kernel = forward_windows(p, ctx.call), max_pooling(ctx.call.inputs[0].dtype.name)
    assert windows is not None
    assert kernel is not None
    (data, *_), (out, *_) = laid(ctx.call, inputs, outputs)
    runs = CallList()
    runs.calls.append(kernel.forward(windows, runs.contiguous(data), out))
    return runs


def _sums(call: CallSpec) -> list[Temp]:
    """The gradient in float32, where its array has 16 bits."""
    gdata = call.outputs[0]
    return [Temp(as_laid(gdata))] if is_narrow(gdata.dtype) else []


@backward.compute(
    "cpu",
    level="library",
    accepts=lambda p, call: backward_windows(p, call) is not None,
    temps=lambda p, call: _sums(call),
    prepares=True,
)
def _(p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> CallList:
    windows, kernel = backward_windows(p, ctx.call), max_pooling(ctx.call.inputs[0].dtype.name)
    assert windows is not None
    assert kernel is not None
    arrays, (gdata, *_) = laid(ctx.call, inputs, outputs)
    runs = CallList()
    gout, data, out = map(runs.contiguous, arrays)
    runs.calls.append(kernel.gradient(windows, gout, data, out, ctx.temp[0] if ctx.temp else gdata))
    if ctx.temp:
        runs.calls.append(converting(ctx.temp[0], gdata))
    return runs
