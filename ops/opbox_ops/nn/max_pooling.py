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
from functools import cache, partial
from typing import Any

from ..accumulation import NARROW, is_narrow
from ..bound_calls import c_call
from ..call_list import CallList
from ..compute import Array, Arrays, ArraySpec, CallSpec, Kernel, OpContext, Outputs, Temp
from ..cpu.algorithms.window_sizes import WindowSizes
from ..cpu.runtime import c_compiler
from ..cpu.runtime.kernel_text import kernel_text
from ..expression.conversion import converting
from ..layout import CHANNELS_LAST, physical_arrays, physical_shape, share_layout
from .pooling import PoolingParams, backward, op, taps_of
from .window import channels_first, is_last

__all__ = ["MaxPooling", "max_pooling"]

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


def _choice(p: PoolingParams, call: CallSpec, data: ArraySpec, out: ArraySpec) -> tuple[MaxPooling, WindowSizes] | None:
    """The compiled functions, and the windows of a call that they compute; None of another call."""
    specs = *call.inputs, *call.outputs
    last = is_last(p.layout)
    if p.pool_type != "max" or len(data.shape) != 4 or not share_layout(call, range(len(call.inputs)), (0,)):
        return None
    if {spec.dtype for spec in specs} != {data.dtype} or data.dtype.name not in TEXTS:
        return None
    if (data.layout == CHANNELS_LAST) == last:
        return None
    shape = channels_first(data.shape, p.layout) or ()
    taps = taps_of(p, shape, channels_first(out.shape, p.layout) or ())
    kernel = max_pooling(data.dtype.name) if math.prod(shape) and taps.meet_data and taps.fit_one_call else None
    if kernel is None:
        return None
    batch, channels, height, width = shape
    out_size, size, stride, pad = map(_pair, (taps.out, taps.kernel, taps.stride, taps.pad))
    return kernel, WindowSizes((batch, height, width, channels), out_size, size, stride, (1, 1), pad)


def _pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    rows, columns = sizes
    return rows, columns


@op.kernel("cpu", level="library")
def _(p: PoolingParams, call: CallSpec) -> Kernel | None:
    choice = _choice(p, call, call.inputs[0], call.outputs[0])
    return None if choice is None else Kernel(partial(_bind, *choice))


def _bind(
    kernel: MaxPooling, windows: WindowSizes, p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> CallList:
    (data, *_), (out, *_) = physical_arrays(ctx.call, inputs, outputs)
    runs = CallList()
    runs.calls.append(kernel.forward(windows, runs.contiguous(data), out))
    return runs


@backward.kernel("cpu", level="library")
def _(p: PoolingParams, call: CallSpec) -> Kernel | None:
    gdata = call.outputs[0]
    choice = _choice(p, call, gdata, call.inputs[0])
    if choice is None:
        return None
    # The gradient in float32, where its array has 16 bits.
    sums = (Temp(physical_shape(gdata)),) if is_narrow(gdata.dtype) else ()
    return Kernel(partial(_bind_gradient, *choice), sums)


def _bind_gradient(
    kernel: MaxPooling, windows: WindowSizes, p: PoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs
) -> CallList:
    arrays, (gdata, *_) = physical_arrays(ctx.call, inputs, outputs)
    runs = CallList()
    gout, data, out = map(runs.contiguous, arrays)
    runs.calls.append(kernel.gradient(windows, gout, data, out, ctx.temp[0] if ctx.temp else gdata))
    if ctx.temp:
        runs.calls.append(converting(ctx.temp[0], gdata))
    return runs
