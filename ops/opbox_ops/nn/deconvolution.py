"""Deconvolution: the gradient of a convolution with respect to its data, as a layer (a transposed convolution).

data (batch, channel, *spatial), weight (channel, num_filter / num_group, *kernel), bias (num_filter,),
out (batch, num_filter, *out) with out = stride (spatial - 1) + dilate (kernel - 1) + 1 - 2 pad + adj, for one to three
spatial dimensions. In a channels-last layout data and out are (batch, *spatial, channel) and weight is
(channel, *kernel, num_filter / num_group). target_shape, if it is not all 0, is the size of out: pad and adj are then
what makes it so. With num_group, channels and filters are split into as many groups.

As matrices, with the columns of `columns.py` taken from out:

    columns = weight.T @ data, scattered into out        gdata = weight @ gcolumns        gweight = data @ gcolumns.T

with gcolumns gathered from gout, and gbeta = sum of gout. Zeiler et al., "Deconvolutional Networks" (2010).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import backward_node
from ..infer import ShapeList, all_same_float
from ..node import Entry, Node
from ..params import Bool, Field, NonNegativeInt, Params, PositiveInt, Shape
from ..registry import Slot, register, register_backward, unless
from .columns import Block, Geometry
from .window import (
    ConvolutionLayout,
    CudnnTune,
    channels_first,
    channels_last,
    check_layout,
    data_shape,
    first,
    is_last,
    spatial,
)

__all__ = ["DeconvolutionParams", "forward", "gradient_temporaries", "gradients", "shapes", "temporaries", "window_of"]


class DeconvolutionParams(Params):
    kernel: Shape = Field(description="Size of the kernel, one number a spatial dimension.")
    stride: Shape = Field((), description="Step of the kernel over out; 1 by default.")
    dilate: Shape = Field((), description="Distance of the kernel's taps; 1 by default.")
    pad: Shape = Field((), description="How much of out is cut off at both ends; 0 by default.")
    adj: Shape = Field((), description="Added to out's size at the end, less than stride; 0 by default.")
    target_shape: Shape = Field((), description="Size of out, instead of pad and adj.")
    num_filter: PositiveInt = Field(description="Channels of out.")
    num_group: PositiveInt = Field(1, description="Groups that channels and filters are split into.")
    workspace: NonNegativeInt = Field(512, description="Megabytes that cuDNN may use beside the arrays.")
    no_bias: Bool = Field(True, description="Leave bias out.")
    cudnn_tune: CudnnTune = Field(None, description="cuDNN's algorithm: measured, or (off) as it recommends.")
    cudnn_off: Bool = Field(False, description="Run without cuDNN.")
    layout: ConvolutionLayout = Field(None, description="Order of data's axes; by default the channels are second.")


_ARGUMENTS = ("data", "weight", Slot("bias", unless("no_bias")))

op = register("Deconvolution", DeconvolutionParams, inputs=_ARGUMENTS)
op.infer_type(all_same_float)
backward = register_backward("_backward_Deconvolution", DeconvolutionParams, outputs=_ARGUMENTS)
op.set_attr("FSpatialOperands", lambda p: None if is_last(p.layout) else ((0,), (0,)))
backward.set_attr("FSpatialOperands", lambda p: None if is_last(p.layout) else ((0, 1), (0,)))
for _one in (op, backward):
    _one.set_attr("TPrefersChannelsLast", True)


def _strides(p: DeconvolutionParams) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    ndim = len(p.kernel)
    stride, dilate = spatial(p.stride, ndim, 1, "stride", 1), spatial(p.dilate, ndim, 1, "dilate", 1)
    return stride, dilate, spatial(p.pad, ndim, 0, "pad", 0)


def _pads(p: DeconvolutionParams, data: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """pad and adj for data's spatial dimensions (-1: unknown), made to fit target_shape where that is set."""
    ndim = len(p.kernel)
    stride, dilate, pad = _strides(p)
    adj = spatial(p.adj, ndim, 0, "adj", 0)
    if not any(p.target_shape):
        if any(a >= s for a, s in zip(adj, stride, strict=True)):
            raise ShapeError(f"adj: expected numbers less than stride {stride}, got {adj}")
        return pad, adj
    target = spatial(p.target_shape, ndim, 0, "target_shape", 0)
    surplus = [
        s * (n - 1) + d * (k - 1) + 1 - t if n >= 0 else 0
        for n, t, k, s, d in zip(data, target, p.kernel, stride, dilate, strict=True)
    ]
    if min(surplus) < 0:
        raise ShapeError(f"target_shape: expected at most what data's {tuple(data)} is spread over, got {target}")
    return tuple((n + 1) // 2 for n in surplus), tuple(n % 2 for n in surplus)


def shapes(p: DeconvolutionParams, ins: ShapeList, outs: ShapeList) -> None:
    """FInferShape."""
    ndim = len(p.kernel)
    if not 1 <= ndim <= 3 or min(p.kernel) < 1:
        raise ShapeError(f"kernel: expected one to three positive numbers, got {p.kernel}")
    if p.num_filter % p.num_group:
        raise ShapeError(f"num_filter: expected a multiple of num_group {p.num_group}, got {p.num_filter}")
    check_layout(p.layout, ndim)
    stride, dilate, _ = _strides(p)
    data = channels_first(data_shape(ins, p.kernel), p.layout) or (-1,) * (ndim + 2)
    weight_shape = channels_last((data[1], p.num_filter // p.num_group, *p.kernel), p.layout)
    weight = channels_first(ins.merge(1, weight_shape), p.layout) or ()
    if weight[0] >= 0 and weight[0] % p.num_group:
        message = f"expected a number of channels that num_group {p.num_group} divides, got {weight[0]}"
        raise ShapeError(message, side="input", index=0)
    if not p.no_bias:
        ins.merge(2, (p.num_filter,))
    pad, adj = _pads(p, data[2:])
    reach = [d * (k - 1) + 1 for k, d in zip(p.kernel, dilate, strict=True)]
    if any(p.target_shape):
        sizes = list(p.target_shape)
    else:
        sizes = [
            s * (n - 1) + r - 2 * q + a if n >= 0 else -1
            for n, r, s, q, a in zip(data[2:], reach, stride, pad, adj, strict=True)
        ]
        if any(size < 0 <= n for size, n in zip(sizes, data[2:], strict=True)):
            raise ShapeError(f"pad: expected no more than out's size, got {pad} for data {tuple(data)}")
    out = channels_first(outs.merge(0, channels_last((data[0], p.num_filter, *sizes), p.layout)), p.layout) or ()
    back = [-1] * ndim
    if not any(p.target_shape):
        spans = [o + 2 * q - a - r if o >= 0 else -1 for o, r, q, a in zip(out[2:], reach, pad, adj, strict=True)]
        back = [n // s + 1 if n >= 0 and n % s == 0 else -1 for n, s in zip(spans, stride, strict=True)]
    ins.merge(0, channels_last((out[0], weight[0], *back), p.layout))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Deconvolution", node, [ograds[0], *node.inputs[:2]])


def window_of(p: DeconvolutionParams, data: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Stride, dilation and padding of the convolution from out to data, whose spatial dimensions are given."""
    stride, dilate, _ = _strides(p)
    return stride, dilate, _pads(p, data)[0]


class _DeconvolutionBlocks:
    """The blocks of the convolution from out to data whose transpose this is, and the temporaries cut to them."""

    def __init__(self, p: DeconvolutionParams, data: tuple[int, ...], out: tuple[int, ...], device: str) -> None:
        stride, dilate, pad = window_of(p, data[2:])
        self.group = p.num_group
        self.geometry = Geometry(out, data[1], data[2:], p.kernel, stride, dilate, pad, device)

    def temps(self, dtype: Any) -> list[Temp]:
        block = self.geometry.largest(dtype.itemsize)
        rows, columns = self.geometry.rows_shape(block), self.geometry.columns_shape(block)
        positions = self.geometry.filters * block.samples * block.rows * self.geometry.row
        # A kernel one row high needs both, too: what is scattered and what is gathered are the same then.
        return [Temp((math.prod(shape),), dtype) for shape in (rows, columns, (positions,))]

    def cut(self, temps: Arrays) -> Iterator[tuple[Block, Array, Array, Array]]:
        """For each block: rows, columns, and the space for data's part, (group, channel / group, positions)."""
        geometry = self.geometry
        for block in geometry.blocks(temps[0].dtype.itemsize):
            positions = block.samples * block.rows * geometry.row
            shape = (self.group, geometry.filters // self.group, positions)
            rows, columns = geometry.rows_shape(block), geometry.columns_shape(block)
            yield block, _cut(temps[0], rows), _cut(temps[1], columns), _cut(temps[2], shape)

    def matrix(self, columns: Array) -> Array:
        """Columns as (group, depth / group, positions)."""
        return columns.reshape(self.group, self.geometry.depth // self.group, -1)

    def part(self, array: Array, block: Block) -> Array:
        """The block's part of an array shaped as data, channels first: (channel, samples, rows, *spatial[1:])."""
        return array[block.start : block.stop, :, block.top : block.bottom].swapaxes(0, 1)


def _cut(space: Array, shape: tuple[int, ...]) -> Array:
    return space[: math.prod(shape)].reshape(shape)


def _grouped(p: DeconvolutionParams, weight: Array, space: Array) -> Array:
    """weight as (group, channel / group, depth / group), in `space` where it is not laid out so, or of another type."""
    wide = first(weight, p.layout)
    if space.size:
        copy = space.reshape(wide.shape)
        copy[...] = wide
        wide = copy
    return wide.reshape(p.num_group, wide.shape[0] // p.num_group, math.prod(wide.shape[1:]))


def _weight_temp(p: DeconvolutionParams, weight: ArraySpec, dtype: Any) -> Temp:
    """The space of `_grouped`."""
    as_it_is = weight.dtype == dtype and not is_last(p.layout)
    return Temp((0 if as_it_is else math.prod(weight.shape),), dtype)


def temporaries(p: DeconvolutionParams, call: CallSpec) -> Sequence[Temp]:
    """Temporaries of `forward`."""
    data, out = channels_first(call.inputs[0].shape, p.layout), channels_first(call.outputs[0].shape, p.layout)
    dtype = accumulation_type(call.inputs[0].dtype)
    return [
        *_DeconvolutionBlocks(p, data or (), out or (), call.device).temps(dtype),
        Temp(out or (), dtype),
        _weight_temp(p, call.inputs[1], dtype),
    ]


def gradient_temporaries(p: DeconvolutionParams, call: CallSpec) -> Sequence[Temp]:
    """Temporaries of `gradients`."""
    out, data = channels_first(call.inputs[0].shape, p.layout), channels_first(call.inputs[1].shape, p.layout)
    dtype, weight = accumulation_type(call.inputs[0].dtype), (math.prod(call.inputs[2].shape),)
    return [
        *_DeconvolutionBlocks(p, data or (), out or (), call.device).temps(dtype),
        Temp(weight, dtype),
        Temp(weight, dtype),
        _weight_temp(p, call.inputs[2], dtype),
    ]


def forward(p: DeconvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    """Write out from (data, weight, bias)."""
    if outputs[0] is None:
        return
    data, total = first(inputs[0], p.layout), ctx.temp[3]
    blocks = _DeconvolutionBlocks(p, data.shape, total.shape, ctx.backend.device_type)
    weight = _grouped(p, inputs[1], ctx.temp[4]).swapaxes(1, 2)
    total[...] = 0 if p.no_bias else inputs[2].reshape(-1, *(1,) * len(p.kernel))
    for block, rows, columns, space in blocks.cut(ctx.temp):
        part = blocks.part(data, block)
        space.reshape(part.shape)[...] = part
        matmul(ctx.xp, weight, space, blocks.matrix(columns))
        blocks.geometry.scatter(columns, block, rows, total)
    first(outputs[0], p.layout)[...] = total


def gradients(p: DeconvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    """Write (gdata, gweight, gbias) from (gout, data, weight)."""
    xp, gout, data = ctx.xp, first(inputs[0], p.layout), first(inputs[1], p.layout)
    blocks = _DeconvolutionBlocks(p, data.shape, gout.shape, ctx.backend.device_type)
    weight = _grouped(p, inputs[2], ctx.temp[5])
    gdata = None if outputs[0] is None else first(outputs[0], p.layout)
    gweight, share = (temp.reshape(weight.shape) for temp in ctx.temp[3:5])
    gweight[...] = 0
    for block, rows, columns, space in blocks.cut(ctx.temp):
        gcolumns = blocks.matrix(blocks.geometry.gather(gout, block, rows, columns))
        if outputs[1] is not None:
            part = blocks.part(data, block)
            space.reshape(part.shape)[...] = part
            matmul(xp, space, gcolumns.swapaxes(1, 2), share)
            gweight += share
        if gdata is not None:
            matmul(xp, weight, gcolumns, space)
            part = blocks.part(gdata, block)
            part[...] = space.reshape(part.shape)
    if outputs[1] is not None:
        target = first(outputs[1], p.layout)
        target[...] = gweight.reshape(target.shape)
    if not p.no_bias and outputs[2] is not None:
        total = ctx.temp[4][: p.num_filter]
        xp.sum(gout, axis=(0, *range(2, gout.ndim)), dtype=total.dtype, out=total)
        outputs[2][...] = total


op.infer_shape(shapes)
op.compute(temps=temporaries)(forward)
backward.compute(temps=gradient_temporaries)(gradients)
