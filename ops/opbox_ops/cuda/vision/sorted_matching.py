"""Greedy one-to-one matching of many rows and columns on a GPU: all pairs are sorted, then a block takes the best.

A pair is taken if neither its row nor its column has a partner yet. The block looks at as many pairs at a time as it
has threads. Those that are free settle among themselves, the best one first. A launch goes through a span of the pairs,
so that a call can be stopped in between. The images of a batch are matched in groups: memory is bounded.

`matching` has what fewer rows and columns need, `vision/matching` the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...bound_calls import Call
from ...compute import OpContext, Temp
from ..kernel import KERNELS, KernelTemplate, Moved
from ..radix_sort import radix_sort, radix_temps

__all__ = ["KEYS", "MAX_PAIRS", "SCORED", "keyed", "sorted_calls", "sorted_temps"]

MAX_PAIRS = 1 << 27
"""Maximum number of pairs of an image: 2 GiB of scratch, and some tenths of a second."""
_GROUP = 1 << 23
"""Pairs that are sorted at a time, unless an image has more."""
_THREADS = 1024
_SPAN = 4096 * _THREADS
"""Pairs that a launch looks at: some milliseconds."""
_BITS = 32
_IMAGES, _ROWS, _COLUMNS = 1, 2048, 2048
_PAIRS = _IMAGES * _ROWS * _COLUMNS

SCORED = "const int *earlier, unsigned *keys, int threads, int first_image, int pairs, int high, A threshold"
"""The last parameters of a kernel that writes the keys of pairs, best first."""
KEYS = """// Numbers that ascend where scores descend; the last are no scores.
__device__ unsigned key_of(float score, int) {
  unsigned bits = __float_as_uint(score);
  if (bits == 0x80000000u) bits = 0;
  return bits >> 31 ? bits : bits ^ 0x7fffffffu;
}
__device__ unsigned key_of(double score, int high) {
  unsigned long long bits = __double_as_longlong(score);
  if (bits == 0x8000000000000000ull) bits = 0;
  if (!(bits >> 63)) bits ^= 0x7fffffffffffffffull;
  return unsigned(high ? bits >> 32 : bits);
}
"""
"""Declared before such a kernel."""


def keyed(score: str, real: str = "true") -> str:
    """The body of a kernel that writes the keys of pairs.

    Args:
        score: an expression of `image`, `row` and `column`; what is not above `threshold` is no pair.
        real: whether there is such a pair at all.
    """
    return f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= threads) return;
  // Double precision is sorted twice: the lower halves first.
  const int image = first_image + number / pairs, pair = high ? earlier[number] : number % pairs;
  const int row = pair / columns, column = pair % columns;
  unsigned key = 0xffffffffu;
  if ({real}) {{
    const A value = {score};
    if (value > threshold) key = key_of(value, high);
  }}
  keys[number] = key;
"""


TAKE = KernelTemplate(
    "opbox_take_pairs",
    "const unsigned *keys, const int *order, const int *earlier, int *column_of, int *row_of, int *taken, int rows, "
    "int columns, int begin, int end, int most, int twice",
    f"""  __shared__ int of_row[{_THREADS}];
  __shared__ int of_column[{_THREADS}];
  __shared__ unsigned live[{_THREADS // 32}];
  const long long first = (long long)blockIdx.x * rows * columns;
  column_of += (long long)blockIdx.x * rows;
  row_of += (long long)blockIdx.x * columns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (begin == 0) {{
    for (int k = threadIdx.x; k < rows; k += blockDim.x) column_of[k] = -1;
    for (int k = threadIdx.x; k < columns; k += blockDim.x) row_of[k] = -1;
  }}
  int count = begin == 0 ? 0 : taken[blockIdx.x];
  __syncthreads();
  for (int base = begin; base < end && count < most; base += blockDim.x) {{
    // Behind the pairs stands what is none.
    if (keys[first + base] == 0xffffffffu) break;
    const int k = base + threadIdx.x;
    const bool real = k < end && keys[first + k] != 0xffffffffu;
    int pair = real ? order[first + k] : 0;
    if (twice) pair = earlier[first + pair];
    const int row = pair / columns, column = pair % columns;
    bool free = real && column_of[row] < 0 && row_of[column] < 0;
    of_row[threadIdx.x] = row;
    of_column[threadIdx.x] = column;
    unsigned lanes = __ballot_sync(0xffffffffu, free);
    if (lane == 0) live[warp] = lanes;
    if (!__syncthreads_or(free)) continue;
    for (int w = 0; w < {_THREADS // 32} && count < most;) {{
      const unsigned word = live[w];
      if (!word) {{
        ++w;
        continue;
      }}
      const int best = 32 * w + __ffs(word) - 1, best_row = of_row[best], best_column = of_column[best];
      __syncthreads();
      if (threadIdx.x == best) {{
        column_of[row] = column;
        row_of[column] = row;
      }}
      free = free && row != best_row && column != best_column;
      lanes = __ballot_sync(0xffffffffu, free);
      if (lane == 0) live[warp] = lanes;
      __syncthreads();
      ++count;
    }}
    __syncthreads();
  }}
  if (threadIdx.x == 0) taken[blockIdx.x] = count;
""",
    (
        f"{_IMAGES} matrix of {_ROWS:,} by {_COLUMNS:,}",
        lambda: Moved(8 * _PAIRS + 4 * _IMAGES * (_ROWS + _COLUMNS), 8 * _PAIRS + 4 * _IMAGES * (_ROWS + _COLUMNS)),
    ),
    types=("float32",),
)
KERNELS.append(TAKE)


def _group(batch: int, pairs: int) -> int:
    """Images whose pairs are sorted together."""
    return min(batch, max(1, _GROUP // pairs))


def sorted_temps(batch: int, rows: int, columns: int, dtype: Any) -> list[Temp]:
    """Temporaries: the column of each row and the row of each column, -1 without one; pairs taken; those of the sort,
    and an order that a second sort begins from."""
    pairs = rows * columns
    group = _group(batch, pairs)
    twice = accumulation_type(dtype).itemsize > 4
    return [
        *(Temp((batch, rows), np.int32), Temp((batch, columns), np.int32), Temp((batch,), np.int32)),
        *radix_temps(group, pairs, _BITS),
        Temp((group if twice else 0, pairs), np.int32),
    ]


def sorted_calls(
    ctx: OpContext, scores: KernelTemplate, dtype: Any, arguments: Sequence[Any], limit: int, threshold: Any
) -> list[Call]:
    """Calls that match.

    Args:
        ctx: its temporaries begin with those of `sorted_temps`.
        scores: a kernel `keyed`.
        dtype: its element type.
        arguments: what stands before those of SCORED.
        limit: how many pairs are taken.
        threshold: what scores must be above.
    """
    column_of, row_of, taken, *sorting, earlier = ctx.temp[:10]
    (batch, rows), columns = column_of.shape, row_of.shape[1]
    group, pairs = len(sorting[0]), rows * columns
    calls: list[Call] = []
    for start in range(0, batch, group):
        images = min(group, batch - start)
        parts = [array[:images] for array in sorting]
        count = images * pairs

        def keys(high: bool, count: int = count, start: int = start) -> Call:
            numbers = map(np.int32, (count, start, pairs, high))
            return scores.over(ctx, dtype, count, (*arguments, earlier, sorting[0], *numbers, threshold))

        sort, sorted_keys, order = radix_sort(ctx.xp, parts, _BITS)
        calls += [keys(False), *sort]
        if earlier.size:
            calls += [partial(ctx.xp.copyto, earlier[:images], order), keys(True), *sort]
        own = slice(start, start + images)
        for begin in range(0, pairs, _SPAN):
            end, most = min(begin + _SPAN, pairs), min(limit, rows, columns)
            numbers = map(np.int32, (rows, columns, begin, end, most, earlier.size > 0))
            state = (column_of[own], row_of[own], taken[own])
            calls.append(TAKE.call(ctx, np.float32, images, _THREADS, (sorted_keys, order, earlier, *state, *numbers)))
    return calls
