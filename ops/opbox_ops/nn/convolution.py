"""Convolution: out[n, f] = sum over channels and kernel taps of weight[f] * data[n] under the kernel, + bias[f].

data (batch, channel, *spatial), weight (num_filter, channel / num_group, *kernel), bias (num_filter,),
out (batch, num_filter, *out) with out = (spatial + 2 pad - dilate (kernel - 1) - 1) // stride + 1, for one to three
spatial dimensions. In a channels-last layout data and out are (batch, *spatial, channel) and weight is
(num_filter, *kernel, channel / num_group). With num_group, filters and channels are split into as many groups, and a
filter sees the channels of its group.

As matrices, with the columns of `columns.py`:

    out = weight @ columns       gweight = gout @ columns.T       gcolumns = weight.T @ gout, scattered into gdata
"""

from __future__ import annotations

import math
from typing import Any

from opbox_protocol.errors import ShapeError

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, OpReq, Outputs, Temp
from ..cuda.product import matmul
from ..gradient import backward_node
from ..infer import Shape as ShapeOrNone
from ..infer import ShapeList, show_shape
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


class ConvolutionParams(Params):
    kernel: Shape = Field(description="Size of the kernel: (width,), (height, width) or (depth, height, width).")
    stride: Shape = Field((), description="Step of the kernel; 1 by default.")
    dilate: Shape = Field((), description="Distance of the kernel's taps; 1 by default.")
    pad: Shape = Field((), description="Zeros before and after each spatial dimension; 0 by default.")
    num_filter: PositiveInt = Field(description="Channels of the output.")
    num_group: PositiveInt = Field(1, description="Groups that channels and filters are split into.")
    workspace: NonNegativeInt = Field(1024, description="Megabytes that cuDNN may use beside the arrays.")
    no_bias: Bool = Field(False, description="Leave bias out.")
    cudnn_tune: CudnnTune = Field(None, description="cuDNN's algorithm: measured, or (off) as it recommends.")
    cudnn_off: Bool = Field(False, description="Run without cuDNN.")
    layout: ConvolutionLayout = Field(None, description="Order of data's axes; by default the channels are second.")


_ARGUMENTS = ("data", "weight", Slot("bias", unless("no_bias")))

op = register("Convolution", ConvolutionParams, inputs=_ARGUMENTS)
backward = register_backward("_backward_Convolution", ConvolutionParams, outputs=_ARGUMENTS)


# Arrays (batch, channel, *spatial) that may lie with the channels last, all of them or none.
op.set_attr("FSpatialOperands", lambda p: None if is_last(p.layout) else ((0,), (0,)))
backward.set_attr("FSpatialOperands", lambda p: None if is_last(p.layout) else ((0, 1), (0,)))
# Weights that lie as data does where a compute has one order of axes for all of a call's arrays.
op.set_attr("FSpatialWeights", lambda p: ((1,), ()))
backward.set_attr("FSpatialWeights", lambda p: ((2,), (1,)))
for _one in (op, backward):
    _one.set_attr("TPrefersChannelsLast", True)


@op.infer_shape
def _(p: ConvolutionParams, ins: ShapeList, outs: ShapeList) -> None:
    ndim = len(p.kernel)
    if not 1 <= ndim <= 3 or min(p.kernel) < 1:
        raise ShapeError(f"kernel: expected one to three positive numbers, got {p.kernel}")
    if p.num_filter % p.num_group:
        raise ShapeError(f"num_filter: expected a multiple of num_group {p.num_group}, got {p.num_filter}")
    check_layout(p.layout, ndim)
    stride, dilate, pad = strides(p)
    data = channels_first(data_shape(ins, p.kernel), p.layout) or (-1,) * (ndim + 2)
    if data[1] % p.num_group and data[1] >= 0:
        raise ShapeError(
            f"expected a number of channels that num_group {p.num_group} divides, got {data[1]}", side="input", index=0
        )
    channels = data[1] // p.num_group if data[1] >= 0 else -1
    weight = ins.merge(1, channels_last((p.num_filter, channels, *p.kernel), p.layout))
    if not p.no_bias:
        ins.merge(2, (p.num_filter,))
    reach = [d * (k - 1) + 1 for k, d in zip(p.kernel, dilate, strict=True)]
    sizes = [
        (n + 2 * q - r) // s + 1 if n >= 0 else -1 for n, q, r, s in zip(data[2:], pad, reach, stride, strict=True)
    ]
    for n, q, r in zip(data[2:], pad, reach, strict=True):
        if n >= 0 and n + 2 * q < r:
            raise ShapeError(
                f"expected spatial dimensions that the kernel fits into (it reaches over {show_shape(tuple(reach))}), "
                f"got {show_shape(tuple(data[2:]))} with pad {show_shape(pad)}",
                side="input",
                index=0,
            )
    out = channels_first(outs.merge(0, channels_last((data[0], p.num_filter, *sizes), p.layout)), p.layout)
    weight_shape = channels_first(weight, p.layout)
    assert out is not None
    assert weight_shape is not None
    # Only a stride of 1 tells the input's size from the output's.
    back = [
        o + r - 1 - 2 * q if o >= 0 and s == 1 else -1 for o, q, r, s in zip(out[2:], pad, reach, stride, strict=True)
    ]
    known: ShapeOrNone = (out[0], weight_shape[1] * p.num_group if weight_shape[1] >= 0 else -1, *back)
    ins.merge(0, channels_last(known, p.layout))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Convolution", node, [ograds[0], *node.inputs[:2]])


def strides(p: ConvolutionParams) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    ndim = len(p.kernel)
    stride, dilate = spatial(p.stride, ndim, 1, "stride", 1), spatial(p.dilate, ndim, 1, "dilate", 1)
    return stride, dilate, spatial(p.pad, ndim, 0, "pad", 0)


def _geometry(p: ConvolutionParams, data: tuple[int, ...], out: tuple[int, ...], device: str) -> Geometry:
    """From shapes with the channels second."""
    return Geometry(data, p.num_filter, out[2:], p.kernel, *strides(p), device)


def _block_temps(p: ConvolutionParams, data: ArraySpec, weight: ArraySpec, out: ArraySpec, device: str) -> list[Temp]:
    """Rows, columns and product of the largest block; the weight, where it is not computed with as it lies."""
    first_shape, out_shape = (channels_first(spec.shape, p.layout) or () for spec in (data, out))
    geometry = _geometry(p, first_shape, out_shape, device)
    dtype = accumulation_type(data.dtype)
    block = geometry.largest(dtype.itemsize)
    rows, columns = geometry.rows_shape(block), geometry.columns_shape(block)
    product = (p.num_filter * block.samples * block.rows * geometry.row,)
    contiguous = (0,) if weight.dtype == dtype and not is_last(p.layout) else weight.shape
    return [
        Temp((math.prod(shape),), dtype) for shape in (rows, columns if p.kernel[0] > 1 else (0,), product, contiguous)
    ]


def _backward_temps(p: ConvolutionParams, call: CallSpec) -> list[Temp]:
    """Beside a block's: its share of gweight; gdata and gweight in a wider type; the bias's sums by sample, and wide.

    The gradient's columns take the place of `rows` where the kernel is one row high.
    """
    gout, data, weight = call.inputs
    rows, columns, product, contiguous = _block_temps(p, data, weight, gout, call.device)
    dtype, bias = rows.dtype, not p.no_bias and call.wants(2)
    narrow = data.dtype != dtype
    shapes = [
        weight.shape,
        data.shape if narrow and call.wants(0) else (0,),
        weight.shape if narrow and call.wants(1) else (0,),
        (data.shape[0], p.num_filter) if bias else (0,),
        (p.num_filter,) if bias else (0,),
    ]
    further = [Temp((math.prod(shape),), dtype) for shape in shapes]
    return [rows, rows if p.kernel[0] == 1 else columns, product, contiguous, *further]


class _ConvolutionBlocks:
    """A convolution's blocks on given arrays, and the temporaries cut to them."""

    def __init__(self, p: ConvolutionParams, ctx: OpContext, data: Array, out: Array) -> None:
        self.data = data
        self.geometry = _geometry(p, data.shape, out.shape, ctx.backend.device_type)
        self.group = p.num_group
        self.filters = p.num_filter
        self.rows, self.columns, self.product = ctx.temp[:3]
        self.dtype = self.rows.dtype

    def __iter__(self) -> Any:
        return self.geometry.blocks(self.dtype.itemsize)

    def gather(self, block: Block) -> Array:
        """Columns (group, depth / group, positions)."""
        geometry = self.geometry
        if geometry.pointwise and block.samples == 1 and self.plain(self.data):
            return self.taken(self.data, block)
        rows = _cut(self.rows, geometry.rows_shape(block))
        columns = rows if geometry.kernel[0] == 1 else _cut(self.columns, geometry.columns_shape(block))
        return self.grouped(geometry.gather(self.data, block, rows, columns))

    def grouped(self, columns: Array) -> Array:
        """Columns (channel, *kernel, samples, *positions) as (group, depth / group, positions)."""
        positions = math.prod(columns.shape[-len(self.geometry.kernel) - 1 :])
        return columns.reshape(self.group, self.geometry.depth // self.group, positions)

    def plain(self, array: Array) -> bool:
        """Return whether a matrix product can read and write the array as it is."""
        return array.dtype == self.dtype and bool(array.flags.c_contiguous)

    def taken(self, array: Array, block: Block) -> Array:
        """One sample's block of an array shaped as data or out, as a view (group, channel / group, positions)."""
        flat = array[block.start].reshape(self.group, array.shape[1] // self.group, math.prod(array.shape[2:]))
        return flat[:, :, block.top * self.geometry.row : block.bottom * self.geometry.row]

    def positions(self, array: Array, block: Block) -> Array:
        """The block's part of an output-shaped array: (samples, filter, rows, *out[1:])."""
        return array[block.start : block.stop, :, block.top : block.bottom]

    def matrix(self, array: Array, block: Block) -> Array | None:
        """The block's part of an output-shaped array as (group, filters / group, positions), if that is a view."""
        return self.taken(array, block) if block.samples == 1 and self.plain(array) else None

    def space(self, block: Block) -> Array:
        """The temporary in that shape: (group, filters / group, positions)."""
        positions = block.samples * block.rows * self.geometry.row
        return _cut(self.product, (self.group, self.filters // self.group, positions))

    def spread(self, matrix: Array, block: Block) -> Array:
        """A matrix (group, filters / group, positions), seen as `positions` has them."""
        shape = (self.filters, block.samples, block.rows, *self.geometry.out[1:])
        return matrix.reshape(shape).swapaxes(0, 1)


def _cut(space: Array, shape: tuple[int, ...]) -> Array:
    return space[: math.prod(shape)].reshape(shape)


def _grouped(p: ConvolutionParams, ctx: OpContext, weight: Array) -> Array:
    """weight as (group, filters / group, depth / group)."""
    scratch = ctx.temp[3]
    if scratch.size:
        by_channels = first(weight, p.layout)
        scratch = scratch.reshape(by_channels.shape)
        ctx.xp.copyto(scratch, by_channels)
        weight = scratch
    return weight.reshape(p.num_group, p.num_filter // p.num_group, math.prod(weight.shape[1:]))


@op.compute(temps=lambda p, call: _block_temps(p, call.inputs[0], call.inputs[1], call.outputs[0], call.device))
def _(p: ConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, out = ctx.xp, first(outputs[0], p.layout)
    blocks = _ConvolutionBlocks(p, ctx, first(inputs[0], p.layout), out)
    weight = _grouped(p, ctx, inputs[1])
    bias = None if p.no_bias else inputs[2].reshape(-1, *([1] * len(p.kernel)))
    for block in blocks:
        columns = blocks.gather(block)
        target = blocks.positions(out, block)
        direct = blocks.matrix(out, block)
        product = blocks.space(block) if direct is None else direct
        matmul(xp, weight, columns, product)
        if direct is None:
            value = blocks.spread(product, block)
            if bias is not None:
                value += bias
            xp.copyto(target, value, casting="unsafe")
        elif bias is not None:
            target += bias


# It adds to gweight itself: blocks are added up anyway, so a sum costs no array of its size and no pass over it.
@backward.compute(temps=_backward_temps, accumulates=True)
def _(p: ConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    xp, gout = ctx.xp, first(inputs[0], p.layout)
    blocks = _ConvolutionBlocks(p, ctx, first(inputs[1], p.layout), gout)
    weight = _grouped(p, ctx, inputs[2])
    share, wide_data, wide_weight, by_sample, wide_bias = ctx.temp[4:]
    gdata = gweight = None
    if outputs[0] is not None:
        pointwise = blocks.geometry.pointwise
        gdata = _GradientSum(xp, first(outputs[0], p.layout), ctx.req[0], wide_data, direct=pointwise)
    if outputs[1] is not None:
        gweight = _GradientSum(xp, first(outputs[1], p.layout), ctx.req[1], wide_weight)
    transposed = weight.swapaxes(1, 2)
    share = share.reshape(weight.shape)
    for block in blocks:
        g = blocks.matrix(gout, block)
        if g is None:
            g = blocks.space(block)
            blocks.spread(g, block)[...] = blocks.positions(gout, block)
        if gweight is not None:
            columns = blocks.gather(block)
            matmul(xp, g, columns.swapaxes(1, 2), share)
            gweight.array += share.reshape(gweight.array.shape)
        if gdata is not None:
            geometry = blocks.geometry
            if gdata.direct and block.samples == 1:
                matmul(xp, transposed, g, blocks.taken(gdata.array, block))
                continue
            columns = _cut(blocks.columns, geometry.columns_shape(block))
            matmul(xp, transposed, g, blocks.grouped(columns))
            if gdata.direct:
                samples = columns.reshape(gdata.array.shape[1], block.samples, *gdata.array.shape[2:])
                gdata.array[block.start : block.stop] = samples.swapaxes(0, 1)
            else:
                geometry.scatter(columns, block, _cut(blocks.rows, geometry.rows_shape(block)), gdata.array)
    for gradient in (gdata, gweight):
        if gradient is not None:
            gradient.close()
    if not p.no_bias and outputs[2] is not None:
        by_sample = by_sample.reshape(gout.shape[:2])
        xp.sum(gout, axis=tuple(range(2, gout.ndim)), dtype=blocks.dtype, out=by_sample)
        xp.sum(by_sample, axis=0, out=wide_bias)
        if ctx.req[2] == OpReq.ADD:
            wide_bias += outputs[2]
        xp.copyto(outputs[2], wide_bias, casting="unsafe")


class _GradientSum:
    """A gradient that blocks are added to: in place, or in a wider array when the gradient is half precision.

    With `direct`, each element is in one block only: where that can be, it is written and not added.
    """

    def __init__(self, xp: Any, out: Array, req: OpReq, wide: Array, direct: bool = False) -> None:
        self.xp, self.out = xp, out
        self.array = wide.reshape(out.shape) if wide.size else out
        add = req == OpReq.ADD
        self.direct = direct and not add and not wide.size and bool(out.flags.c_contiguous)
        if wide.size and add:
            xp.copyto(self.array, out)
        elif not add and not self.direct:
            self.array[...] = 0

    def close(self) -> None:
        if self.array is not self.out:
            self.xp.copyto(self.out, self.array, casting="unsafe")
