"""Greedy suppression on a GPU: of boxes in order, each that stays removes the later ones that it overlaps.

Boxes are settled span by span. First many blocks write which boxes of a span overlap, a bit a pair. Then a warp goes
through the span of an image: it has a bit for each box, and a box that stays clears those that it overlaps. What stays
strikes the boxes behind the span, in a launch of many blocks. Memory grows with the boxes; a matrix of all pairs, as
others keep it, would grow with the square.

`vision/suppress` is the reference. A box is left, top, right, bottom, area and class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...compute import Array, OpContext, Temp
from ..kernel import KERNELS, KernelTemplate, Moved
from .arithmetic import ROUNDED, rounded_scalar

__all__ = ["OVERLAP", "SIDES", "Rule", "suppress_calls", "suppress_temps"]

SIDES = 6
"""Numbers of a box."""
_STRIKERS = 256
_SPAN = 1024
"""Boxes of a span: 32 for each lane of a warp."""
_WARPS = 8
_LATER = 1 << 14
_IMAGES, _BOXES = 8, 8732

OVERLAP = f"""{ROUNDED}// As numpy.minimum and numpy.maximum: NaN if either is.
__device__ A lesser(A a, A b) {{ return a < b || a != a ? a : b; }}
__device__ A greater(A a, A b) {{ return a > b || a != a ? a : b; }}
__device__ A extent(A first, A last, A margin) {{
  return greater(rounded(rounded(last - first) + margin), A(0));
}}
__device__ A area_of(A left, A top, A right, A bottom, A margin) {{
  return times(extent(left, right, margin), extent(top, bottom, margin));
}}
// The boxes' intersection over their union: five numbers each, the last the area.
__device__ A overlap(const A *a, const A *b, A margin) {{
  const A both = area_of(greater(a[0], b[0]), greater(a[1], b[1]), lesser(a[2], b[2]), lesser(a[3], b[3]), margin);
  const A either = rounded(rounded(a[4] + b[4]) - both);
  return rounded(both / (both <= 0 ? A(1) : either));
}}
"""
_HITS = f"""{OVERLAP}__device__ bool hits(const A *better, const A *worse, int flags, A margin, A threshold) {{
  const A share = overlap(better, worse, margin);
  return (flags & 4 ? share >= threshold : share > threshold) && (!(flags & 2) || better[5] == worse[5]);
}}
"""
ALIVE = KernelTemplate(
    "opbox_nms_alive",
    "const A *keys, unsigned char *alive, int *counts, int total, int n, int padded, int competing, int flags, "
    "A lowest",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= total) return;
  const int k = number % n, row = number / n;
  alive[number] = k < competing && (flags & 1 || keys[(long long)row * padded + k] > lowest);
  if (k == 0) counts[row] = 0;
""",
    (f"{_IMAGES} images of {_BOXES:,} boxes", lambda: Moved(_IMAGES * _BOXES * 5, _IMAGES * _BOXES * 5)),
    types=("float32", "float64"),
)
OVERLAPS = KernelTemplate(
    "opbox_overlaps",
    "const A *boxes, const int *places, const unsigned char *alive, const int *counts, unsigned *overlaps, int n, "
    "int padded, int begin, int end, int words, int most, int flags, A margin, A threshold",
    f"""  // A warp has 32 boxes, a lane each, and as many that stand before them or are the same.
  const int blocks = (words + {_WARPS} - 1) / {_WARPS}, word = blockIdx.x / blocks % words;
  const int row = blockIdx.x / blocks / words, lane = threadIdx.x % 32;
  const int group = blockIdx.x % blocks * {_WARPS} + threadIdx.x / 32;
  if (group > word || counts[row] >= most) return;
  const long long first = (long long)row * n;
  places += (long long)row * padded;
  const int j = begin + 32 * word + lane;
  const bool live = j < end && alive[first + j];
  A mine[{SIDES}];
  for (int c = 0; c < {SIDES}; ++c) mine[c] = live ? boxes[(first + places[j]) * {SIDES} + c] : A(0);
  unsigned own = 0;
  for (int q = 0; q < 32; ++q) {{
    const int k = begin + 32 * group + q;
    if (k >= end) break;
    unsigned set = 0;
    if (alive[first + k]) {{
      const A *better = boxes + (first + places[k]) * {SIDES};
      set = __ballot_sync(0xffffffffu, live && k < j && hits(better, mine, flags, margin, threshold));
    }}
    if (lane == q) own = set;
  }}
  overlaps[((long long)row * 32 * words + 32 * group + lane) * words + word] = own;
""",
    (
        f"{_SPAN:,} boxes of an image",
        lambda: Moved(_SPAN * (4 * SIDES + 5 + _SPAN // 8), _SPAN * (4 * SIDES + 5 + _SPAN // 8)),
    ),
    _HITS,
)
SETTLE = KernelTemplate(
    "opbox_suppress",
    "const int *places, unsigned char *alive, int *sources, int *counts, int *before_span, const unsigned *overlaps, "
    "int n, int padded, int begin, int end, int competing, int words, int most",
    """  __shared__ unsigned stays[32];
  const long long row = blockIdx.x, first = row * n;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = begin + threadIdx.x;
  int count = counts[row];
  const int before = count;
  __syncthreads();
  if (count < most) {
    const unsigned live = __ballot_sync(0xffffffffu, k < end && alive[first + k]);
    if (lane == 0) stays[warp] = live;
    __syncthreads();
    if (warp == 0) {
      overlaps += row * 32 * words * words;
      unsigned own = lane < words ? stays[lane] : 0;
      for (int word = 0; word < words; ++word) {
        unsigned clears[32];
#pragma unroll
        for (int q = 0; q < 32; ++q)
          clears[q] = lane >= word && lane < words ? overlaps[(32 * word + q) * words + lane] : 0;
        unsigned current = __shfl_sync(0xffffffffu, own, word);
#pragma unroll
        for (int q = 0; q < 32; ++q)
          if (current >> q & 1) {
            own &= ~clears[q];
            current = __shfl_sync(0xffffffffu, own, word);
          }
      }
      if (lane < words) stays[lane] = own;
    }
    __syncthreads();
    int rank = count;
    for (int w = 0; w < words; ++w) {
      count += __popc(stays[w]);
      if (w < warp) rank = count;
    }
    const bool stay = stays[warp] >> lane & 1;
    if (k < end) alive[first + k] = stay;
    if (stay) sources[first + rank + __popc(stays[warp] & ((1u << lane) - 1))] = places[row * padded + k];
  }
  if (threadIdx.x == 0) {
    before_span[row] = before;
    counts[row] = end < competing ? count : min(count, most);
  }
  if (end == competing)
    for (int at = count + threadIdx.x; at < n; at += blockDim.x) sources[first + at] = -1;
""",
    (
        f"{_SPAN:,} boxes of an image, none of which overlap",
        lambda: Moved(_SPAN * (13 + _SPAN // 8), _SPAN * (13 + _SPAN // 8)),
    ),
    types=("float32",),
)
STRIKE = KernelTemplate(
    "opbox_strike",
    "const A *boxes, const int *places, unsigned char *alive, const int *sources, const int *counts, "
    "const int *before_span, int n, int padded, int begin, int competing, int flags, A margin, A threshold",
    f"""  __shared__ A tile[{SIDES} * {_STRIKERS}];
  const int blocks = (competing - begin + blockDim.x - 1) / blockDim.x;
  const int j = begin + blockIdx.x % blocks * blockDim.x + threadIdx.x;
  const long long row = blockIdx.x / blocks, first = row * n;
  bool live = j < competing && alive[first + j];
  A mine[{SIDES}];
  if (live)
    for (int c = 0; c < {SIDES}; ++c) mine[c] = boxes[(first + places[row * padded + j]) * {SIDES} + c];
  const int last = counts[row];
  for (int base = before_span[row]; base < last; base += blockDim.x) {{
    const int length = min(last - base, int(blockDim.x));
    if (threadIdx.x < length) {{
      const int source = sources[first + base + threadIdx.x];
      for (int c = 0; c < {SIDES}; ++c) tile[{SIDES} * threadIdx.x + c] = boxes[(first + source) * {SIDES} + c];
    }}
    __syncthreads();
    for (int s = 0; live && s < length; ++s)
      if (hits(tile + {SIDES} * s, mine, flags, margin, threshold)) live = false;
    __syncthreads();
  }}
  if (j < competing && !live) alive[first + j] = 0;
""",
    (
        f"{_SPAN:,} boxes, and {_LATER:,} behind them",
        lambda: Moved(
            _LATER * (4 * SIDES + 5) + _LATER // _STRIKERS * _SPAN * (4 * SIDES + 4),
            _LATER * (4 * SIDES + 5) + _SPAN * (4 * SIDES + 4),
        ),
    ),
    _HITS,
)
KERNELS += [ALIVE, OVERLAPS, SETTLE, STRIKE]


@dataclass(frozen=True)
class Rule:
    """Which boxes compete, and which of two stays.

    Attributes:
        competing: how many of the first.
        most: once so many stay, later ones are left out.
        all: boxes with the lowest key compete too.
        by_class: only boxes of one class do.
        inclusive: an overlap of just the threshold suffices.
        margin: 1 where sides count pixels from edge to edge.
        threshold: the overlap.
    """

    competing: int
    most: int
    threshold: float
    all: bool = False
    by_class: bool = False
    inclusive: bool = False
    margin: int = 0


def _span(n: int) -> int:
    """Boxes of a span, where an image has n: a multiple of 32."""
    return min(_SPAN, -(-n // 32) * 32)


def suppress_temps(rows: int, n: int, dtype: Any) -> list[Temp]:
    """Temporaries for n boxes in each of some rows.

    The boxes, which ranks stay, the sources of those that stay, how many they are, and were before the last span; which
    boxes of a span overlap.
    """
    return [
        Temp((rows, n, SIDES), accumulation_type(dtype)),
        Temp((rows, n), np.uint8),
        Temp((rows, n), np.int32),
        *[Temp((rows,), np.int32)] * 2,
        Temp((rows, _span(n), _span(n) // 32), np.int32),
    ]


def suppress_calls(
    ctx: OpContext, dtype: Any, rule: Rule, keys: Array, places: Array, temps: tuple[Array, ...]
) -> list[Callable[[], Any]]:
    """Calls that find the boxes that stay.

    Args:
        keys, places: sorted; a box competes if its key is above negative infinity.
        temps: of `suppress_temps`: the boxes in the order of their sources; written are which ranks stay, the sources
            of those that stay, -1 behind them, and how many stay.
    """
    boxes, alive, sources, counts, before_span, overlaps = temps
    rows, n, _ = boxes.shape
    padded, competing, wide = keys.shape[1], rule.competing, keys.dtype
    flags = rule.all | rule.by_class << 1 | rule.inclusive << 2
    margin, threshold, lowest = (rounded_scalar(value, dtype) for value in (rule.margin, rule.threshold, -np.inf))
    sizes = map(np.int32, (rows * n, n, padded, competing, flags))
    calls = [ALIVE.over(ctx, wide, rows * n, (keys, alive, counts, *sizes, lowest))]
    span, words = overlaps.shape[1:]
    for begin in range(0, competing, span):
        end = min(begin + span, competing)
        sizes = map(np.int32, (n, padded, begin, end, words, rule.most, flags))
        arguments = (boxes, places, alive, counts, overlaps, *sizes, margin, threshold)
        calls.append(OVERLAPS.call(ctx, dtype, rows * words * _blocks(words), 32 * _WARPS, arguments))
        sizes = map(np.int32, (n, padded, begin, end, competing, words, rule.most))
        arguments = (places, alive, sources, counts, before_span, overlaps, *sizes)
        calls.append(SETTLE.call(ctx, np.float32, rows, span, arguments))
        if end < competing:
            sizes = map(np.int32, (n, padded, end, competing, flags))
            arguments = (boxes, places, alive, sources, counts, before_span, *sizes, margin, threshold)
            blocks = rows * -(-(competing - end) // _STRIKERS)
            calls.append(STRIKE.call(ctx, dtype, blocks, _STRIKERS, arguments))
    return calls


def _blocks(words: int) -> int:
    """Blocks of `OVERLAPS` for a word of an image."""
    return -(-words // _WARPS)
