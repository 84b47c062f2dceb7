"""UpSampling: images made larger by a whole number, by repeating elements or by a transposed convolution.

sample_type "nearest" takes num_args inputs (batch, channels, height, width), each of whose sizes divides that of out,
(scale height, scale width) of the first one: each element of an input becomes a square of out. multi_input_mode
"concat" puts the inputs' channels behind each other, "sum" adds inputs of as many channels. An element's gradient is
the sum of gout over its square.

sample_type "bilinear" takes data (batch, num_filter, height, width) and weight (num_filter, 1, k, k): out is the
Deconvolution of each channel with its own kernel, k = 2 scale - scale % 2, stride scale and pad ceil((scale - 1) / 2).
With weight as the initializer Bilinear makes it, that is bilinear interpolation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float, show_shape
from ..node import Entry, Node
from ..params import Count, Field, Int, NonNegativeInt, Params, PositiveInt
from ..registry import Variadic, register, register_backward, when
from . import deconvolution
from .deconvolution import DeconvolutionParams


class UpSamplingParams(Params):
    scale: PositiveInt = Field(description="How much larger out is than the first input.")
    num_filter: Int = Field(0, description="Channels of data, with sample_type 'bilinear'.")
    sample_type: Literal["bilinear", "nearest"] = Field(description="How elements of out are made.")
    multi_input_mode: Literal["concat", "sum"] = Field("concat", description="What is made of several inputs.")
    num_args: Count = Field(description="How many inputs there are, with sample_type 'nearest'.")
    workspace: NonNegativeInt = Field(512, description="Has no effect; for MXNet's files.")


_INPUTS = Variadic(instead=("data", "weight"), where=when("sample_type", "bilinear"))

op = register("UpSampling", UpSamplingParams, inputs=_INPUTS)
op.set_attr("FSetInputVarAttrOnCompose", {"weight": '["bilinear", {}]'})
op.infer_type(all_same_float)
backward = register_backward("_backward_UpSampling", UpSamplingParams, outputs=op.input_names)


def _deconvolution(p: UpSamplingParams) -> DeconvolutionParams:
    """The transposed convolution that 'bilinear' is."""
    size, pad = 2 * p.scale - p.scale % 2, p.scale // 2
    if p.num_filter < 1:
        raise ShapeError(f"num_filter: expected data's channels with sample_type 'bilinear', got {p.num_filter}")
    attrs = {"kernel": (size, size), "stride": (p.scale,) * 2, "pad": (pad, pad), "num_group": p.num_filter}
    return DeconvolutionParams.parse("UpSampling", {**attrs, "num_filter": p.num_filter})


@op.infer_shape
def _(p: UpSamplingParams, ins: ShapeList, outs: ShapeList) -> None:
    if p.sample_type == "bilinear":
        deconvolution.shapes(_deconvolution(p), ins, outs)
        return
    shapes = [ins.rank(k, 4) or (-1,) * 4 for k in range(len(ins))]
    out = outs.rank(0, 4) or (-1,) * 4
    sizes = [d * p.scale if d >= 0 else o for d, o in zip(shapes[0][2:], out[2:], strict=True)]
    joined = p.multi_input_mode == "concat"
    batch = next((shape[0] for shape in (*shapes, out) if shape[0] >= 0), -1)
    channels = [shape[1] for shape in shapes]
    if joined:
        total = sum(channels) if min(channels) >= 0 else -1
        if channels.count(-1) == 1 and out[1] >= 0:
            channels = [out[1] - sum(channels) - 1 if c < 0 else c for c in channels]
    else:
        total = next((c for c in (*channels, out[1]) if c >= 0), -1)
        channels = [total] * len(channels)
    out = outs.merge(0, (batch, total, *sizes)) or ()
    for k, (shape, channel) in enumerate(zip(shapes, channels, strict=True)):
        own = [-1, -1] if k else [o // p.scale if o >= 0 and o % p.scale == 0 else -1 for o in out[2:]]
        ins.merge(k, (out[0], channel, *own))
        for size, whole in zip(shape[2:], out[2:], strict=True):
            if size >= 0 and whole >= 0 and (whole % size if size else whole):
                message = f"expected a height and width that divide out's {show_shape(out)}, got {show_shape(shape)}"
                raise ShapeError(message, side="input", index=k)


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    p = node.params
    # Of several inputs the shapes are read, where not every gradient is wanted.
    plain = isinstance(p, UpSamplingParams) and p.sample_type == "nearest" and p.num_args == 1
    return backward_node("_backward_UpSampling", node, ograds if plain else [*ograds, *node.inputs])


def _squares(p: UpSamplingParams, shapes: Sequence[tuple[int, ...]], out: Array) -> Iterator[Array]:
    """For each input its channels of `out` as squares: a view (batch, channel, height, y, width, x)."""
    start = 0
    for batch, channels, height, width in shapes:
        part = out[:, start : start + channels]
        start += channels if p.multi_input_mode == "concat" else 0
        y, x = out.shape[2] // max(1, height), out.shape[3] // max(1, width)
        yield part.reshape(batch, channels, height, y, width, x)


def _temps(p: UpSamplingParams, call: CallSpec) -> Sequence[Temp]:
    return [] if p.sample_type == "nearest" else deconvolution.temporaries(_deconvolution(p), call)


def _back_temps(p: UpSamplingParams, call: CallSpec) -> Sequence[Temp]:
    return [] if p.sample_type == "nearest" else deconvolution.gradient_temporaries(_deconvolution(p), call)


@op.compute(temps=_temps)
def _(p: UpSamplingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if outputs[0] is None:
        return
    if p.sample_type == "bilinear":
        deconvolution.forward(_deconvolution(p), ctx, inputs, outputs)
        return
    squares = _squares(p, [array.shape for array in inputs], outputs[0])
    for k, (data, square) in enumerate(zip(inputs, squares, strict=True)):
        repeated = data[:, :, :, None, :, None]
        if k and p.multi_input_mode == "sum":
            square += repeated
        else:
            square[...] = repeated


@backward.compute(temps=_back_temps)
def _(p: UpSamplingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if p.sample_type == "bilinear":
        deconvolution.gradients(_deconvolution(p), ctx, inputs, outputs)
        return
    if all(target is None for target in outputs):
        return
    shapes = [array.shape for array in (outputs if p.num_args == 1 else inputs[1:])]
    for target, square in zip(outputs, _squares(p, shapes, inputs[0]), strict=True):
        if target is not None:
            ctx.xp.sum(square, axis=(3, 5), out=target)
