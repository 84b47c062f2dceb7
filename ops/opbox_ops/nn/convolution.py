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
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator

from opbox_protocol.errors import ShapeError

from ..compute import Array, Arrays, OpContext, OpReq, Reqs, Temp, assign
from ..gradient import backward_node
from ..infer import Shape as ShapeOrNone
from ..infer import ShapeList, show_shape
from ..node import Entry, Node
from ..params import Bool, Field, NonNegativeInt, Params, PositiveInt, Shape
from ..registry import Slot, register, register_backward, unless
from .columns import Block, Geometry
from .window import ConvolutionLayout, channels_first, channels_last, check_layout, first, spatial


class ConvolutionParams(Params):
    kernel: Shape = Field(description="Size of the kernel: (width,), (height, width) or (depth, height, width).")
    stride: Shape = Field((), description="Step of the kernel; 1 by default.")
    dilate: Shape = Field((), description="Distance of the kernel's taps; 1 by default.")
    pad: Shape = Field((), description="Zeros before and after each spatial dimension; 0 by default.")
    num_filter: PositiveInt = Field(description="Channels of the output.")
    num_group: PositiveInt = Field(1, description="Groups that channels and filters are split into.")
    workspace: NonNegativeInt = Field(1024, description="Has no effect; for MXNet's files.")
    no_bias: Bool = Field(False, description="Leave bias out.")
    cudnn_tune: Annotated[
        Literal["fastest", "limited_workspace", "off"] | None, BeforeValidator(lambda v: None if v == "None" else v)
    ] = Field(None, description="Has no effect; for MXNet's files.")
    cudnn_off: Bool = Field(False, description="Has no effect; for MXNet's files.")
    layout: ConvolutionLayout = Field(None, description="Order of data's axes; by default the channels are second.")


_ARGUMENTS = ("data", "weight", Slot("bias", unless("no_bias")))

op = register("Convolution", ConvolutionParams, inputs=_ARGUMENTS)
backward = register_backward("_backward_Convolution", ConvolutionParams, outputs=_ARGUMENTS)


@op.infer_shape
def _(p: ConvolutionParams, ins: ShapeList, outs: ShapeList) -> None:
    ndim = len(p.kernel)
    if not 1 <= ndim <= 3 or min(p.kernel) < 1:
        raise ShapeError(f"kernel: expected one to three positive numbers, got {p.kernel}")
    if p.num_filter % p.num_group:
        raise ShapeError(f"num_filter: expected a multiple of num_group {p.num_group}, got {p.num_filter}")
    check_layout(p.layout, ndim)
    stride, dilate, pad = _strides(p)
    data = channels_first(ins.rank(0, ndim + 2), p.layout) or (-1,) * (ndim + 2)
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
    told = channels_first(weight, p.layout)
    assert out is not None
    assert told is not None
    # Only a stride of 1 tells the input's size from the output's.
    back = [
        o + r - 1 - 2 * q if o >= 0 and s == 1 else -1 for o, q, r, s in zip(out[2:], pad, reach, stride, strict=True)
    ]
    known: ShapeOrNone = (out[0], told[1] * p.num_group if told[1] >= 0 else -1, *back)
    ins.merge(0, channels_last(known, p.layout))


@op.gradient
def _(node: Node, ograds: list[Entry]) -> list[Entry | None]:
    return backward_node("_backward_Convolution", node, [ograds[0], *node.inputs[:2]])


def _strides(p: ConvolutionParams) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    ndim = len(p.kernel)
    stride, dilate = spatial(p.stride, ndim, 1, "stride", 1), spatial(p.dilate, ndim, 1, "dilate", 1)
    return stride, dilate, spatial(p.pad, ndim, 0, "pad", 0)


def _geometry(p: ConvolutionParams, data: tuple[int, ...], out: tuple[int, ...]) -> Geometry:
    """From shapes with the channels second."""
    return Geometry(data, p.num_filter, out[2:], p.kernel, *_strides(p))


def _wide(dtype: Any) -> Any:
    """The type that products are summed in: half precision in single."""
    return np.dtype("f") if np.dtype(dtype).itemsize < 4 else np.dtype(dtype)


def _temporaries(p: ConvolutionParams, data: Any, out: Any, dtype: Any) -> list[Temp]:
    geometry = _geometry(p, channels_first(data, p.layout) or (), channels_first(out, p.layout) or ())
    dtype = _wide(dtype)
    block = geometry.largest(dtype.itemsize)
    rows, columns = geometry.rows_shape(block), geometry.columns_shape(block)
    product = (p.num_filter * block.samples * block.rows * geometry.row,)
    return [Temp((math.prod(shape),), dtype) for shape in (rows, columns if p.kernel[0] > 1 else (0,), product)]


@op.resources
def _(p: ConvolutionParams, ins: Any, in_types: Any, outs: Any, out_types: Any) -> list[Temp]:
    return _temporaries(p, ins[0], outs[0], in_types[0])


@backward.resources
def _(p: ConvolutionParams, ins: Any, in_types: Any, outs: Any, out_types: Any) -> list[Temp]:
    """Beside the forward ones: the gradient's columns where those are `rows`, and a block's share of gweight."""
    temps = _temporaries(p, ins[1], ins[0], in_types[0])
    if p.kernel[0] == 1:
        temps[1] = temps[0]
    return [*temps, Temp((math.prod(ins[2]),), temps[0].dtype)]


class _Blocks:
    """A convolution's blocks on given arrays, and the temporaries cut to them."""

    def __init__(self, p: ConvolutionParams, ctx: OpContext, data: Array, out: Array) -> None:
        self.data = data
        self.geometry = _geometry(p, data.shape, out.shape)
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
        made = rows if geometry.kernel[0] == 1 else _cut(self.columns, geometry.columns_shape(block))
        return geometry.gather(self.data, block, rows, made).reshape(self.group, geometry.depth // self.group, -1)

    def plain(self, array: Array) -> bool:
        """Whether a matrix product can read and write the array as it is."""
        return array.dtype == self.dtype and bool(array.flags.c_contiguous)

    def taken(self, array: Array, block: Block) -> Array:
        """One sample's block of an array shaped as data or out, as a view (group, channel / group, positions)."""
        flat = array[block.start].reshape(self.group, array.shape[1] // self.group, -1)
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


def _grouped(p: ConvolutionParams, weight: Array, dtype: Any) -> Array:
    """weight as (group, filters / group, depth / group)."""
    wide = first(weight, p.layout).astype(dtype, copy=False)
    return wide.reshape(p.num_group, p.num_filter // p.num_group, math.prod(wide.shape[1:]))


@op.compute()
def _(p: ConvolutionParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    if not req[0]:
        return
    xp, out = ctx.xp, first(outputs[0], p.layout)
    blocks = _Blocks(p, ctx, first(inputs[0], p.layout), out)
    weight = _grouped(p, inputs[1], blocks.dtype)
    bias = None if p.no_bias else inputs[2].astype(blocks.dtype, copy=False).reshape(-1, *([1] * len(p.kernel)))
    for block in blocks:
        columns = blocks.gather(block)
        target = blocks.positions(out, block)
        direct = blocks.matrix(out, block) if req[0] != OpReq.ADD else None
        product = blocks.space(block) if direct is None else direct
        xp.matmul(weight, columns, out=product)
        if direct is None:
            value = blocks.spread(product, block)
            if bias is not None:
                value += bias
            assign(target, req[0], value)
        elif bias is not None:
            target += bias


@backward.compute()
def _(p: ConvolutionParams, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    xp, gout = ctx.xp, first(inputs[0], p.layout)
    blocks = _Blocks(p, ctx, first(inputs[1], p.layout), gout)
    weight = _grouped(p, inputs[2], blocks.dtype)
    gdata = _Sum(xp, first(outputs[0], p.layout), req[0], blocks.dtype, direct=blocks.geometry.pointwise)
    gweight = _Sum(xp, first(outputs[1], p.layout), req[1], blocks.dtype)
    turned = weight.swapaxes(1, 2)
    share = ctx.temp[3].reshape(weight.shape)
    for block in blocks:
        g = blocks.matrix(gout, block)
        if g is None:
            g = blocks.space(block)
            blocks.spread(g, block)[...] = blocks.positions(gout, block)
        if req[1]:
            columns = blocks.gather(block)
            xp.matmul(g, columns.swapaxes(1, 2), out=share)
            gweight.array += share.reshape(gweight.array.shape)
        if req[0]:
            geometry = blocks.geometry
            if gdata.direct and block.samples == 1:
                xp.matmul(turned, g, out=blocks.taken(gdata.array, block))
                continue
            columns = _cut(blocks.columns, geometry.columns_shape(block))
            xp.matmul(turned, g, out=columns.reshape(p.num_group, geometry.depth // p.num_group, -1))
            if gdata.direct:
                given = columns.reshape(-1, block.samples, *gdata.array.shape[2:])
                gdata.array[block.start : block.stop] = given.swapaxes(0, 1)
            else:
                geometry.scatter(columns, block, _cut(blocks.rows, geometry.rows_shape(block)), gdata.array)
    gdata.close()
    gweight.close()
    if not p.no_bias and req[2]:
        flat = gout.reshape(*gout.shape[:2], math.prod(gout.shape[2:]))
        assign(outputs[2], req[2], flat.sum(axis=2, dtype=blocks.dtype).sum(axis=0))


class _Sum:
    """A gradient that blocks are added to: in place, or in a wider array when the gradient is half precision.

    With `direct`, each element is in one block only: where that can be, it is written and not added.
    """

    def __init__(self, xp: Any, out: Array, req: OpReq, dtype: Any, direct: bool = False) -> None:
        self.out, self.req = out, req
        self.wide = out.dtype != dtype and bool(req)
        self.array = xp.zeros(out.shape, dtype) if self.wide else out
        fresh = req in (OpReq.WRITE, OpReq.INPLACE) and not self.wide
        self.direct = direct and fresh and bool(out.flags.c_contiguous)
        if fresh and not self.direct:
            out[...] = 0

    def close(self) -> None:
        if self.wide:
            assign(self.out, self.req, self.array)
