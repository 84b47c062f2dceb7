"""Convolution on a GPU by columns: kernels make them and add them up, cuBLAS multiplies.

A block is as many samples as GPU_COLUMN_BYTES have room for, usually the whole batch. Its columns are laid as the
product wants them, depth being channels times taps: (sample, depth, position) where a sample is multiplied on its own,
and (depth, sample, position) for the gradient of the weight, which is one product over all samples.

    out[n]   = weight @ columns[n] + bias
    gdata[n] = weight.T @ gout[n], each element the sum of its places in the columns
    gweight  = gout @ columns.T, both with the samples side by side

It runs what cuDNN does not, or everything where there is no cuDNN. A kernel of 1 that visits every position needs no
columns: data and gdata are multiplied as they are. Half precision is multiplied in single. `columns` in `nn` has the
source of the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..cache import GPU_COLUMN_BYTES
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..cudnn.convolution import takes
from ..nn.columns import Geometry
from ..nn.convolution import ConvolutionParams, backward, op, strides
from ..nn.convolution_v1 import op as first_version
from ..nn.window import is_last
from ..operator import Op
from .bias import BIAS, bias_gradient, bias_parts
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits
from .product import product
from .window_columns import SIZES, numbers_of

_MAX_COLUMNS = 1 << 30
"""Maximum number of elements of a sample's columns."""
_THREADS = 256
_DATA = 32 * 64 * 56 * 56
_WHAT = "32 images of 64 channels, 56 x 56, by 3 x 3"


COLUMNS = KernelTemplate(
    "opbox_columns",
    f"const T *data, A *columns, int elements, int row_step, int sample_step, {SIZES}",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int positions = od * oh * ow, position = number % positions;
  const int rows = channels * kd * kh * kw, row = number / positions % rows, sample = number / positions / rows;
  const int z = position / (oh * ow) * sd + row / (kh * kw) % kd * dd - pd;
  const int y = position / ow % oh * sh + row / kw % kh * dh - ph;
  const int x = position % ow * sw + row % kw * dw - pw;
  const bool inside = z >= 0 && z < d && y >= 0 && y < h && x >= 0 && x < w;
  const int channel = row / (kd * kh * kw);
  columns[sample * sample_step + row * row_step + position] =
      inside ? A(data[(((sample * channels + channel) * d + z) * h + y) * w + x]) : A(0);
""",
    (_WHAT, lambda: Moved(4 * (_DATA + 9 * _DATA), 4 * (_DATA + 9 * _DATA))),
)
COLUMNS_BACK = KernelTemplate(
    "opbox_columns_back",
    f"const A *columns, T *gdata, int elements, {SIZES}",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int x = number % w + pw, y = number / w % h + ph, z = number / (w * h) % d + pd;
  const int plane = number / (w * h * d), positions = od * oh * ow;
  A sum = 0;
  for (int i = 0; i < kd; ++i) {
    const int a = z - i * dd;
    if (a < 0 || a % sd || a / sd >= od) continue;
    for (int j = 0; j < kh; ++j) {
      const int b = y - j * dh;
      if (b < 0 || b % sh || b / sh >= oh) continue;
      for (int k = 0; k < kw; ++k) {
        const int c = x - k * dw;
        if (c < 0 || c % sw || c / sw >= ow) continue;
        const int row = ((plane * kd + i) * kh + j) * kw + k;
        sum += columns[row * positions + (a / sd * oh + b / sh) * ow + c / sw];
      }
    }
  }
  gdata[number] = T(sum);
""",
    (_WHAT, lambda: Moved(4 * (_DATA + 9 * _DATA), 4 * (_DATA + 9 * _DATA))),
)
SIDE_BY_SIDE = KernelTemplate(
    "opbox_side_by_side",
    "const T *gout, A *matrix, int elements, int samples, int filters, int positions",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int position = number % positions, sample = number / positions % samples, filter = number / positions / samples;
  matrix[number] = A(gout[(sample * filters + filter) * positions + position]);
""",
    ("32 images of 64 channels, 56 x 56", lambda: Moved(4 * 2 * _DATA, 4 * 2 * _DATA)),
)
KERNELS += [COLUMNS, COLUMNS_BACK, SIDE_BY_SIDE]


class _Plan:
    """A convolution's sizes, from the specs or arrays of data and out.

    Attributes:
        wide: the type that is multiplied in.
        narrow: whether the arrays have another one.
        positions: windows of a sample.
        samples: of a block.
        direct: whether data are the columns.
    """

    def __init__(self, p: ConvolutionParams, data: ArraySpec | Array, out: ArraySpec | Array) -> None:
        self.geometry = geometry = Geometry(data.shape, p.num_filter, out.shape[2:], p.kernel, *strides(p), "gpu")
        self.group = p.num_group
        self.wide = accumulation_type(data.dtype)
        self.narrow = data.dtype != self.wide
        self.direct = geometry.pointwise and not self.narrow
        self.positions = math.prod(geometry.out)
        self.columns = geometry.depth * self.positions
        self.batch = geometry.data[0]
        fitting = GPU_COLUMN_BYTES // (self.wide.itemsize * max(self.columns, math.prod(geometry.data[1:])))
        self.samples = self.batch if self.direct else min(self.batch, max(1, fitting))

    @property
    def sizes(self) -> tuple[Any, ...]:
        """The numbers that SIZES declares."""
        g = self.geometry
        return numbers_of(g.data[1], g.data[2:], g.out, g.kernel, (g.stride, g.dilate, g.pad))

    def blocks(self) -> Iterator[slice]:
        for start in range(0, self.batch, self.samples):
            yield slice(start, min(start + self.samples, self.batch))

    def grouped(self, array: Array) -> Array:
        """An array (sample, channel, ...) as (sample, group, channel / group, the rest)."""
        return array.reshape(len(array), self.group, array.shape[1] // self.group, -1)

    def weights(self, weight: Array) -> Array:
        """The weight as (1, group, filters / group, depth / group)."""
        return weight.reshape(1, self.group, self.geometry.filters // self.group, -1)

    def matrix(self, scratch: Array, rows: int, samples: int) -> Array:
        """Numbers with the samples side by side, as (1, group, rows / group, samples * positions)."""
        shape = (1, self.group, rows // self.group, samples * self.positions)
        return scratch[: math.prod(shape)].reshape(shape)


def _by_element(
    ctx: OpContext, kernel: KernelTemplate, dtype: Any, elements: int, arguments: tuple[Any, ...]
) -> Callable[[], Any]:
    """A thread for each element."""
    return kernel.call(ctx, dtype, -(-elements // _THREADS), _THREADS, arguments)


def _gather(ctx: OpContext, plan: _Plan, data: Array, scratch: Array, *, side_by_side: bool) -> Callable[[], Any]:
    """Writes the columns of a block's data."""
    samples = len(data)
    elements = samples * plan.columns
    steps = (samples * plan.positions, plan.positions) if side_by_side else (plan.positions, plan.columns)
    arguments = (data, scratch, np.int32(elements), *map(np.int32, steps), *plan.sizes)
    return _by_element(ctx, COLUMNS, data.dtype, elements, arguments)


def _widened(ctx: OpContext, plan: _Plan, weight: Array, scratch: Array) -> tuple[Array, list[Callable[[], Any]]]:
    """Return the weight in the type of the product, and the calls that convert it."""
    if not plan.narrow:
        return weight, []
    wide = scratch.reshape(weight.shape)
    return wide, [lambda: ctx.xp.copyto(wide, weight)]


def _accepts(p: ConvolutionParams, call: CallSpec, data: ArraySpec, out: ArraySpec) -> bool:
    if is_last(p.layout) or not fits(call, data, out, *call.inputs) or takes(p, call):
        return False
    columns = data.shape[1] * math.prod(p.kernel) * math.prod(out.shape[2:])
    return columns <= _MAX_COLUMNS


def _temps(p: ConvolutionParams, call: CallSpec) -> list[Temp]:
    """Columns, products and the weight, where each is needed."""
    data, weight = call.inputs[:2]
    plan = _Plan(p, data, call.outputs[0])
    sizes = [
        0 if plan.direct else plan.samples * plan.columns,
        plan.samples * p.num_filter * plan.positions if plan.narrow else 0,
        math.prod(weight.shape) if plan.narrow else 0,
    ]
    return [Temp((size,), plan.wide) for size in sizes]


def _forward_of(operator: Op) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return operator.compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=lambda p, call: _accepts(p, call, call.inputs[0], call.outputs[0]),
        temps=_temps,
    )


@_forward_of(op)
@_forward_of(first_version)
def _(p: ConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data, weight, *bias), calls = contiguous(ctx, inputs)
    out, plan = outputs[0], _Plan(p, data, outputs[0])
    columns, products, scratch = ctx.temp
    weight, copies = _widened(ctx, plan, weight, scratch)
    calls += copies
    for block in plan.blocks():
        taken, target = data[block], out[block]
        count = len(taken)
        if plan.direct:
            read = plan.grouped(taken)
        else:
            calls.append(_gather(ctx, plan, taken, columns, side_by_side=False))
            shape = (count, plan.geometry.depth, plan.positions)
            read = plan.grouped(columns[: math.prod(shape)].reshape(shape))
        result = products[: target.size].reshape(target.shape) if plan.narrow else target
        repeated = ctx.xp.broadcast_to(plan.weights(weight), (count, *plan.weights(weight).shape[1:]))
        calls.append(product(ctx.xp, repeated, read, plan.grouped(result)))
        if bias or plan.narrow:
            numbers = (target.size, p.num_filter, plan.positions, bool(bias))
            arguments = (result, *(bias or [weight if not plan.narrow else target]), target, *map(np.int32, numbers))
            calls.append(_by_element(ctx, BIAS, data.dtype, target.size, arguments))
    return as_one(calls)


def _backward_temps(p: ConvolutionParams, call: CallSpec) -> list[Temp]:
    """Columns, gout side by side, gout, the weight and gweight, where each is needed, and the bias's gradient's."""
    gout, data, weight = call.inputs
    plan = _Plan(p, data, gout)
    block = plan.samples * p.num_filter * plan.positions
    needs_columns = not plan.direct or (plan.samples > 1 and call.wants(1))
    sizes = [
        plan.samples * plan.columns if needs_columns else 0,
        block if call.wants(1) and (plan.narrow or plan.samples > 1) else 0,
        block if call.wants(0) and plan.narrow else 0,
        math.prod(weight.shape) if call.wants(0) and plan.narrow else 0,
        math.prod(weight.shape) if call.wants(1) and plan.narrow else 0,
    ]
    return [*(Temp((size,), plan.wide) for size in sizes), bias_parts(gout)]


@backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _accepts(p, call, call.inputs[1], call.inputs[0]),
    temps=_backward_temps,
)
def _(p: ConvolutionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (gout, data, weight), calls = contiguous(ctx, inputs)
    plan = _Plan(p, data, gout)
    columns, beside, wide_gout, wide_weight, wide_gweight, parts = ctx.temp
    gdata, gweight, *gbias = outputs
    if gdata is not None:
        weight, copies = _widened(ctx, plan, weight, wide_weight)
        calls += copies
    for block in plan.blocks():
        if gweight is not None:
            total = wide_gweight.reshape(weight.shape) if plan.narrow else gweight
            calls += _weight_gradient(ctx, plan, data[block], gout[block], columns, beside, total, add=block.start > 0)
        if gdata is not None:
            calls += _data_gradient(ctx, plan, weight, gout[block], wide_gout, columns, gdata[block])
    if gweight is not None and plan.narrow:
        calls.append(lambda: ctx.xp.copyto(gweight, wide_gweight.reshape(gweight.shape), casting="unsafe"))
    if gbias and gbias[0] is not None:
        calls.append(bias_gradient(ctx, gout, parts, gbias[0]))
    return as_one(calls)


def _weight_gradient(
    ctx: OpContext, plan: _Plan, data: Array, gout: Array, columns: Array, beside: Array, total: Array, *, add: bool
) -> Iterator[Callable[[], Any]]:
    """Writes a block's gweight to `total`, or adds it."""
    samples, filters = gout.shape[:2]
    if plan.narrow or samples > 1:
        numbers = map(np.int32, (gout.size, samples, filters, plan.positions))
        yield _by_element(ctx, SIDE_BY_SIDE, gout.dtype, gout.size, (gout, beside, *numbers))
        g = plan.matrix(beside, filters, samples)
    else:
        g = plan.grouped(gout)
    if plan.direct and samples == 1:
        read = plan.grouped(data)
    else:
        yield _gather(ctx, plan, data, columns, side_by_side=True)
        read = plan.matrix(columns, plan.geometry.depth, samples)
    yield product(ctx.xp, g, read.swapaxes(2, 3), plan.weights(total), add=add)


def _data_gradient(
    ctx: OpContext, plan: _Plan, weight: Array, gout: Array, wide_gout: Array, columns: Array, gdata: Array
) -> Iterator[Callable[[], Any]]:
    """Writes a block's gdata."""
    g, count = gout, len(gout)
    if plan.narrow:
        g = wide_gout[: gout.size].reshape(gout.shape)
        yield lambda: ctx.xp.copyto(g, gout)
    transposed = plan.weights(weight).swapaxes(2, 3)
    repeated = ctx.xp.broadcast_to(transposed, (count, *transposed.shape[1:]))
    if plan.direct:
        yield product(ctx.xp, repeated, plan.grouped(g), plan.grouped(gdata))
        return
    shape = (count, plan.geometry.depth, plan.positions)
    target = columns[: math.prod(shape)].reshape(shape)
    yield product(ctx.xp, repeated, plan.grouped(g), plan.grouped(target))
    yield _by_element(ctx, COLUMNS_BACK, gdata.dtype, gdata.size, (target, gdata, np.int32(gdata.size), *plan.sizes))
