"""GridGenerator, BilinearSampler and SpatialTransformer on a GPU: positions first, then what `sampling` reads there.

The gradient of an affine grid's matrices is summed slice by slice, and then over the slices, in one order.

`nn/spatial_transformer` has the formulas. Jaderberg et al., "Spatial Transformer Networks" (2015).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..nn.spatial_transformer import (
    BilinearSamplerParams,
    GridGeneratorParams,
    SpatialTransformerParams,
    generator,
    generator_backward,
    sampler,
    sampler_backward,
    transformer,
    transformer_backward,
)
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, by_thread, contiguous, fits, scalar, threads_for
from .sampling import sample, slopes
from .spread import spread, spread_temps, spreads

_THREADS = 256
_MIN_SLICE, _MAX_SLICES = 4096, 4096
_BATCH, _SIDE = 32, 56
_PLANE = _BATCH * _SIDE * _SIDE
_WHAT = f"{_BATCH} grids of {_SIDE} x {_SIDE}"

_AFFINE = """// From -1, the first of `count`, to 1, the last.
__device__ A along(int index, int count) {
  return index == 0 ? A(-1) : index == count - 1 ? A(1) : A(2.0 / (count - 1) * index - 1);
}
__device__ A affine(const T *row, A x, A y) { return A(row[0]) * x + A(row[1]) * y + A(row[2]); }
"""
_GRID = KernelTemplate(
    "opbox_affine_grid",
    "const T *matrices, T *grid, int elements, int height, int width",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int column = number % width, row = number / width % height;
  grid[number] = T(affine(matrices + number / (width * height) * 3, along(column, width), along(row, height)));
""",
    (_WHAT, lambda: Moved(4 * (6 * _BATCH + 2 * _PLANE), 4 * (6 * _BATCH + 2 * _PLANE))),
    _AFFINE,
)
_WARP = KernelTemplate(
    "opbox_warp_grid",
    "const T *flow, T *grid, int elements, int height, int width, A half_y, A half_x",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int along_y = number / (width * height) % 2, index = along_y ? number / width % height : number % width;
  grid[number] = T((A(flow[number]) + A(index)) / (along_y ? half_y : half_x) - A(1));
""",
    (_WHAT, lambda: Moved(4 * 4 * _PLANE, 4 * 4 * _PLANE)),
)
_WARP_BACK = KernelTemplate(
    "opbox_warp_grid_back",
    "const T *ggrid, T *gflow, int elements, int size, A half_y, A half_x",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  gflow[number] = T(A(ggrid[number]) / (number / size % 2 ? half_y : half_x));
""",
    (_WHAT, lambda: Moved(4 * 4 * _PLANE, 4 * 4 * _PLANE)),
)
_GRID_PLACES = KernelTemplate(
    "opbox_grid_places",
    "const T *grid, A *along_y, A *along_x, int elements, int n, A factor_y, A factor_x",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const T *part = grid + number / n * 2 * n + number % n;
  along_y[number] = (A(part[n]) + A(1)) * factor_y;
  along_x[number] = (A(part[0]) + A(1)) * factor_x;
""",
    (_WHAT, lambda: Moved(4 * 4 * _PLANE, 4 * 4 * _PLANE)),
)
_AFFINE_PLACES = KernelTemplate(
    "opbox_affine_places",
    "const T *matrices, A *along_y, A *along_x, int elements, int height, int width, A factor_y, A factor_x",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const T *matrix = matrices + number / (width * height) * 6;
  const A x = along(number % width, width), y = along(number / width % height, height);
  along_y[number] = (affine(matrix + 3, x, y) + A(1)) * factor_y;
  along_x[number] = (affine(matrix, x, y) + A(1)) * factor_x;
""",
    (_WHAT, lambda: Moved(4 * (6 * _BATCH + 2 * _PLANE), 4 * (6 * _BATCH + 2 * _PLANE))),
    _AFFINE,
)


def _matrices_kernel(name: str, read: str) -> KernelTemplate:
    return KernelTemplate(
        name,
        f"const {read} *ggrid, A *slices, int height, int width, int slice, int count",
        f"""  extern __shared__ A scratch[];
  const int size = height * width, begin = blockIdx.x % count * slice, end = begin + min(slice, size - begin);
  const {read} *part = ggrid + (long long)(blockIdx.x / count) * size;
  A sums[3] = {{0}};
  for (int k = begin + threadIdx.x; k < end; k += blockDim.x) {{
    const A g = A(part[k]);
    sums[0] += g * along(k % width, width);
    sums[1] += g * along(k / width, height);
    sums[2] += g;
  }}
  for (int k = 0; k < 3; ++k) {{
    const A total = block_sum(sums[k], scratch);
    if (threadIdx.x == 0) slices[blockIdx.x * 3 + k] = total;
  }}
""",
        (_WHAT, lambda: Moved(4 * (6 * _BATCH + 2 * _PLANE), 4 * (6 * _BATCH + 2 * _PLANE))),
        _AFFINE,
    )


_MATRICES = _matrices_kernel("opbox_affine_grid_back", "T")
_WIDE_MATRICES = _matrices_kernel("opbox_affine_wide_grid_back", "A")
_MATRIX_SUMS = KernelTemplate(
    "opbox_affine_sums",
    "const A *slices, T *gmatrices, int elements, int count",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const A *own = slices + (long long)(number / 3) * count * 3 + number % 3;
  A sum = 0;
#pragma unroll 8
  for (int k = 0; k < count; ++k) sum += own[3 * k];
  gmatrices[number] = T(sum);
""",
    (_WHAT, lambda: Moved(4 * 12 * _BATCH, 4 * 12 * _BATCH)),
)
KERNELS += [_GRID, _WARP, _WARP_BACK, _GRID_PLACES, _AFFINE_PLACES, _MATRICES, _WIDE_MATRICES, _MATRIX_SUMS]

Size = Sequence[int]
"""Height and width."""


def _halves(size: Size, dtype: Any) -> list[Any]:
    """Half the distance of the last element from the first one, or of 1, along y and x."""
    return [scalar(max(n - 1, 1) / 2, dtype) for n in size]


def _factors(size: Size) -> tuple[float, float]:
    """What -1 to 1 is multiplied by for elements, along y and x."""
    return (size[0] - 1) / 2, (size[1] - 1) / 2


def _slice(size: Size) -> int:
    """Positions that a block sums: at least _MIN_SLICE, and no more than _MAX_SLICES slices of a grid."""
    return max(_MIN_SLICE, -(-size_of(size) // _MAX_SLICES))


def _slices_temp(batch: int, size: Size, dtype: Any) -> Temp:
    """The sums of slices, for the rows of the matrices."""
    return Temp((2 * batch, -(-size_of(size) // _slice(size)), 3), accumulation_type(dtype))


def _to_matrices(ctx: OpContext, ggrid: Array, gmatrices: Array, slices: Array, size: Size) -> list[Callable[[], Any]]:
    """Calls that write the gradient of matrices (batch, 6) from that of their grid."""
    dtype, kernel = gmatrices.dtype, _MATRICES if ggrid.dtype == gmatrices.dtype else _WIDE_MATRICES
    threads, (rows, count, _) = threads_for(size_of(size), _THREADS), slices.shape
    scratch = threads * accumulation_type(dtype).itemsize
    numbers = map(np.int32, (*size, _slice(size), count))
    sums = (slices, gmatrices, np.int32(gmatrices.size), np.int32(count))
    return [
        kernel.call(ctx, dtype, rows * count, threads, (ggrid, slices, *numbers), scratch),
        by_thread(ctx, _MATRIX_SUMS, dtype, gmatrices.size, sums),
    ]


def _of_one_type(p: Any, call: CallSpec) -> bool:
    return fits(call, *call.inputs, *call.outputs)


def _accepts_transformer(p: SpatialTransformerParams, call: CallSpec) -> bool:
    grid = 2 * call.inputs[0].shape[0] * size_of(p.target_shape)
    return grid <= MAX_ELEMENTS and _of_one_type(p, call)


@generator.compute("gpu", level="generated", prepares=True, accepts=_of_one_type)
def _(p: GridGeneratorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data,), calls = contiguous(ctx, inputs)
    out = outputs[0]
    if out is None:
        return as_one([])
    size, dtype = out.shape[2:], out.dtype
    numbers = map(np.int32, (out.size, *size))
    if p.transform_type == "affine":
        launch = by_thread(ctx, _GRID, dtype, out.size, (data, out, *numbers))
    else:
        launch = by_thread(ctx, _WARP, dtype, out.size, (data, out, *numbers, *_halves(size, dtype)))
    return as_one([*calls, launch])


def _generator_temps(p: GridGeneratorParams, call: CallSpec) -> list[Temp]:
    ggrid = call.inputs[0]
    affine = p.transform_type == "affine"
    return [_slices_temp(ggrid.shape[0], ggrid.shape[2:], ggrid.dtype)] if affine else []


@generator_backward.compute("gpu", level="generated", prepares=True, accepts=_of_one_type, temps=_generator_temps)
def _(p: GridGeneratorParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (ggrid,), calls = contiguous(ctx, inputs)
    gdata = outputs[0]
    if gdata is None:
        return as_one([])
    size, dtype = ggrid.shape[2:], ggrid.dtype
    if p.transform_type == "affine":
        return as_one([*calls, *_to_matrices(ctx, ggrid, gdata, ctx.temp[0], size)])
    numbers = (*map(np.int32, (ggrid.size, size[0] * size[1])), *_halves(size, dtype))
    return as_one([*calls, by_thread(ctx, _WARP_BACK, dtype, ggrid.size, (ggrid, gdata, *numbers))])


def _places_temp(batch: int, size: Size, dtype: Any) -> Temp:
    """Positions along y and x, in elements."""
    return Temp((2, batch, size[0] * size[1]), accumulation_type(dtype))


def _find_grid(ctx: OpContext, grid: Array, size: Size, places: Array) -> Callable[[], Any]:
    """A call that writes where a grid reads images of `size`."""
    count, n = places[0].size, places.shape[2]
    factors = [scalar(factor, grid.dtype) for factor in _factors(size)]
    return by_thread(ctx, _GRID_PLACES, grid.dtype, count, (grid, *places, np.int32(count), np.int32(n), *factors))


def _find_affine(ctx: OpContext, loc: Array, target: Size, size: Size, places: Array) -> Callable[[], Any]:
    """A call that writes where the grids of matrices, of `target`, read images of `size`."""
    count = places[0].size
    factors = [scalar(factor, loc.dtype) for factor in _factors(size)]
    arguments = (loc, *places, *map(np.int32, (count, *target)), *factors)
    return by_thread(ctx, _AFFINE_PLACES, loc.dtype, count, arguments)


@sampler.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=_of_one_type,
    temps=lambda p, call: [_places_temp(call.inputs[0].shape[0], call.outputs[0].shape[2:], call.inputs[0].dtype)],
)
def _(p: BilinearSamplerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data, grid), calls = contiguous(ctx, inputs)
    out, (places,) = outputs[0], ctx.temp
    if out is None:
        return as_one([])
    find = _find_grid(ctx, grid, data.shape[2:], places)
    return as_one([*calls, find, sample(ctx, data, places, out)])


@transformer.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=_accepts_transformer,
    temps=lambda p, call: [_places_temp(call.inputs[0].shape[0], p.target_shape, call.inputs[0].dtype)],
)
def _(p: SpatialTransformerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data, loc), calls = contiguous(ctx, inputs)
    out, (places,) = outputs[0], ctx.temp
    if out is None:
        return as_one([])
    find = _find_affine(ctx, loc, p.target_shape, data.shape[2:], places)
    return as_one([*calls, find, sample(ctx, data, places, out)])


def _accepts_sampler_gradient(p: BilinearSamplerParams, call: CallSpec) -> bool:
    return spreads(call.inputs[1].shape, size_of(call.inputs[0].shape[2:])) and _of_one_type(p, call)


def _accepts_transformer_gradient(p: SpatialTransformerParams, call: CallSpec) -> bool:
    return spreads(call.inputs[1].shape, size_of(p.target_shape)) and _accepts_transformer(p, call)


def _back_temps(p: Any, call: CallSpec, *, wide_grid: bool = False) -> list[Temp]:
    """Positions, with `wide_grid` the gradient of the grid and the sums of its slices, and what spreading needs."""
    gout, data = call.inputs[:2]
    batch, size, dtype = gout.shape[0], gout.shape[2:], gout.dtype
    temps = [_places_temp(batch, size, dtype)]
    if wide_grid:
        temps += [Temp((batch, 2, *size), accumulation_type(dtype)), _slices_temp(batch, size, dtype)]
    return [*temps, *(spread_temps(data.shape, size_of(size), dtype) if call.wants(0) else [])]


@sampler_backward.compute("gpu", level="generated", prepares=True, accepts=_accepts_sampler_gradient, temps=_back_temps)
def _(p: BilinearSamplerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (gout, data, grid), calls = contiguous(ctx, inputs)
    (gdata, ggrid), (places, *spreading), size = outputs, ctx.temp, data.shape[2:]
    calls.append(_find_grid(ctx, grid, size, places))
    if ggrid is not None:
        calls.append(slopes(ctx, data, places, gout, ggrid, _factors(size)))
    if gdata is not None:
        calls += spread(ctx, gout, places, gdata, spreading)
    return as_one(calls)


@transformer_backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=_accepts_transformer_gradient,
    temps=partial(_back_temps, wide_grid=True),
)
def _(p: SpatialTransformerParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (gout, data, loc), calls = contiguous(ctx, inputs)
    (gdata, gloc), (places, ggrid, slices, *spreading), size = outputs, ctx.temp, data.shape[2:]
    calls.append(_find_affine(ctx, loc, p.target_shape, size, places))
    if gloc is not None:
        calls.append(slopes(ctx, data, places, gout, ggrid, _factors(size)))
        calls += _to_matrices(ctx, ggrid, gloc, slices, p.target_shape)
    if gdata is not None:
        calls += spread(ctx, gout, places, gdata, spreading)
    return as_one(calls)
