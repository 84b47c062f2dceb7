"""Greedy suppression on a GPU: of boxes in order, each that stays removes the later ones that it overlaps.

A block has an image. It goes through the boxes tile by tile: those of a tile settle among themselves, one after the
other, and the ones that stay then strike the later boxes, a thread a box. It does so for a span of some thousand boxes
in a launch; what stays of a span strikes the boxes behind it in a launch of many blocks. Memory is as many bytes as
there are boxes; a matrix of all pairs, as others keep it, would grow with the square.

`vision/suppress` is the reference. A box is left, top, right, bottom, area and class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...compute import Array, OpContext, Temp
from ..kernel import KERNELS, KernelTemplate, Moved, threads_for
from .arithmetic import ROUNDED, rounded_scalar

__all__ = ["OVERLAP", "SIDES", "Rule", "suppress_calls", "suppress_temps"]

SIDES = 6
"""Numbers of a box."""
_TILE = 512
_STRIKERS = 256
_SPAN = 4096
_LATER = 1 << 14
_TILES = _SPAN // _TILE

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
SUPPRESS = KernelTemplate(
    "opbox_suppress",
    "const A *boxes, const A *keys, const int *places, unsigned char *alive, int *sources, int *counts, "
    "int *before_span, int n, int padded, int begin, int end, int competing, int most, int flags, A margin, "
    "A threshold, A lowest",
    f"""  __shared__ A tile[{SIDES} * {_TILE}];
  __shared__ unsigned char live[{_TILE}];
  __shared__ int stay[{_TILE}];
  __shared__ int of_warp[32];
  const long long row = blockIdx.x, first = row * n;
  keys += row * padded;
  places += row * padded;
  if (begin == 0)
    for (int k = threadIdx.x; k < n; k += blockDim.x)
      alive[first + k] = k < competing && (flags & 1 || keys[k] > lowest);
  int count = begin == 0 ? 0 : counts[row];
  __syncthreads();
  if (threadIdx.x == 0) before_span[row] = count;
  for (int base = begin; base < end && count < most; base += blockDim.x) {{
    const int k = base + threadIdx.x, length = min(end - base, int(blockDim.x));
    const int source = k < end ? places[k] : 0;
    for (int c = 0; c < {SIDES}; ++c) tile[{SIDES} * threadIdx.x + c] = boxes[(first + source) * {SIDES} + c];
    live[threadIdx.x] = k < end && alive[first + k];
    __syncthreads();
    const A *mine = tile + {SIDES} * threadIdx.x;
    for (int q = 0; q < length; ++q) {{
      if (!live[q]) continue;
      if (threadIdx.x > q && live[threadIdx.x] && hits(tile + {SIDES} * q, mine, flags, margin, threshold))
        live[threadIdx.x] = 0;
      __syncthreads();
    }}
    const bool stays = live[threadIdx.x];
    const unsigned lanes = __ballot_sync(0xffffffffu, stays);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = __popc(lanes);
    __syncthreads();
    int before = __popc(lanes & ((1u << threadIdx.x % 32) - 1)), total = 0;
    for (int w = 0; w < blockDim.x / 32; ++w) {{
      if (w < threadIdx.x / 32) before += of_warp[w];
      total += of_warp[w];
    }}
    if (k < end) alive[first + k] = stays;
    if (stays) {{
      stay[before] = threadIdx.x;
      sources[first + count + before] = source;
    }}
    __syncthreads();
    count += total;
    for (int j = base + blockDim.x + threadIdx.x; j < end; j += blockDim.x) {{
      if (!alive[first + j]) continue;
      A other[{SIDES}];
      for (int c = 0; c < {SIDES}; ++c) other[c] = boxes[(first + places[j]) * {SIDES} + c];
      for (int s = 0; s < total; ++s)
        if (hits(tile + {SIDES} * stay[s], other, flags, margin, threshold)) {{
          alive[first + j] = 0;
          break;
        }}
    }}
    __syncthreads();
  }}
  if (threadIdx.x == 0) counts[row] = end < competing ? count : min(count, most);
  if (end == competing)
    for (int k = count + threadIdx.x; k < n; k += blockDim.x) sources[first + k] = -1;
""",
    (
        f"{_SPAN:,} boxes of an image, none of which overlap",
        lambda: Moved(
            _SPAN * (4 * SIDES + 13) + _TILES * (_TILES - 1) // 2 * _TILE * (4 * SIDES + 5), _SPAN * (4 * SIDES + 13)
        ),
    ),
    _HITS,
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
KERNELS += [SUPPRESS, STRIKE]


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


def suppress_temps(rows: int, n: int, dtype: Any) -> list[Temp]:
    """Temporaries for n boxes in each of some rows.

    The boxes, which ranks stay, the sources of those that stay, how many they are, and were before the last span.
    """
    return [
        Temp((rows, n, SIDES), accumulation_type(dtype)),
        Temp((rows, n), np.uint8),
        Temp((rows, n), np.int32),
        *[Temp((rows,), np.int32)] * 2,
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
    boxes = temps[0]
    rows, n, _ = boxes.shape
    padded, competing = keys.shape[1], rule.competing
    flags = rule.all | rule.by_class << 1 | rule.inclusive << 2
    margin, threshold, lowest = (rounded_scalar(value, dtype) for value in (rule.margin, rule.threshold, -np.inf))
    calls = []
    for begin in range(0, competing, _SPAN):
        end = min(begin + _SPAN, competing)
        sizes = map(np.int32, (n, padded, begin, end, competing, rule.most, flags))
        arguments = (boxes, keys, places, *temps[1:], *sizes, margin, threshold, lowest)
        calls.append(SUPPRESS.call(ctx, dtype, rows, threads_for(end - begin, _TILE), arguments))
        if end < competing:
            sizes = map(np.int32, (n, padded, end, competing, flags))
            arguments = (boxes, places, *temps[1:], *sizes, margin, threshold)
            blocks = rows * -(-(competing - end) // _STRIKERS)
            calls.append(STRIKE.call(ctx, dtype, blocks, _STRIKERS, arguments))
    return calls
