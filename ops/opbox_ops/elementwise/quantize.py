"""_contrib_quantize, _contrib_dequantize: numbers as 8-bit integers over a range that two arrays of one element give.

With M = max(|min_range|, |max_range|):

    quantize    int8: clip(rint(data * 127 / M), -128, 127), and its range -M, M
                uint8: clip(rint(data * 255 / M), 0, 255), and its range min_range, max_range
    dequantize  int8: data * M / 127.5        uint8: data * M / 255.5

These are the numbers of MXNet's CPU build (oneDNN's scales going in, and its own, half a step wider, coming out). There
is no gradient.
"""

from __future__ import annotations

from typing import Any, Literal

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import ShapeList, TypeList
from ..params import Field, Params
from ..registry import register

ONE = (1,)
STEPS = {"int8": (-128, 127), "uint8": (0, 255)}
"""The least and the greatest integer of each type."""


class QuantizeParams(Params):
    out_type: Literal["int8", "uint8"] = Field("uint8", description="Element type of the output.")


class DequantizeParams(Params):
    out_type: Literal["float32"] = Field("float32", description="Element type of the output.")


quantize = register(
    "_contrib_quantize",
    QuantizeParams,
    inputs=("data", "min_range", "max_range"),
    outputs=("output0", "output1", "output2"),
    doc="Numbers as 8-bit integers, and the range that these stand for.",
)
dequantize = register(
    "_contrib_dequantize",
    DequantizeParams,
    inputs=("data", "min_range", "max_range"),
    doc="Numbers from 8-bit integers and their range.",
)


@quantize.infer_shape
@dequantize.infer_shape
def _(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    ins.merge(0, outs.merge(0, ins[0]))
    for slots, first in ((ins, 1), (outs, 1)):
        for i in range(first, len(slots)):
            slots.merge(i, ONE)


@quantize.infer_type
def _(p: QuantizeParams, ins: TypeList, outs: TypeList) -> None:
    outs.merge(0, p.out_type)
    for slots, first in ((ins, 0), (outs, 1)):
        for i in range(first, len(slots)):
            slots.merge(i, "float32")


@dequantize.infer_type
def _(p: DequantizeParams, ins: TypeList, outs: TypeList) -> None:
    ins.only(0, *STEPS)
    ins.merge(1, "float32")
    ins.merge(2, "float32")
    outs.merge(0, p.out_type)


def _largest(xp: Any, low: Array, high: Array) -> Array:
    return xp.maximum(xp.abs(low), xp.abs(high))


def _steps(p: QuantizeParams, call: CallSpec) -> list[Temp]:
    return [Temp(call.inputs[0].shape, call.inputs[0].dtype)]


@quantize.compute(temps=_steps)
def _(p: QuantizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, (data, low, high) = ctx.xp, inputs
    largest = _largest(xp, low, high)
    least, greatest = STEPS[p.out_type]
    if outputs[0] is not None:
        steps = xp.multiply(data, (data.dtype.type(greatest) / largest).reshape(()), out=ctx.temp[0])
        xp.rint(steps, out=steps)
        xp.clip(steps, least, greatest, out=steps)
        xp.copyto(outputs[0], steps, casting="unsafe")
    ends = (-largest, largest) if p.out_type == "int8" else (low, high)
    for out, end in zip(outputs[1:], ends, strict=True):
        if out is not None:
            out[...] = end


@dequantize.compute()
def _(p: DequantizeParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    (data, low, high), (out,) = inputs, outputs
    if out is None:
        return
    wide = out.dtype.type(STEPS[data.dtype.name][1] + 0.5)
    ctx.xp.copyto(out, data)
    ctx.xp.multiply(out, (_largest(ctx.xp, low, high) / wide).reshape(()), out=out)
