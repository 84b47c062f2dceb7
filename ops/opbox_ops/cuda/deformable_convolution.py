"""Deformable convolutions on a GPU: where taps are, columns of what they read, and products of cuBLAS.

A block is as many samples as GPU_COLUMN_BYTES have room for, usually the whole batch. Its columns are laid as the
product wants them: (sample, channel, tap, place) where a sample is multiplied on its own, (channel, tap, sample, place)
for the gradient of the weight. Half precision is multiplied in single. `sampling` reads, and gathers gradients.

`nn/deformable_convolution` has the formulas and their sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import Call, as_one
from ..cache import GPU_COLUMN_BYTES
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..nn.deformable_convolution import (
    DeformableConvolutionParams,
    modulated,
    modulated_backward,
    plain,
    plain_backward,
    split,
    window,
)
from .bias import BIAS, bias_gradient, bias_parts
from .convolution import SIDE_BY_SIDE
from .kernel import KERNELS, KernelTemplate, Moved, by_thread, contiguous, fits
from .product import product
from .sampling import column_slopes, sample_columns
from .spread import spread, spread_temps, spreads

_MAX_COLUMNS = 1 << 30
"""Maximum number of elements of a sample's columns."""
_BATCH, _TAPS, _SIDE = 32, 9, 56
_PLACES = _BATCH * _TAPS * _SIDE * _SIDE

_MOVE = KernelTemplate(
    "opbox_moved_taps",
    "const T *offset, A *along_y, A *along_x, int elements, int taps, int kernel_x, int out_y, int out_x, "
    "int stride_y, int stride_x, int dilate_y, int dilate_x, int pad_y, int pad_x",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int places = out_y * out_x, place = number % places, row = number / places, tap = row % taps;
  const T *pair = offset + row * 2 * places + place;
  along_y[number] = A(pair[0]) + A(place / out_x * stride_y - pad_y + tap / kernel_x * dilate_y);
  along_x[number] = A(pair[places]) + A(place % out_x * stride_x - pad_x + tap % kernel_x * dilate_x);
""",
    (
        f"{_BATCH} images of {_SIDE} x {_SIDE}, by 3 x 3",
        lambda: Moved(4 * 4 * _PLACES, 4 * 4 * _PLACES),
    ),
)
KERNELS.append(_MOVE)


class _DeformedSizes:
    """A call's sizes, from the specs or arrays of data, offset and weight.

    Attributes:
        p: the parameters.
        wide: the type that is multiplied in.
        narrow: whether the arrays have another one.
        channels, size: of data.
        out: height and width of out.
        taps, places: of the kernel, and of a sample of out.
        depth, columns: rows, and elements, of a sample's columns.
        samples: of a block.
    """

    def __init__(self, p: DeformableConvolutionParams, data: Any, offset: Any) -> None:
        self.p = p
        self.wide = accumulation_type(data.dtype)
        self.narrow = data.dtype != self.wide
        self.batch, self.channels, *self.size = data.shape
        self.out = offset.shape[2:]
        self.taps, self.places = math.prod(p.kernel), math.prod(self.out)
        self.depth = self.channels * self.taps
        self.columns: int = self.depth * self.places
        fitting = GPU_COLUMN_BYTES // (self.wide.itemsize * max(self.columns, math.prod(data.shape[1:]), 1))
        self.samples = min(self.batch, max(1, fitting))

    def parts(self, samples: int) -> int:
        """Groups of channels of so many samples that are moved together."""
        return samples * self.p.num_deformable_group

    def grouped(self, array: Array) -> Array:
        """An array (sample, channel or row of columns, ...) as (sample, group, channel or row, place)."""
        return array.reshape(len(array), self.p.num_group, array.shape[1] // self.p.num_group, -1)

    def by_sample(self, columns: Array, samples: int) -> Array:
        """Columns as (sample, group, row, place)."""
        return self.grouped(columns[: samples * self.columns].reshape(samples, self.depth, self.places))

    def side_by_side(self, scratch: Array, rows: int, samples: int) -> Array:
        """Numbers with the samples side by side, as (1, group, row, samples * places)."""
        shape = (1, self.p.num_group, rows // self.p.num_group, samples * self.places)
        return scratch[: math.prod(shape)].reshape(shape)

    def images(self) -> tuple[int, ...]:
        """The shape of a block's groups of channels that are moved together."""
        return self.parts(self.samples), self.channels // self.p.num_deformable_group, *self.size

    def weights(self, weight: Array) -> Array:
        """The weight, or its gradient, as (1, group, filters / group, depth / group)."""
        return weight.reshape(1, self.p.num_group, self.p.num_filter // self.p.num_group, -1)


class _DeformedBlock(NamedTuple):
    """Samples that are worked out together.

    Attributes:
        at: which samples.
        samples: how many.
        images: groups of channels that are moved together (parts, channels, height, width).
        places: where the taps are (2, parts, taps * places).
        mask: for these; None without modulation.
    """

    at: slice
    samples: int
    images: Array
    places: Array
    mask: Array | None


def _blocks(
    ctx: OpContext, plan: _DeformedSizes, inputs: Arrays, places: Array, calls: list[Call]
) -> Iterator[_DeformedBlock]:
    """The blocks of a call; `calls` gets for each what writes its places."""
    data, offset, mask, _ = split(plan.p, inputs)
    numbers = (plan.taps, plan.p.kernel[1], *plan.out, *(n for pair in window(plan.p) for n in pair))
    for start in range(0, plan.batch, plan.samples):
        at = slice(start, min(start + plan.samples, plan.batch))
        count, parts = at.stop - at.start, plan.parts(at.stop - at.start)
        where = places[:, :parts]
        elements = parts * where.shape[2]
        arguments = (offset[at], *where, *map(np.int32, (elements, *numbers)))
        calls.append(by_thread(ctx, _MOVE, data.dtype, elements, arguments))
        images = data[at].reshape(parts, -1, *plan.size)
        yield _DeformedBlock(at, count, images, where, None if mask is None else mask[at])


def _widened(ctx: OpContext, plan: _DeformedSizes, array: Array, scratch: Array, calls: list[Call]) -> Array:
    """The array in the type of the product; `calls` gets what converts it into `scratch`."""
    if not plan.narrow:
        return array
    wide = scratch[: array.size].reshape(array.shape)
    calls.append(partial(ctx.xp.copyto, wide, array))
    return wide


def _accepts(p: DeformableConvolutionParams, call: CallSpec, first: int = 0) -> bool:
    """Whether kernels take a call whose data is the input at position `first`."""
    plan = _DeformedSizes(p, *call.inputs[first : first + 2])
    return fits(call, *call.inputs, *call.outputs) and plan.columns <= _MAX_COLUMNS


def _accepts_gradient(p: DeformableConvolutionParams, call: CallSpec) -> bool:
    plan = _DeformedSizes(p, *call.inputs[1:3])
    return _accepts(p, call, first=1) and spreads(plan.images(), plan.taps * plan.places)


def _temps(p: DeformableConvolutionParams, call: CallSpec) -> list[Temp]:
    """Where taps are, columns; the product and the weight, where they are of another type."""
    data, offset, _, weight = split(p, call.inputs)
    plan = _DeformedSizes(p, data, offset)
    sizes = [
        plan.samples * plan.columns,
        plan.samples * p.num_filter * plan.places if plan.narrow else 0,
        math.prod(weight.shape) if plan.narrow else 0,
    ]
    return [_places_temp(plan), *(Temp((size,), plan.wide) for size in sizes)]


def _places_temp(plan: _DeformedSizes) -> Temp:
    return Temp((2, plan.parts(plan.samples), plan.taps * plan.places), plan.wide)


def _forward(p: DeformableConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    arrays, calls = contiguous(ctx, inputs)
    out, (places, columns, products, scratch) = outputs[0], ctx.temp
    if out is None:
        return as_one([])
    data, offset, _, weight = split(p, arrays)
    plan = _DeformedSizes(p, data, offset)
    matrices = plan.weights(_widened(ctx, plan, weight, scratch, calls))
    for block in _blocks(ctx, plan, arrays, places, calls):
        steps = (plan.places, plan.channels, plan.columns, plan.places)
        calls.append(sample_columns(ctx, block.images, block.places, columns, steps, block.mask))
        target = out[block.at]
        result = products[: target.size].reshape(target.shape) if plan.narrow else target
        repeated = ctx.xp.broadcast_to(matrices, (block.samples, *matrices.shape[1:]))
        calls.append(product(ctx.xp, repeated, plan.by_sample(columns, block.samples), plan.grouped(result)))
        if plan.narrow or not p.no_bias:
            numbers = (target.size, p.num_filter, plan.places, not p.no_bias)
            # Without a bias no element of it is read.
            arguments = (result, arrays[-1], target, *map(np.int32, numbers))
            calls.append(by_thread(ctx, BIAS, data.dtype, target.size, arguments))
    return as_one(calls)


def _back_temps(p: DeformableConvolutionParams, call: CallSpec) -> list[Temp]:
    """Where taps are, columns; the gradient of out side by side; it, the weight and the weight's gradient, where they
    are of another type; the bias's gradient's; what spreading needs."""
    data, offset, _, weight = split(p, call.inputs[1:])
    plan = _DeformedSizes(p, data, offset)
    block, size = plan.samples * p.num_filter * plan.places, math.prod(weight.shape)
    sizes = [plan.samples * plan.columns, block, *((block, size, size) if plan.narrow else (0, 0, 0))]
    wide = [Temp((size,), plan.wide) for size in sizes]
    spreading = spread_temps(plan.images(), plan.taps * plan.places, data.dtype) if call.wants(0) else []
    return [_places_temp(plan), *wide, bias_parts(call.inputs[0]), *spreading]


def _backward(p: DeformableConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    (gout, *arrays), calls = contiguous(ctx, inputs)
    places, columns, beside, wide_gout, wide_weight, wide_gweight, parts, *spreading = ctx.temp
    data, offset, _, weight = split(p, arrays)
    gdata, goffset, gmask, gweight = split(p, outputs)
    gbias = None if p.no_bias else outputs[-1]
    plan = _DeformedSizes(p, data, offset)
    back = any(gradient is not None for gradient in (gdata, goffset, gmask))
    total = wide_gweight if plan.narrow else gweight
    if back:
        weight = _widened(ctx, plan, weight, wide_weight, calls)
    transposed = plan.weights(weight).swapaxes(2, 3)
    for block in _blocks(ctx, plan, arrays, places, calls) if back or gweight is not None else ():
        at, count, part = block.at, block.samples, gout[block.at]
        if back:
            wide = _widened(ctx, plan, part, wide_gout, calls)
            repeated = ctx.xp.broadcast_to(transposed, (count, *transposed.shape[1:]))
            calls.append(product(ctx.xp, repeated, plan.grouped(wide), plan.by_sample(columns, count)))
        if goffset is not None or gmask is not None:
            targets = [None if gradient is None else gradient[at] for gradient in (goffset, gmask)]
            arguments = (block.images, block.places, columns, targets[0], plan.places, block.mask, targets[1])
            calls.append(column_slopes(ctx, *arguments))
        if gdata is not None:
            scratch = [array[: len(block.images)] for array in spreading]
            target = gdata[at].reshape(block.images.shape)
            calls += spread(ctx, columns, block.places, target, scratch, columns=True, mask=block.mask)
        if gweight is not None:
            steps = (plan.places, plan.channels, plan.places, count * plan.places)
            calls.append(sample_columns(ctx, block.images, block.places, columns, steps, block.mask))
            numbers = map(np.int32, (part.size, count, p.num_filter, plan.places))
            calls.append(by_thread(ctx, SIDE_BY_SIDE, data.dtype, part.size, (part, beside, *numbers)))
            g = plan.side_by_side(beside, p.num_filter, count)
            read = plan.side_by_side(columns, plan.depth, count).swapaxes(2, 3)
            calls.append(product(ctx.xp, g, read, plan.weights(total), add=at.start > 0))
    if gweight is not None and plan.narrow:
        calls.append(partial(ctx.xp.copyto, gweight, wide_gweight.reshape(gweight.shape), casting="unsafe"))
    if gbias is not None:
        calls.append(bias_gradient(ctx, gout, parts, gbias))
    return as_one(calls)


for _op in (plain, modulated):
    _op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)(_forward)
for _op in (plain_backward, modulated_backward):
    _op.compute("gpu", level="generated", prepares=True, accepts=_accepts_gradient, temps=_back_temps)(_backward)
