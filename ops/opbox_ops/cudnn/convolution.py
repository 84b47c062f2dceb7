"""Convolution and Deconvolution by cuDNN: one to three dimensions, groups, dilation, channels second or last.

A deconvolution is the convolution from its out to its data, seen from the other side: its forward is that one's
gradient of data, and its gradient of data that one's forward. So each problem has a wide side, that the kernel slides
over, and a narrow one, with a place for each position of the kernel.

Half precision and bfloat16 are added up in single. The bias is added behind cuDNN, its gradient is a kernel of our own.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from opbox_protocol.errors import BadRequestError, MXNetError

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.bias import bias_gradient
from ..cuda.kernel import TYPES, contiguous
from ..nn import convolution, deconvolution
from ..nn.convolution import ConvolutionParams
from ..nn.deconvolution import DeconvolutionParams
from ..nn.window import channels_first, first, is_last
from .algorithms import (
    DATA,
    FORWARD,
    WEIGHT,
    WORKSPACE_ALIGNMENT,
    ConvolutionPass,
    ConvolutionProblem,
    planned,
    planned_within,
)
from .library import DATA_TYPES, current_handle, device_bytes

__all__ = ["takes"]

_ALIGNMENT = 16
"""Bytes that the arrays' addresses are multiples of."""
_MOST = 2**31 - 1
"""Elements of an array."""
_TUNES = ("limited_workspace", "fastest", "off")
_FASTEST_SHARE = 4
"""The part of a device's memory that a workspace may be where nothing else bounds it."""
_Parameters = ConvolutionParams | DeconvolutionParams


@dataclass(frozen=True)
class _Sides:
    """The arrays of a call: the problem's three, each by its position, and that of the bias, or of its gradient.

    Attributes:
        wide, weight, narrow: positions among the inputs and, counted on from there, the outputs.
        result: which of the three is computed, by the position of its gradient: a direction.
    """

    wide: int
    weight: int
    narrow: int
    result: ConvolutionPass


def _measured() -> str:
    tune = os.environ.get("OPBOX_CUDNN_TUNE") or _TUNES[0]
    if tune not in _TUNES:
        raise BadRequestError(f"OPBOX_CUDNN_TUNE: expected one of {', '.join(_TUNES)}, got {tune!r}")
    return tune


def _problem(p: _Parameters, call: CallSpec, sides: _Sides) -> ConvolutionProblem:
    arrays = (*call.inputs, *call.outputs)
    wide, weight, narrow = (
        channels_first(arrays[k].shape, p.layout) or () for k in (sides.wide, sides.weight, sides.narrow)
    )
    if isinstance(p, DeconvolutionParams):
        window = deconvolution.window_of(p, narrow[2:])
    else:
        window = convolution.strides(p)
    tune = p.cudnn_tune or _measured()
    most = device_bytes() // _FASTEST_SHARE if tune == "fastest" else p.workspace << 20
    shapes, last = (wide, weight, narrow), is_last(p.layout)
    return ConvolutionProblem.of(
        sides.result, call.inputs[0].dtype.name, shapes, window, p.num_group, last, tune != "off", most
    )


def _sides(p: _Parameters, call: CallSpec) -> list[_Sides]:
    """List the products that a call computes: one for forward, one for each wanted gradient for backward."""
    turned = isinstance(p, DeconvolutionParams)
    count = len(call.inputs)
    if len(call.outputs) == 1:
        # data, weight, [bias] to out
        return [_Sides(count, 1, 0, DATA) if turned else _Sides(0, 1, count, FORWARD)]
    # gout, data, weight to gdata, gweight, [gbias]
    sides = []
    if call.wants(0):
        sides.append(_Sides(0, 2, count, FORWARD) if turned else _Sides(count, 2, 0, DATA))
    if call.wants(1):
        sides.append(_Sides(0, count + 1, 1, WEIGHT) if turned else _Sides(1, count + 1, 0, WEIGHT))
    return sides


def takes(p: _Parameters, call: CallSpec) -> bool:
    """Return whether cuDNN runs a call of Convolution, Deconvolution or a gradient of theirs on the current device."""
    arrays = (*call.inputs, *call.outputs)
    kind = call.inputs[0].dtype
    return bool(
        call.device == "gpu"
        and call.plain
        and current_handle() is not None
        and not p.cudnn_off
        and kind.name in DATA_TYPES
        and all(array.dtype == kind and 0 < math.prod(array.shape) <= _MOST for array in arrays)
        and all(planned(_problem(p, call, sides)) is not None for sides in _sides(p, call))
    )


def _temps(p: _Parameters, call: CallSpec) -> list[Temp]:
    """The workspace; for a bias's gradient by CuPy's sums: those of each sample, and the whole, in a wide type."""
    plans = [planned(_problem(p, call, sides)) for sides in _sides(p, call)]
    size = max([plan.workspace for plan in plans if plan is not None], default=0)
    workspace = Temp((size + WORKSPACE_ALIGNMENT if size else 0,), np.uint8)
    if not _sums_bias(p, call):
        return [workspace]
    wide, samples = accumulation_type(call.inputs[0].dtype), call.inputs[0].shape[0]
    return [workspace, Temp((samples, p.num_filter), wide), Temp((p.num_filter,), wide)]


def _wants_bias(p: _Parameters, call: CallSpec) -> bool:
    return len(call.outputs) == 3 and call.wants(2)


def _sums_bias(p: _Parameters, call: CallSpec) -> bool:
    """Return whether CuPy adds the bias's gradient up: our kernel knows neither bfloat16 nor channels that lie last."""
    return _wants_bias(p, call) and (call.inputs[0].dtype.name not in TYPES or is_last(p.layout))


def _bind(p: _Parameters, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> list[Callable[[], Any]]:
    """The calls of cuDNN, with the copies that they need before and behind."""
    targets, copies = _aligned(ctx, outputs)
    arrays, workspace = (*inputs, *targets), ctx.temp[0]
    room = max(workspace.size - WORKSPACE_ALIGNMENT, 0)
    calls: list[Callable[[], Any]] = []
    for sides in _sides(p, ctx.call):
        plan = planned_within(_problem(p, ctx.call, sides), room)
        if plan is None:
            raise MXNetError(f"cuDNN: expected an algorithm of at most {room:,} bytes of workspace on this device too")
        calls.append(plan.bind(arrays[sides.wide], arrays[sides.weight], arrays[sides.narrow], workspace))
    return calls + copies


def _aligned(ctx: OpContext, outputs: Outputs) -> tuple[list[Any], list[Callable[[], Any]]]:
    """Return the arrays that cuDNN writes: a copy for a misaligned output, and the calls that copy it back."""
    targets = list(outputs)
    copies: list[Callable[[], Any]] = []
    for k, out in enumerate(outputs):
        if out is not None and out.data.ptr % _ALIGNMENT:
            targets[k] = ctx.backend.empty(out.shape, out.dtype)
            copies.append(partial(ctx.xp.copyto, out, targets[k]))
    return targets, copies


def _forward(p: _Parameters, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs, _ALIGNMENT)
    calls += _bind(p, ctx, arrays, outputs)
    if not p.no_bias:
        out = first(outputs[0], p.layout)
        bias = arrays[2].reshape(-1, *(1,) * len(p.kernel))
        # The same object as input and output: CuPy adds in place.
        calls.append(partial(ctx.xp.add, out, bias, out=out))
    return as_one(calls)


def _backward(p: _Parameters, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs, _ALIGNMENT)
    calls += _bind(p, ctx, arrays, outputs)
    if _sums_bias(p, ctx.call):
        by_sample, total = ctx.temp[1:]
        gout = first(arrays[0], p.layout)
        calls.append(partial(_sum_channels, ctx.xp, gout, by_sample, total, outputs[2]))
    elif _wants_bias(p, ctx.call):
        calls.append(bias_gradient(ctx, arrays[0], outputs[2]))
    return as_one(calls)


def _sum_channels(xp: Any, gout: Array, by_sample: Array, total: Array, gbias: Array) -> None:
    """gbias = the sum of each channel of gout (sample, channel, ...)."""
    xp.sum(gout, axis=tuple(range(2, gout.ndim)), dtype=by_sample.dtype, out=by_sample)
    xp.sum(by_sample, axis=0, out=total)
    xp.copyto(gbias, total, casting="unsafe")


for _family in (convolution, deconvolution):
    _family.op.compute("gpu", level="library", prepares=True, accepts=takes, temps=_temps)(_forward)
    _family.backward.compute("gpu", level="library", prepares=True, accepts=takes, temps=_temps)(_backward)
