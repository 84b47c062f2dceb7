"""Bilinear sampling on a GPU: images read between their elements, and the gradients of where they are read.

Images are (m, channel, height, width), positions along y and x (2, m, n) in the type that is computed in, samples
(m, channel, n). A thread reads a sample. For the slopes, the gradients of positions, a block has some positions side by
side: a thread goes through every eighth channel of one. `spread` has the gradient of images.

`nn/sampling` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..compute import Array, OpContext
from .kernel import KERNELS, KernelTemplate, Moved, by_thread, scalar

__all__ = ["SIZES", "column_slopes", "sample", "sample_columns", "sizes_of", "slopes"]

_IMAGES, _DEPTH, _SIDE = 32, 64, 56
_PLANE = _IMAGES * _SIDE * _SIDE
_DATA = _DEPTH * _PLANE
_SIDE_BY_SIDE, _SLICES = 32, 8
"""Positions of a block whose slopes are summed, and threads of one."""
_WHAT = f"{_IMAGES} images of {_DEPTH} channels, {_SIDE} x {_SIDE}, as many samples"

_NEIGHBOURS = """struct Neighbours { int at[2]; A near[2]; bool real[2]; };
// A neighbour that is not real counts as 0. With clamp the last element reaches as far as the next one would be.
__device__ Neighbours neighbours(A where, int size, int clamp) {
  Neighbours both;
  const A cell = floor(where);
  both.near[1] = where - cell;
  both.near[0] = 1 - both.near[1];
  for (int k = 0; k < 2; ++k) {
    const A at = cell + k;
    both.real[k] = clamp ? cell >= 0 && cell < size : at >= 0 && at < size;
    both.at[k] = both.real[k] ? min(int(at), size - 1) : 0;
  }
  // Infinity less infinity is no number.
  if (where < -1 || where > size) both.near[0] = both.near[1] = 0;
  return both;
}
"""
_VALUE = "y.real[i] && x.real[j] ? A(image[y.at[i] * width + x.at[j]]) : A(0)"
SIZES = "int elements, int channels, int height, int width, int n, int clamp"
"""Threads, sizes of the images, positions of an image, whether its edges are extended: what `sizes_of` returns."""


def _sample_kernel(name: str, out: str, columns: bool, masked: bool = False) -> KernelTemplate:
    """Columns have a row for each channel of a sample and each of its blocks of `inner` positions."""
    mask, times = ("const T *mask, ", " * A(mask[at])") if masked else ("", "")
    steps, target = (", int inner, int planes, int sample_step, int row_step", "target") if columns else ("", "number")
    find = """  const int row = plane % planes * (n / inner) + number % n / inner;
  const int target = plane / planes * sample_step + row * row_step + number % inner;
"""
    return KernelTemplate(
        name,
        f"const T *images, const A *along_y, const A *along_x, {mask}{out} *samples, {SIZES}{steps}",
        f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int plane = number / n, at = plane / channels * n + number % n;
  const Neighbours y = neighbours(along_y[at], height, clamp), x = neighbours(along_x[at], width, clamp);
  const T *image = images + plane * height * width;
  A sum = 0;
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 2; ++j) {{
      const A value = {_VALUE};
      sum += y.near[i] * x.near[j] * value;
    }}
{find if columns else ""}  samples[{target}] = {out}(sum{times});
""",
        (_WHAT, lambda: Moved(4 * (2 * _DATA + (3 if masked else 2) * _PLANE), 4 * (2 * _DATA + 2 * _PLANE))),
        _NEIGHBOURS,
    )


def _slopes_kernel(name: str, read: str, out: str, masked: bool) -> KernelTemplate:
    """Slopes go to pairs of blocks of `inner` numbers, y's into the first of a pair or the second."""
    mask = "const T *mask, T *gmask, " if masked else ""
    flags = ", int with_slopes, int with_mask" if masked else ""
    write = "  if (with_slopes) {\n" if masked else "  {\n"
    times = " * A(mask[number])" if masked else ""
    gmask = "  if (with_mask) gmask[number] = T(product);\n" if masked else ""
    more = f"{gmask}{write}"
    return KernelTemplate(
        name,
        f"const T *images, const A *along_y, const A *along_x, const {read} *gsamples, {mask}{out} *slopes, {SIZES}, "
        f"int inner, int y_second, A factor_y, A factor_x{flags}",
        f"""  __shared__ A sums[3][{_SLICES}][{_SIDE_BY_SIDE}];
  const int column = threadIdx.x % {_SIDE_BY_SIDE}, slice = threadIdx.x / {_SIDE_BY_SIDE};
  const int number = blockIdx.x * {_SIDE_BY_SIDE} + column, part = number / n, place = number % n;
  A slope_y = 0, slope_x = 0, product = 0;
  if (number < elements) {{
    const Neighbours y = neighbours(along_y[number], height, clamp), x = neighbours(along_x[number], width, clamp);
    for (int channel = slice; channel < channels; channel += {_SLICES}) {{
      const int plane = part * channels + channel;
      const T *image = images + plane * height * width;
      const A g = A(gsamples[plane * n + place]);
      A values[2][2];
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 2; ++j) values[i][j] = {_VALUE};
      const A upper = x.near[0] * values[0][0] + x.near[1] * values[0][1];
      const A lower = x.near[0] * values[1][0] + x.near[1] * values[1][1];
      slope_y += g * (lower - upper);
      slope_x += g * (y.near[0] * (values[0][1] - values[0][0]) + y.near[1] * (values[1][1] - values[1][0]));
      product += g * (y.near[0] * upper + y.near[1] * lower);
    }}
  }}
  sums[0][slice][column] = slope_y;
  sums[1][slice][column] = slope_x;
  sums[2][slice][column] = product;
  __syncthreads();
  if (slice > 0 || number >= elements) return;
  for (int other = 1; other < {_SLICES}; ++other) {{
    slope_y += sums[0][other][column];
    slope_x += sums[1][other][column];
    product += sums[2][other][column];
  }}
{more}    {out} *pair = slopes + number / inner * 2 * inner + number % inner;
    pair[y_second * inner] = {out}(slope_y * factor_y{times});
    pair[(1 - y_second) * inner] = {out}(slope_x * factor_x{times});
  }}
""",
        (_WHAT, lambda: Moved(4 * (2 * _DATA + (6 if masked else 4) * _PLANE), 4 * (2 * _DATA + 4 * _PLANE))),
        _NEIGHBOURS,
    )


_MASKED = (False, True)
_SAMPLE = _sample_kernel("opbox_sample", "T", columns=False)
_SLOPES = _slopes_kernel("opbox_sample_slopes", "T", "T", masked=False)
_WIDE_SLOPES = _slopes_kernel("opbox_sample_wide_slopes", "T", "A", masked=False)
_COLUMNS = [_sample_kernel(f"opbox_sample_columns{'_masked' * m}", "A", columns=True, masked=m) for m in _MASKED]
_COLUMN_SLOPES = [_slopes_kernel(f"opbox_column_slopes{'_masked' * m}", "A", "T", masked=m) for m in _MASKED]
KERNELS += [_SAMPLE, _SLOPES, _WIDE_SLOPES, *_COLUMNS, *_COLUMN_SLOPES]


def sizes_of(elements: int, images: Array, places: Array, *, clamp: bool) -> list[Any]:
    """The numbers that SIZES declares."""
    return [*map(np.int32, (elements, *images.shape[1:], places.shape[2], clamp))]


def sample(ctx: OpContext, images: Array, places: Array, samples: Array) -> Callable[[], Any]:
    """A call that reads images (m, channel, height, width) at places (2, m, n), y and x in elements."""
    sizes = sizes_of(samples.size, images, places, clamp=False)
    return by_thread(ctx, _SAMPLE, images.dtype, samples.size, (images, *places, samples, *sizes))


def sample_columns(
    ctx: OpContext, images: Array, places: Array, columns: Array, steps: Sequence[int], mask: Array | None = None
) -> Callable[[], Any]:
    """A call that writes the columns of a deformable convolution, without a mask clamped at the images' edges.

    Args:
        ctx: of the compute.
        images: (m, channel, height, width).
        places: where a tap is for every place of out (2, m, taps * places).
        columns: scratch for them, in the type that is computed in.
        steps: places of out; channels of a sample; in `columns`, from a sample to the next one, and from row to row.
        mask: (m, taps * places), which samples are multiplied by.
    """
    elements = images.shape[0] * images.shape[1] * places.shape[2]
    masks = () if mask is None else (mask,)
    numbers = (*sizes_of(elements, images, places, clamp=mask is None), *map(np.int32, steps))
    kernel = _COLUMNS[mask is not None]
    return by_thread(ctx, kernel, images.dtype, elements, (images, *places, *masks, columns, *numbers))


def _by_position(ctx: OpContext, kernel: KernelTemplate, count: int, arguments: Sequence[Any]) -> Callable[[], Any]:
    """A call of a kernel of slopes for so many positions; the images are the first argument."""
    blocks = -(-count // _SIDE_BY_SIDE)
    return kernel.call(ctx, arguments[0].dtype, blocks, _SIDE_BY_SIDE * _SLICES, arguments)


def slopes(
    ctx: OpContext, images: Array, places: Array, gsamples: Array, gplaces: Array, factors: tuple[float, float]
) -> Callable[[], Any]:
    """A call that writes the gradient of a grid (m, 2, n), x first: factors along y and x times the slopes there."""
    kernel, (m, n) = _SLOPES if gplaces.dtype == images.dtype else _WIDE_SLOPES, places.shape[1:]
    numbers = (*sizes_of(m * n, images, places, clamp=False), np.int32(n), np.int32(1))
    scales = [scalar(factor, images.dtype) for factor in factors]
    return _by_position(ctx, kernel, m * n, (images, *places, gsamples, gplaces, *numbers, *scales))


def column_slopes(
    ctx: OpContext,
    images: Array,
    places: Array,
    gcolumns: Array,
    goffset: Array | None,
    inner: int,
    mask: Array | None = None,
    gmask: Array | None = None,
) -> Callable[[], Any]:
    """A call that writes the gradients of offset (m, taps, 2, inner), y first, and of mask (m, taps, inner)."""
    m, n = places.shape[1:]
    numbers = (*sizes_of(m * n, images, places, clamp=mask is None), np.int32(inner), np.int32(0))
    one = scalar(1, images.dtype)
    if mask is None:
        arguments: tuple[Any, ...] = (goffset, *numbers, one, one)
    else:
        wanted = (np.int32(goffset is not None), np.int32(gmask is not None))
        # What is not written may be any array.
        targets = [mask if target is None else target for target in (gmask, goffset)]
        arguments = (mask, *targets, *numbers, one, one, *wanted)
    kernel = _COLUMN_SLOPES[mask is not None]
    return _by_position(ctx, kernel, m * n, (images, *places, gcolumns, *arguments))
