"""Bilinear sampling on a GPU: images read between their elements, and the gradients of that.

Images are (m, channel, height, width), positions along y and x (2, m, n) in the type that is computed in, samples
(m, channel, n). A thread reads a sample; for the slopes one goes through the channels of a position. The gradient of
the images is gathered: for each element the positions that read it are added up in their order, so that no two threads
write to one place, and runs agree to the last bit. Boxes around 32 and 1,024 positions say where it need not look.

`nn/sampling` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..compute import Array, Arrays, OpContext, Temp
from .kernel import KERNELS, KernelTemplate, Moved, scalar, threads_for

__all__ = ["box_temps", "by_thread", "column_slopes", "sample", "sample_columns", "slopes", "spread"]

_THREADS = 256
_TILE, _TILES = 32, 32
"""Positions of a box, and boxes of a larger one."""
_CHANNELS = 4
"""Channels that a thread adds up."""
_IMAGES, _DEPTH, _SIDE = 32, 64, 56
_PLANE = _IMAGES * _SIDE * _SIDE
_DATA = _DEPTH * _PLANE
_WHAT = f"{_IMAGES} images of {_DEPTH} channels, {_SIDE} x {_SIDE}, as many samples"
_TILE_BOXES = 4 * _IMAGES * -(-_SIDE * _SIDE // _TILE)
_BOXES = _TILE_BOXES + 4 * _IMAGES * -(-_SIDE * _SIDE // (_TILE * _TILES))

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
_SIZES = "int elements, int channels, int height, int width, int n, int clamp"


def _sample_kernel(name: str, out: str, columns: bool, masked: bool = False) -> KernelTemplate:
    """Columns have a row for each channel of a sample and each of its blocks of `inner` positions."""
    mask, times = ("const T *mask, ", " * A(mask[at])") if masked else ("", "")
    steps, target = (", int inner, int planes, int sample_step, int row_step", "target") if columns else ("", "number")
    find = """  const int row = plane % planes * (n / inner) + number % n / inner;
  const int target = plane / planes * sample_step + row * row_step + number % inner;
"""
    return KernelTemplate(
        name,
        f"const T *images, const A *along_y, const A *along_x, {mask}{out} *samples, {_SIZES}{steps}",
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
        f"const T *images, const A *along_y, const A *along_x, const {read} *gsamples, {mask}{out} *slopes, {_SIZES}, "
        f"int inner, int y_second, A factor_y, A factor_x{flags}",
        f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int part = number / n, place = number % n;
  const Neighbours y = neighbours(along_y[number], height, clamp), x = neighbours(along_x[number], width, clamp);
  A slope_y = 0, slope_x = 0, product = 0;
  for (int channel = 0; channel < channels; ++channel) {{
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
{more}    {out} *pair = slopes + number / inner * 2 * inner + number % inner;
    pair[y_second * inner] = {out}(slope_y * factor_y{times});
    pair[(1 - y_second) * inner] = {out}(slope_x * factor_x{times});
  }}
""",
        (_WHAT, lambda: Moved(4 * (2 * _DATA + (6 if masked else 4) * _PLANE), 4 * (2 * _DATA + 4 * _PLANE))),
        _NEIGHBOURS,
    )


BOXES = KernelTemplate(
    "opbox_sample_boxes",
    "const A *along_y, const A *along_x, int *tiles, int *groups, int height, int width, int n, int group_count",
    f"""  extern __shared__ int room[];
  const int part = blockIdx.x / group_count, count = (n + {_TILE} - 1) / {_TILE};
  const int tile = blockIdx.x % group_count * {_TILES} + threadIdx.x;
  int box[4] = {{height, -1, width, -1}};
  for (int k = tile * {_TILE}; k < n && k < (tile + 1) * {_TILE}; ++k) {{
    const A y = floor(along_y[part * n + k]), x = floor(along_x[part * n + k]);
    if (!(y >= -1 && y < height && x >= -1 && x < width)) continue;
    box[0] = min(box[0], int(y));
    box[1] = max(box[1], int(y) + 1);
    box[2] = min(box[2], int(x));
    box[3] = max(box[3], int(x) + 1);
  }}
  for (int k = 0; k < 4; ++k) {{
    room[threadIdx.x * 4 + k] = box[k];
    if (tile < count) tiles[(part * count + tile) * 4 + k] = box[k];
  }}
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int other = 1; other < {_TILES}; ++other)
    for (int k = 0; k < 4; ++k)
      box[k] = k % 2 ? max(box[k], room[other * 4 + k]) : min(box[k], room[other * 4 + k]);
  for (int k = 0; k < 4; ++k) groups[blockIdx.x * 4 + k] = box[k];
""",
    (_WHAT, lambda: Moved(4 * (2 * _PLANE + _BOXES), 4 * (2 * _PLANE + _BOXES))),
)


def _spread_kernel(name: str, read: str, masked: bool) -> KernelTemplate:
    mask, times = ("const T *mask, ", " * A(mask[part * n + place])") if masked else ("", "")
    return KernelTemplate(
        name,
        f"const {read} *gsamples, const A *along_y, const A *along_x, {mask}const int *tiles, const int *groups, "
        f"T *gimages, {_SIZES}",
        f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int size = height * width, element = number % size, i = element / width, j = element % width;
  const int chunks = (channels + {_CHANNELS} - 1) / {_CHANNELS}, part = number / size / chunks;
  const int first = number / size % chunks * {_CHANNELS}, planes = min({_CHANNELS}, channels - first);
  const int tile_count = (n + {_TILE} - 1) / {_TILE}, group_count = (tile_count + {_TILES} - 1) / {_TILES};
  const {read} *rows = gsamples + (part * channels + first) * n;
  A sums[{_CHANNELS}] = {{0}};
  for (int group = 0; group < group_count; ++group) {{
    const int *around = groups + (part * group_count + group) * 4;
    if (i < around[0] || i > around[1] || j < around[2] || j > around[3]) continue;
    for (int tile = group * {_TILES}; tile < tile_count && tile < (group + 1) * {_TILES}; ++tile) {{
      const int *box = tiles + (part * tile_count + tile) * 4;
      if (i < box[0] || i > box[1] || j < box[2] || j > box[3]) continue;
      for (int place = tile * {_TILE}; place < n && place < (tile + 1) * {_TILE}; ++place) {{
        const A near = nearness(along_y[part * n + place], i, height, clamp);
        if (near == 0) continue;
        A weight = near * nearness(along_x[part * n + place], j, width, clamp);
        if (weight == 0) continue;
        weight = weight{times};
        for (int k = 0; k < planes; ++k) sums[k] += weight * A(rows[k * n + place]);
      }}
    }}
  }}
  for (int k = 0; k < planes; ++k) gimages[(part * channels + first + k) * size + element] = T(sums[k]);
""",
        (_WHAT, _spread_moved),
        """// How much a sample at `where` has of the element `index`.
__device__ A nearness(A where, int index, int size, int clamp) {
  const A cell = floor(where), second = clamp ? fmin(cell + 1, A(size - 1)) : cell + 1;
  if (clamp && !(cell >= 0 && cell < size)) return 0;
  return (cell == index ? 1 - (where - cell) : A(0)) + (second == index ? where - cell : A(0));
}
""",
    )


def _spread_moved() -> Moved:
    """Positions of some tiles are read again for the elements of each, and of each chunk of channels."""
    least = 2 * _DATA + 2 * _PLANE + _BOXES
    return Moved(4 * (least + (_DEPTH // _CHANNELS - 1) * 2 * _PLANE), 4 * least)


_MASKED = (False, True)
_SAMPLE = _sample_kernel("opbox_sample", "T", columns=False)
_SLOPES = _slopes_kernel("opbox_sample_slopes", "T", "T", masked=False)
_WIDE_SLOPES = _slopes_kernel("opbox_sample_wide_slopes", "T", "A", masked=False)
_SPREAD = _spread_kernel("opbox_sample_back", "T", masked=False)
_COLUMNS = [_sample_kernel(f"opbox_sample_columns{'_masked' * m}", "A", columns=True, masked=m) for m in _MASKED]
_COLUMN_SLOPES = [_slopes_kernel(f"opbox_column_slopes{'_masked' * m}", "A", "T", masked=m) for m in _MASKED]
_COLUMNS_SPREAD = [_spread_kernel(f"opbox_columns_spread{'_masked' * m}", "A", masked=m) for m in _MASKED]
KERNELS += [_SAMPLE, _SLOPES, _WIDE_SLOPES, BOXES, _SPREAD, *_COLUMNS, *_COLUMN_SLOPES, *_COLUMNS_SPREAD]


def by_thread(
    ctx: OpContext, kernel: KernelTemplate, dtype: Any, elements: int, arguments: tuple[Any, ...]
) -> Callable[[], Any]:
    """A call that launches a thread for each of `elements`."""
    block = threads_for(elements, _THREADS)
    return kernel.call(ctx, dtype, -(-elements // block), block, arguments)


def _sizes(elements: int, images: Array, places: Array, *, clamp: bool) -> list[Any]:
    return [*map(np.int32, (elements, *images.shape[1:], places.shape[2], clamp))]


def sample(ctx: OpContext, images: Array, places: Array, samples: Array) -> Callable[[], Any]:
    """A call that reads images (m, channel, height, width) at places (2, m, n), y and x in elements."""
    sizes = _sizes(samples.size, images, places, clamp=False)
    return by_thread(ctx, _SAMPLE, images.dtype, samples.size, (images, *places, samples, *sizes))


def sample_columns(
    ctx: OpContext, images: Array, places: Array, columns: Array, steps: Sequence[int], mask: Array | None = None
) -> Callable[[], Any]:
    """A call that writes the columns of a deformable convolution, without a mask clamped at the images' edges.

    Args:
        ctx: of the compute.
        images: (m, channel, height, width).
        places: where a tap is for every place of out (2, m, taps * places).
        columns: room for them, in the type that is computed in.
        steps: places of out; channels of a sample; in `columns`, from a sample to the next one, and from row to row.
        mask: (m, taps * places), which samples are multiplied by.
    """
    elements = images.shape[0] * images.shape[1] * places.shape[2]
    masks = () if mask is None else (mask,)
    numbers = (*_sizes(elements, images, places, clamp=mask is None), *map(np.int32, steps))
    kernel = _COLUMNS[mask is not None]
    return by_thread(ctx, kernel, images.dtype, elements, (images, *places, *masks, columns, *numbers))


def slopes(
    ctx: OpContext, images: Array, places: Array, gsamples: Array, gplaces: Array, factors: tuple[float, float]
) -> Callable[[], Any]:
    """A call that writes the gradient of a grid (m, 2, n), x first: factors along y and x times the slopes there."""
    kernel, (m, n) = _SLOPES if gplaces.dtype == images.dtype else _WIDE_SLOPES, places.shape[1:]
    numbers = (*_sizes(m * n, images, places, clamp=False), np.int32(n), np.int32(1))
    scales = [scalar(factor, images.dtype) for factor in factors]
    return by_thread(ctx, kernel, images.dtype, m * n, (images, *places, gsamples, gplaces, *numbers, *scales))


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
    numbers = (*_sizes(m * n, images, places, clamp=mask is None), np.int32(inner), np.int32(0))
    one = scalar(1, images.dtype)
    if mask is None:
        arguments: tuple[Any, ...] = (goffset, *numbers, one, one)
    else:
        wanted = (np.int32(goffset is not None), np.int32(gmask is not None))
        # What is not written may be any array.
        targets = [mask if target is None else target for target in (gmask, goffset)]
        arguments = (mask, *targets, *numbers, one, one, *wanted)
    kernel = _COLUMN_SLOPES[mask is not None]
    return by_thread(ctx, kernel, images.dtype, m * n, (images, *places, gcolumns, *arguments))


def box_temps(m: int, n: int) -> list[Temp]:
    """Temporaries of `spread`: boxes around the positions, in small groups and in large ones."""
    tiles = -(-n // _TILE)
    return [Temp((m, count, 4), np.int32) for count in (tiles, -(-tiles // _TILES))]


def spread(
    ctx: OpContext,
    gsamples: Array,
    places: Array,
    gimages: Array,
    boxes: Arrays,
    *,
    columns: bool = False,
    mask: Array | None = None,
) -> list[Callable[[], Any]]:
    """Calls that write the gradient of images, of what `sample` read of them; `boxes` is what `box_temps` says."""
    (m, channels, height, width), n, dtype = gimages.shape, places.shape[2], gimages.dtype
    groups = boxes[1].shape[1]
    sizes = map(np.int32, (height, width, n, groups))
    find = BOXES.call(ctx, dtype, m * groups, _TILES, (*places, *boxes, *sizes), 4 * 4 * _TILES)
    elements = m * -(-channels // _CHANNELS) * height * width
    kernel = _COLUMNS_SPREAD[mask is not None] if columns else _SPREAD
    masks = () if mask is None else (mask,)
    numbers = _sizes(elements, gimages, places, clamp=columns and mask is None)
    return [find, by_thread(ctx, kernel, dtype, elements, (gsamples, *places, *masks, *boxes, gimages, *numbers))]
