"""Kernels around a convolution's product: windows into columns, columns into the sums at their places, parts into one.

Columns have a row for each channel and tap, and a column for each window of each sample; with the channels last it is
the other way round. A block copies a run of one row, or one window, so that few numbers are divided for each element.
Columns that sums are made of may be of a wider type than the data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..compute import Array
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, threads_for

__all__ = ["SIZES", "joined", "numbers_of", "swapped", "window_columns", "window_sums"]

SIZES = (
    "int channels, int d, int h, int w, int od, int oh, int ow, int kd, int kh, int kw, "
    "int sd, int sh, int sw, int dd, int dh, int dw, int pd, int ph, int pw"
)
"""Channels, then data, windows, kernel, stride, dilation and padding along three dimensions."""
_THREADS, _THREAD_ELEMENTS = 256, 4
"""Threads of a block, and elements of a thread."""
_LANES = 8
"""Threads that add up many parts of an element."""
_DATA, _WINDOWS = 32 * 128 * 56 * 56, 32 * 128 * 28 * 28
_WHAT = "32 images of 128 channels, 56 x 56, by 3 x 3 with a stride of 2"
_TYPES = tuple(WITH_BFLOAT16)


def _moved() -> Moved:
    return Moved(4 * (_DATA + 9 * _WINDOWS), 4 * (_DATA + 9 * _WINDOWS))


_QUAD = "struct alignas(4 * sizeof(T)) Quad { T elements[4]; };\n"
"""What a thread writes at once, where four elements begin at a multiple of their size."""
COLUMNS = KernelTemplate(
    "opbox_window_columns",
    "const T *data, T *columns, unsigned samples, unsigned runs, unsigned row_step, unsigned sample_step, int quads, "
    f"{SIZES}",
    f"""  const unsigned row = blockIdx.x / runs, positions = od * oh * ow, places = samples * positions;
  const int channel = row / (kd * kh * kw), tap = row % (kd * kh * kw);
  const int front = tap / (kh * kw) * dd - pd, top = tap / kw % kh * dh - ph, left = tap % kw * dw - pw;
  T *line_of = columns + (long long)row * row_step;
  const unsigned step = quads ? 1 : blockDim.x;
  const unsigned first = blockIdx.x % runs * (blockDim.x * {_THREAD_ELEMENTS});
  unsigned place = first + (quads ? {_THREAD_ELEMENTS} * threadIdx.x : threadIdx.x);
  Quad quad;
  unsigned sample = 0, position = 0;
  int x = 0, y = 0, z = 0;
#pragma unroll
  for (int k = 0; k < {_THREAD_ELEMENTS}; ++k, place += step) {{
    if (place >= places) return;
    if (k == 0 || !quads) {{
      sample = place / positions, position = place - sample * positions;
      const unsigned line = position / ow, slice = od > 1 ? line / oh : 0;
      z = slice, y = line - slice * oh, x = position - line * ow;
    }}
    const int at = z * sd + front, above = y * sh + top, before = x * sw + left;
    const bool inside = at >= 0 && at < d && above >= 0 && above < h && before >= 0 && before < w;
    const long long plane = (long long)sample * channels + channel;
    const T element = inside ? data[((plane * d + at) * h + above) * w + before] : T(0.0f);
    if (!quads) {{
      line_of[(long long)sample * sample_step + position] = element;
      continue;
    }}
    quad.elements[k] = element;
    if (++x == ow) {{
      x = 0;
      if (++y == oh) y = 0, ++z;
    }}
  }}
  if (quads) *reinterpret_cast<Quad *>(line_of + (long long)sample * sample_step + position) = quad;
""",
    (_WHAT, _moved),
    declares=_QUAD,
    types=_TYPES,
)
"""With `quads` a thread has four places in a row, of one sample, else every `blockDim.x`-th."""
COLUMNS_LAST = KernelTemplate(
    "opbox_window_columns_last",
    f"const T *data, T *columns, {SIZES}",
    """  const unsigned positions = od * oh * ow, sample = blockIdx.x / positions, position = blockIdx.x % positions;
  const unsigned line = position / ow;
  const int front = line / oh * sd - pd, top = line % oh * sh - ph, left = (position - line * ow) * sw - pw;
  const int depth = kd * kh * kw * channels;
  for (int k = threadIdx.x; k < depth; k += blockDim.x) {
    const int tap = k / channels, channel = k - tap * channels;
    const int z = front + tap / (kh * kw) * dd, y = top + tap / kw % kh * dh, x = left + tap % kw * dw;
    const bool inside = z >= 0 && z < d && y >= 0 && y < h && x >= 0 && x < w;
    const long long pixel = (((long long)sample * d + z) * h + y) * w + x;
    columns[(long long)blockIdx.x * depth + k] = inside ? data[pixel * channels + channel] : T(0.0f);
  }
""",
    (_WHAT, _moved),
    types=_TYPES,
)
_TAPS = """    A sum = 0;
    for (int i = z % sd, a = z / sd; i < kd; i += sd, a -= dd) {
      if (a < 0 || a >= od) continue;
      for (int j = y % sh, b = y / sh; j < kh; j += sh, b -= dh) {
        if (b < 0 || b >= oh) continue;
        for (int k = x % sw, c = x / sw; k < kw; k += sw, c -= dw) {
          if (c < 0 || c >= ow) continue;
          sum += AT;
        }
      }
    }
"""
"""The sum of what the windows over a place have there. A stride or a dilation is 1: a window every `stride` taps."""
SUMS = KernelTemplate(
    "opbox_window_sums",
    "const A *columns, T *data, unsigned runs, unsigned row_step, unsigned sample_step, int quads, unsigned quarters, "
    f"{SIZES}",
    f"""  const unsigned plane = blockIdx.x / runs, sample = plane / channels, channel = plane % channels;
  const unsigned taps = kd * kh * kw, number = blockIdx.x % runs * blockDim.x + threadIdx.x;
  if (number >= d * h * quarters) return;
  const A *rows = columns + (long long)sample * sample_step + (long long)channel * taps * row_step;
  const unsigned line = number / quarters, slice = d > 1 ? line / h : 0;
  const int first = (number - line * quarters) * {_THREAD_ELEMENTS};
  const int z = slice + pd, y = line - slice * h + ph, x = first + pw;
  A sums[{_THREAD_ELEMENTS}] = {{}};
  for (int i = z % sd, a = z / sd; i < kd; i += sd, a -= dd) {{
    if (a < 0 || a >= od) continue;
    for (int j = y % sh, b = y / sh; j < kh; j += sh, b -= dh) {{
      if (b < 0 || b >= oh) continue;
      const A *windows = rows + (long long)((i * kh + j) * kw) * row_step + (a * oh + b) * ow;
      int rest = x % sw, whole = x / sw;
#pragma unroll
      for (int n = 0; n < {_THREAD_ELEMENTS}; ++n) {{
        for (int k = rest, c = whole; k < kw; k += sw, c -= dw)
          if (c >= 0 && c < ow) sums[n] += windows[(long long)k * row_step + c];
        if (++rest == sw) rest = 0, ++whole;
      }}
    }}
  }}
  T *target = data + ((long long)plane * d * h + line) * w + first;
  Quad quad;
#pragma unroll
  for (int n = 0; n < {_THREAD_ELEMENTS}; ++n) {{
    quad.elements[n] = T(sums[n]);
    if (!quads && first + n < w) target[n] = quad.elements[n];
  }}
  if (quads) *reinterpret_cast<Quad *>(target) = quad;
""",
    (_WHAT, _moved),
    declares=_QUAD,
    types=_TYPES,
)
"""A thread has four places in a line, of `quarters` such groups; with `quads` it writes them at once."""
SUMS_LAST = KernelTemplate(
    "opbox_window_sums_last",
    f"const A *columns, T *data, {SIZES}",
    f"""  const unsigned line = blockIdx.x / w, slice = line / h, sample = slice / d;
  const int z = slice - sample * d + pd, y = line - slice * h + ph, x = blockIdx.x - line * w + pw;
  const int taps = kd * kh * kw, step = channels;
  const A *windows = columns + (long long)sample * od * oh * ow * taps * channels;
  for (int channel = threadIdx.x; channel < channels; channel += blockDim.x) {{
{_TAPS.replace("AT", "windows[((long long)((a * oh + b) * ow + c) * taps + (i * kh + j) * kw + k) * step + channel]")}
    data[(long long)blockIdx.x * channels + channel] = T(sum);
  }}
""",
    (_WHAT, _moved),
    types=_TYPES,
)
JOIN = KernelTemplate(
    "opbox_join_products",
    "const A *parts, T *out, unsigned elements, unsigned count, unsigned lanes",
    f"""  __shared__ A sums[{_THREADS}];
  const unsigned across = blockDim.x / lanes, lane = threadIdx.x / across;
  const unsigned number = blockIdx.x * across + threadIdx.x % across;
  A sum = 0;
  if (number < elements) {{
#pragma unroll 8
    for (unsigned part = lane; part < count; part += lanes) sum += parts[(long long)part * elements + number];
  }}
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (lane > 0 || number >= elements) return;
  for (unsigned other = 1; other < lanes; ++other) sum += sums[other * across + threadIdx.x];
  out[number] = T(sum);
""",
    ("32 parts of 512 x 128", lambda: Moved(4 * 33 * 512 * 128, 4 * 33 * 512 * 128)),
    types=_TYPES,
)
"""An element's parts are added up by `lanes` threads, each every `lanes`-th, and their sums in order."""
KERNELS += [COLUMNS, COLUMNS_LAST, SUMS, SUMS_LAST, JOIN]


def numbers_of(
    channels: int, data: Sequence[int], windows: Sequence[int], taps: Sequence[int], window: Sequence[Sequence[int]]
) -> tuple[Any, ...]:
    """The numbers that SIZES declares, of one to three dimensions; `window` is stride, dilation, padding."""
    lists = (data, windows, taps, *window)
    fill = (1, 1, 1, 1, 1, 0)
    padded = [(k,) * (3 - len(values)) + tuple(values) for values, k in zip(lists, fill, strict=True)]
    return tuple(np.int32(n) for n in (channels, *(n for values in padded for n in values)))


def window_columns(
    xp: Any, data: Array, columns: Array, samples: int, numbers: tuple[Any, ...], steps: tuple[int, int] | None
) -> Callable[[], Any]:
    """A call that copies the windows of so many samples into columns of the same type.

    Args:
        numbers: as `numbers_of` has them.
        steps: from row to row, and from sample to sample; None where the channels lie last.
    """
    channels, taps, positions = int(numbers[0]), _product(numbers[7:10]), _product(numbers[4:7])
    if steps is None:
        threads = threads_for(taps * channels)
        return COLUMNS_LAST.launch(xp, data.dtype, samples * positions, threads, (data, columns, *numbers))
    runs = -(-samples * positions // (_THREADS * _THREAD_ELEMENTS))
    quads = _in_quads(columns, positions, *steps)
    arguments = (data, columns, *map(np.uint32, (samples, runs, *steps)), quads, *numbers)
    return COLUMNS.launch(xp, data.dtype, channels * taps * runs, _THREADS, arguments)


def window_sums(
    xp: Any, columns: Array, data: Array, samples: int, numbers: tuple[Any, ...], steps: tuple[int, int] | None
) -> Callable[[], Any]:
    """A call that writes, at each place of data, the sum of what its windows have there; the way back from columns.

    Along each dimension the stride or the dilation is 1. Arguments are those of `window_columns`.
    """
    channels, places = int(numbers[0]), _product(numbers[1:4])
    if steps is None:
        threads = threads_for(channels)
        return SUMS_LAST.launch(xp, data.dtype, samples * places, threads, (columns, data, *numbers))
    width = int(numbers[3])
    quarters = -(-width // _THREAD_ELEMENTS)
    runs = -(-places // width * quarters // _THREADS)
    quads = _in_quads(data, width)
    arguments = (columns, data, *map(np.uint32, (runs, *steps)), quads, np.uint32(quarters), *numbers)
    return SUMS.launch(xp, data.dtype, samples * channels * runs, _THREADS, arguments)


def swapped(xp: Any, source: Array, target: Array, shape: tuple[int, int, int]) -> Callable[[], Any]:
    """A call that copies an array (a, b, n) of this shape to (b, a, n): samples side by side, or apart again."""
    a, b, n = shape
    nbytes = n * source.itemsize
    if nbytes % 8 == 0:  # as numbers of 8 bytes, which are fewer
        source, target, n = (*(array.reshape(-1).view(np.float64) for array in (source, target)), nbytes // 8)
    numbers = numbers_of(b, (n,), (n,), (1,), ((1,), (1,), (0,)))
    return window_columns(xp, source, target, a, numbers, (a * n, n))


def joined(xp: Any, parts: Array, out: Array, count: int) -> Callable[[], Any]:
    """A call that adds up so many parts of the wider type, one behind the other, and rounds the sum to out's type."""
    lanes = _LANES if count >= 2 * _LANES else 1
    arguments = (parts, out, *map(np.uint32, (out.size, count, lanes)))
    return JOIN.launch(xp, out.dtype, -(-out.size * lanes // _THREADS), _THREADS, arguments)


def _in_quads(array: Array, *steps: int) -> Any:
    """Whether four elements can be written at once: they begin at a multiple of their size, of at most 16 bytes."""
    size = _THREAD_ELEMENTS * array.itemsize
    divides = all(step % _THREAD_ELEMENTS == 0 for step in steps)
    return np.int32(size <= 16 and divides and array.data.ptr % size == 0)


def _product(numbers: Sequence[Any]) -> int:
    return math.prod(map(int, numbers))
