"""Convolution and Deconvolution by cuDNN: one to three dimensions, groups, dilation, channels second or last.

A deconvolution is the convolution from its out to its data, seen from the other side: its forward is that one's
gradient of data, and its gradient of data that one's forward. So each problem has a wide side, that the kernel slides
over, and a narrow one, with a place for each position of the kernel.

Half precision and bfloat16 are added up in single. A convolution's bias is added by the same call or behind it
(`planned`); the bias's gradient is a kernel of our own.

In a region of channels last (`layout.CHANNELS_LAST`) data, weight and out lie so. Tensor cores multiply channels that
lie together: cuDNN turns arrays of half precision and bfloat16 whose channels are second on their way to them, in each
call anew, and single precision that is rounded to TF32 too. Without TF32 single precision is not multiplied there, and
is not taken: its algorithms are those for channels second.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from opbox_protocol.errors import BadRequestError

from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..cuda.bias import bias_gradient, bias_parts, last_bias_gradient, last_parts
from ..cuda.kernel import contiguous
from ..cuda.precision import allow_tf32
from ..layout import CHANNELS_LAST, physical_arrays, share_layout
from ..nn import convolution, convolution_v1, deconvolution
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
)
from .choice import bound, choice_of
from .library import DATA_TYPES, current_handle, device_bytes
from .planned import ConvolutionArrays, bias_behind

__all__ = ["takes"]

_ALIGNMENT = 16
"""Bytes that the arrays' addresses are multiples of."""
_MAX_ELEMENTS = 2**31 - 1
"""Maximum number of elements of an array."""
_TUNES = ("limited_workspace", "fastest", "off")
_LANE, _MAX_COLOURS = 8, 4
"""Channels that tensor cores load together, in half precision, and the channels of an image that is no more yet.

LeNet's step, of 20 and 50 channels, took 0.54 ms on an H100 in half precision with its channels last and 0.36 in single
with them second; with TF32 0.68.
"""
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
    shapes, dtype = (wide, weight, narrow), call.inputs[0].dtype.name
    biased = sides.result is FORWARD and _adds_bias(p, call)
    return ConvolutionProblem.of(
        sides.result, dtype, shapes, window, p.num_group, _last(p, call), tune != "off", most, biased
    )


def _adds_bias(p: _Parameters, call: CallSpec) -> bool:
    """Return whether a call is a convolution's forward with a bias, which cuDNN may add."""
    return not p.no_bias and len(call.outputs) == 1 and not isinstance(p, DeconvolutionParams)


def _last(p: _Parameters, call: CallSpec) -> bool:
    """Return whether the channels lie last: by the operator's layout, or in a region."""
    return is_last(p.layout) or call.inputs[0].layout == CHANNELS_LAST


def _takes_layout(p: _Parameters, call: CallSpec) -> bool:
    """Return whether arrays lie so that cuDNN is to take them: plain, or in a region that tensor cores gain by."""
    if call.plain:
        return True
    ins, outs = ((0, 1, 2), (0, 1)) if len(call.outputs) > 1 else ((0, 1), (0,))
    by_tensor_cores = call.inputs[0].dtype.itemsize == 2 or (call.inputs[0].dtype.name == "float32" and allow_tf32())
    return by_tensor_cores and share_layout(call, ins, outs) and not is_last(p.layout) and _fill_tensor_cores(call)


def _fill_tensor_cores(call: CallSpec) -> bool:
    """Return whether tensor cores load the channels of data and out, which lie last, by 16 bytes at a time.

    An image's few are padded for one layer, and what follows gains by it.
    """
    out = call.inputs[1] if len(call.outputs) > 1 else call.outputs[0]
    return all(array.shape[1] % _LANE == 0 or array.shape[1] <= _MAX_COLOURS for array in (call.inputs[0], out))


def _sides(p: _Parameters, call: CallSpec) -> list[_Sides]:
    """List the products that a call computes: one for forward, one for each wanted gradient for backward."""
    deconvolves = isinstance(p, DeconvolutionParams)
    count = len(call.inputs)
    if len(call.outputs) == 1:
        # data, weight, [bias] to out
        return [_Sides(count, 1, 0, DATA) if deconvolves else _Sides(0, 1, count, FORWARD)]
    # gout, data, weight to gdata, gweight, [gbias]
    sides = []
    if call.wants(0):
        sides.append(_Sides(0, 2, count, FORWARD) if deconvolves else _Sides(count, 2, 0, DATA))
    if call.wants(1):
        sides.append(_Sides(0, count + 1, 1, WEIGHT) if deconvolves else _Sides(1, count + 1, 0, WEIGHT))
    return sides


def takes(p: _Parameters, call: CallSpec) -> bool:
    """Return whether cuDNN runs a call of Convolution, Deconvolution or a gradient of theirs on the current device."""
    arrays = (*call.inputs, *call.outputs)
    kind = call.inputs[0].dtype
    return bool(
        call.device == "gpu"
        and _takes_layout(p, call)
        and current_handle() is not None
        and not p.cudnn_off
        and kind.name in DATA_TYPES
        and all(array.dtype == kind and 0 < math.prod(array.shape) <= _MAX_ELEMENTS for array in arrays)
        and all(choice_of(_problem(p, call, sides)) is not None for sides in _sides(p, call))
    )


def _temps(p: _Parameters, call: CallSpec) -> list[Temp]:
    """The workspace, and the sums of slices that the gradient of a bias is made of."""
    choices = [choice_of(_problem(p, call, sides)) for sides in _sides(p, call)]
    size = max([choice.workspace for choice in choices if choice is not None], default=0)
    workspace = Temp((size + WORKSPACE_ALIGNMENT if size else 0,), np.uint8)
    if not _wants_bias(call):
        return [workspace]
    gout = call.inputs[0]
    return [workspace, last_parts(gout, p.num_filter) if _last(p, call) else bias_parts(gout)]


def _wants_bias(call: CallSpec) -> bool:
    return len(call.outputs) == 3 and call.wants(2)


def _workspace_bytes(ctx: OpContext) -> int:
    """Bytes of workspace: those that were planned, perhaps for another device than the current."""
    return max(int(ctx.temp[0].size) - WORKSPACE_ALIGNMENT, 0)


def _bind(p: _Parameters, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> list[Callable[[], Any]]:
    """The calls of cuDNN, with the copies that they need before and behind."""
    targets, copies = _aligned(ctx, outputs)
    arrays, workspace, nbytes = (*inputs, *targets), ctx.temp[0], _workspace_bytes(ctx)
    bias = inputs[2] if _adds_bias(p, ctx.call) else None
    calls: list[Callable[[], Any]] = []
    for sides in _sides(p, ctx.call):
        operands = ConvolutionArrays(arrays[sides.wide], arrays[sides.weight], arrays[sides.narrow], workspace, bias)
        calls.append(bound(_problem(p, ctx.call, sides), operands, nbytes))
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
    inputs, physical_outputs = physical_arrays(ctx.call, inputs, outputs)
    arrays, calls = contiguous(ctx, inputs, _ALIGNMENT)
    calls += _bind(p, ctx, arrays, physical_outputs)
    if not p.no_bias and isinstance(p, DeconvolutionParams):
        calls.append(bias_behind(ctx.xp, first(outputs[0], p.layout), arrays[2]))
    return as_one(calls)


def _backward(p: _Parameters, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    inputs, physical_outputs = physical_arrays(ctx.call, inputs, outputs)
    arrays, calls = contiguous(ctx, inputs, _ALIGNMENT)
    calls += _bind(p, ctx, arrays, physical_outputs)
    if _wants_bias(ctx.call):
        if _last(p, ctx.call):
            calls.append(last_bias_gradient(ctx, arrays[0], ctx.temp[1], outputs[2]))
        else:
            calls.append(bias_gradient(ctx, arrays[0], ctx.temp[1], outputs[2]))
    return as_one(calls)


for _family in (convolution, convolution_v1, deconvolution):
    _family.op.compute("gpu", level="library", prepares=True, accepts=takes, temps=_temps)(_forward)
for _family in (convolution, deconvolution):
    _family.backward.compute("gpu", level="library", prepares=True, accepts=takes, temps=_temps)(_backward)
