"""The gradient of sampled images on a GPU, gathered: a thread adds up what reads one element, of a few channels.

Positions are sorted by cell first: the square of four elements between which they lie. An element belongs to four
cells, and a thread adds up the samples of these, in their order. Where many samples lie in one cell, those of a window
are summed up beforehand for each of its four elements. So no thread goes through many samples, wherever positions are,
and no two threads write to one place: runs agree to the last bit.

`nn/sampling` has the formulas, `sampling` the other kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array, Arrays, OpContext, Temp
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, by_thread
from .radix_sort import LOWER_BOUND, bits_for, radix_sort, radix_temps
from .sampling import SIZES, sizes_of

__all__ = ["spread", "spread_temps", "spreads"]

_CHANNELS = 4
"""Channels that a thread adds up, unless there would be fewer than _MIN_THREADS."""
_MIN_THREADS = 1 << 16
_WARPS = 8
"""Channels whose samples a block adds up at a time."""
_MIN_WINDOW = 64
_IMAGES, _DEPTH, _SIDE = 32, 64, 56
_PLANE = _IMAGES * _SIDE * _SIDE
_DATA = _DEPTH * _PLANE
_CELLS = _IMAGES * ((_SIDE + 1) ** 2 + 1)
_WHAT = f"{_IMAGES} images of {_DEPTH} channels, {_SIDE} x {_SIDE}, as many samples"

_CELLS_OF = KernelTemplate(
    "opbox_sample_cells",
    "const A *along_y, const A *along_x, unsigned *cells, int elements, int height, int width",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const A y = floor(along_y[number]), x = floor(along_x[number]);
  // The first cells begin before the image. What is nowhere comes last.
  const bool inside = y >= -1 && y < height && x >= -1 && x < width;
  cells[number] = inside ? (int(y) + 1) * (width + 1) + int(x) + 1 : (height + 1) * (width + 1);
""",
    (_WHAT, lambda: Moved(4 * 3 * _PLANE, 4 * 3 * _PLANE)),
    types=("float32", "float64"),
)
_STARTS = KernelTemplate(
    "opbox_cell_starts",
    "const unsigned *sorted, int *starts, int elements, int cells, int n",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  starts[number] = lower_bound(sorted + (long long)(number / cells) * n, n, number % cells);
""",
    (_WHAT, lambda: Moved(4 * (_PLANE + _CELLS), 4 * (_PLANE + _CELLS))),
    LOWER_BOUND,
    types=("float32",),
)
_NEARNESS = """// How much a sample at `where` has of the element `index`.
__device__ A nearness(A where, int index, int size, int clamp) {
  const A cell = floor(where), second = clamp ? fmin(cell + 1, A(size - 1)) : cell + 1;
  if (clamp && !(cell >= 0 && cell < size)) return 0;
  return (cell == index ? 1 - (where - cell) : A(0)) + (second == index ? where - cell : A(0));
}
"""


def _windows_kernel(name: str, read: str, masked: bool) -> KernelTemplate:
    """The sums of windows that are of one cell, for its four elements: the upper ones first."""
    mask, times = ("const T *mask, ", " * A(mask[(long long)part * n + place])") if masked else ("", "")
    return KernelTemplate(
        name,
        f"const {read} *gsamples, const A *along_y, const A *along_x, {mask}const unsigned *sorted, const int *order, "
        f"A *sums_of, int windows, int window, {SIZES}",
        f"""  const int part = blockIdx.x / windows, begin = blockIdx.x % windows * window, lane = threadIdx.x % 32;
  const long long samples = (long long)part * n;
  const int cell = sorted[samples + begin];
  if (cell != sorted[samples + begin + window - 1] || cell == (height + 1) * (width + 1)) return;
  const int i = cell / (width + 1) - 1, j = cell % (width + 1) - 1;
  for (int channel = threadIdx.x / 32; channel < channels; channel += blockDim.x / 32) {{
    const {read} *row = gsamples + ((long long)part * channels + channel) * n;
    A sums[4] = {{0}};
    for (int k = begin + lane; k < begin + window; k += 32) {{
      const int place = order[samples + k];
      const A y = along_y[samples + place], x = along_x[samples + place], g = A(row[place]){times};
#pragma unroll
      for (int corner = 0; corner < 4; ++corner) {{
        const A weight = nearness(y, i + corner / 2, height, clamp) * nearness(x, j + corner % 2, width, clamp);
        if (weight != 0) sums[corner] += weight * g;
      }}
    }}
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {{
      for (int apart = 16; apart > 0; apart /= 2) sums[corner] += __shfl_down_sync(0xffffffffu, sums[corner], apart);
      if (lane == 0) sums_of[((long long)blockIdx.x * channels + channel) * 4 + corner] = sums[corner];
    }}
  }}
""",
        (_WHAT, lambda: Moved(4 * 2 * _PLANE // _MIN_WINDOW, 4 * 2 * _PLANE // _MIN_WINDOW)),
        _NEARNESS,
    )


def _spread_kernel(name: str, read: str, masked: bool) -> KernelTemplate:
    mask, times = ("const T *mask, ", " * A(mask[samples + place])") if masked else ("", "")
    return KernelTemplate(
        name,
        f"const {read} *gsamples, const A *along_y, const A *along_x, {mask}const int *order, const int *starts, "
        f"const A *sums_of, T *gimages, int windows, int window, int chunk, {SIZES}",
        f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int size = height * width, element = number % size, i = element / width, j = element % width;
  const int chunks = (channels + chunk - 1) / chunk, part = number / size / chunks;
  const int first = number / size % chunks * chunk, planes = min(chunk, channels - first);
  const long long samples = (long long)part * n;
  const {read} *rows = gsamples + ((long long)part * channels + first) * n;
  const int *of_cell = starts + (long long)part * ((height + 1) * (width + 1) + 1);
  A sums[{_CHANNELS}] = {{0}};
  for (int corner = 3; corner >= 0; --corner) {{
    // The cell of which the element is this corner.
    const int cell = (i + 1 - corner / 2) * (width + 1) + j + 1 - corner % 2, stop = of_cell[cell + 1];
    for (int k = of_cell[cell]; k < stop;) {{
      if ((k & (window - 1)) == 0 && stop - k >= window) {{
        const A *sum = sums_of + (((long long)part * windows + k / window) * channels + first) * 4 + corner;
#pragma unroll
        for (int c = 0; c < {_CHANNELS}; ++c)
          if (c < planes) sums[c] += sum[4 * c];
        k += window;
        continue;
      }}
      const int place = order[samples + k++];
      const A near = nearness(along_y[samples + place], i, height, clamp);
      A weight = near * nearness(along_x[samples + place], j, width, clamp);
      if (weight == 0) continue;
      weight = weight{times};
#pragma unroll
      for (int c = 0; c < {_CHANNELS}; ++c)
        if (c < planes) sums[c] += weight * A(rows[(long long)c * n + place]);
    }}
  }}
#pragma unroll
  for (int c = 0; c < {_CHANNELS}; ++c)
    if (c < planes) gimages[((long long)part * channels + first + c) * size + element] = T(sums[c]);
""",
        (_WHAT, _spread_moved),
        _NEARNESS,
    )


def _spread_moved() -> Moved:
    """Positions and their order are read again for each chunk of channels."""
    least = 2 * _DATA + 3 * _PLANE + _CELLS
    return Moved(4 * (least + (_DEPTH // _CHANNELS - 1) * (3 * _PLANE + _CELLS)), 4 * least)


_MASKED = (False, True)
_WINDOWS = _windows_kernel("opbox_sample_windows", "T", masked=False)
_COLUMN_WINDOWS = [_windows_kernel(f"opbox_column_windows{'_masked' * m}", "A", masked=m) for m in _MASKED]
_SPREAD = _spread_kernel("opbox_sample_back", "T", masked=False)
_COLUMNS_SPREAD = [_spread_kernel(f"opbox_columns_spread{'_masked' * m}", "A", masked=m) for m in _MASKED]
KERNELS += [_CELLS_OF, _STARTS, _WINDOWS, *_COLUMN_WINDOWS, _SPREAD, *_COLUMNS_SPREAD]


def _cells(size: tuple[int, ...]) -> int:
    """Cells of an image, and one for what is nowhere."""
    return (size[0] + 1) * (size[1] + 1) + 1


def _window(n: int) -> int:
    """Samples of a window: a power of two, about the root of n, so that there are no more windows than that."""
    return max(_MIN_WINDOW, 1 << (math.isqrt(n) - 1).bit_length())


def spreads(images: tuple[int, ...], n: int) -> bool:
    """Return whether `spread` takes images (m, channels, height, width) with n positions in each."""
    m, channels, *size = images
    windows = n // _window(n)
    return max(m * _cells(tuple(size)), m * n, 4 * m * windows * channels) <= MAX_ELEMENTS


def spread_temps(images: tuple[int, ...], n: int, dtype: Any) -> list[Temp]:
    """Temporaries of `spread`: of the sort, where cells begin, and the sums of windows."""
    m, channels, *size = images
    cells = _cells(tuple(size))
    sums = (m, n // _window(n), channels, 4)
    return [
        *radix_temps(m, n, bits_for(cells - 1)),
        *(Temp((m, cells), np.int32), Temp(sums, accumulation_type(dtype))),
    ]


def spread(
    ctx: OpContext,
    gsamples: Array,
    places: Array,
    gimages: Array,
    temps: Arrays,
    *,
    columns: bool = False,
    mask: Array | None = None,
) -> list[Callable[[], Any]]:
    """Calls that write the gradient of images, of from those of samples; `temps` is what `spread_temps` says."""
    (m, channels, height, width), n, dtype = gimages.shape, places.shape[2], gimages.dtype
    *sorting, starts, sums = temps
    cells, wide = starts.shape[1], accumulation_type(dtype)
    sort, keys, order = radix_sort(ctx.xp, sorting, bits_for(cells - 1))
    sizes = (m * n, height, width)
    calls = [
        by_thread(ctx, _CELLS_OF, wide, m * n, (*places, sorting[0], *map(np.int32, sizes))),
        *sort,
        by_thread(ctx, _STARTS, np.float32, m * cells, (keys, starts, *map(np.int32, (m * cells, cells, n)))),
    ]
    masks, kind = () if mask is None else (mask,), mask is not None
    windows, window = sums.shape[1], _window(n)
    chunk = _CHANNELS if gimages.size >= _CHANNELS * _MIN_THREADS else 1
    elements = m * -(-channels // chunk) * height * width
    cut = [*map(np.int32, (windows, window))]
    numbers = sizes_of(elements, gimages, places, clamp=columns and mask is None)
    if windows:
        kernel = _COLUMN_WINDOWS[kind] if columns else _WINDOWS
        arguments = (gsamples, *places, *masks, keys, order, sums, *cut, *numbers)
        calls.append(kernel.call(ctx, dtype, m * windows, 32 * _WARPS, arguments))
    kernel = _COLUMNS_SPREAD[kind] if columns else _SPREAD
    arguments = (gsamples, *places, *masks, order, starts, sums, gimages, *cut, np.int32(chunk), *numbers)
    calls.append(by_thread(ctx, kernel, dtype, elements, arguments))
    return calls
