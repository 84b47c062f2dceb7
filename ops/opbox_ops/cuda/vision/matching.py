"""Greedy one-to-one matching of rows and columns on a GPU, best pair first: a block matches all of an image.

Each column's best row is kept. The best of these is the next pair; then only the columns that wanted its row seek
another one, a warp a column. Of equal scores the first row is better, then the first column. For many rows and columns
`sorted_matching` has another way.

`vision/matching` is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...bound_calls import Call
from ...compute import OpContext, Temp
from ..kernel import KernelTemplate, threads_for
from .sorted_matching import MAX_PAIRS, sorted_calls, sorted_temps

__all__ = ["MATCHED", "PAIRS", "match_calls", "match_temps", "matchable", "matching"]

_THREADS = 512
_MAX_ROWS = 1 << 17
"""Maximum number of rows that a block matches: a warp reads 4,096 for each of its threads."""
_MAX_SCORES = 1 << 26
"""Maximum number of scores that a block reads, should all columns seek another row each time: some milliseconds."""
MATCHED = "int *column_of, int *row_of, int *best_row, A *best, int limit, A threshold"
"""The last parameters of a kernel that matches: the four arrays of `match_temps`, and how many pairs are taken."""
PAIRS = """__device__ bool better(A a, int a_row, int a_column, A b, int b_row, int b_column) {
  if (a_row < 0 || b_row < 0) return a_row >= 0;
  if (a > b || b > a) return a > b;
  return a_row != b_row ? a_row < b_row : a_column < b_column;
}
"""
"""Declared before such a kernel."""


def matching(score: str, before: str = "") -> str:
    """The body of a kernel that matches `rows` by `columns`.

    Args:
        score: an expression of `row` and `column`; what is not above `threshold` is no pair.
        before: statements that declare `rows`, `columns` and `widest`, the columns that arrays have scratch for.
    """
    return f"""  __shared__ A values[{_THREADS}];
  __shared__ int of_row[{_THREADS}];
  __shared__ int of_column[{_THREADS}];
{before}  column_of += (long long)blockIdx.x * rows;
  row_of += (long long)blockIdx.x * widest;
  best_row += (long long)blockIdx.x * widest;
  best += (long long)blockIdx.x * widest;
  const int lane = threadIdx.x % 32;
  // -1: there is none any more; -2: sought anew.
  for (int k = threadIdx.x; k < rows; k += blockDim.x) column_of[k] = -1;
  for (int k = threadIdx.x; k < widest; k += blockDim.x) {{
    row_of[k] = -1;
    best_row[k] = -2;
  }}
  __syncthreads();
  for (int taken = 0; taken < limit; ++taken) {{
    for (int column = threadIdx.x / 32; column < columns; column += blockDim.x / 32) {{
      if (best_row[column] != -2) continue;
      A value = 0;
      int place = -1;
      for (int row = lane; row < rows; row += 32) {{
        if (column_of[row] >= 0) continue;
        const A other = {score};
        if (other > threshold && better(other, row, column, value, place, column)) {{
          value = other;
          place = row;
        }}
      }}
      for (int apart = 16; apart > 0; apart /= 2) {{
        const A other = __shfl_down_sync(0xffffffffu, value, apart);
        const int other_place = __shfl_down_sync(0xffffffffu, place, apart);
        if (better(other, other_place, column, value, place, column)) {{
          value = other;
          place = other_place;
        }}
      }}
      if (lane == 0) {{
        best[column] = value;
        best_row[column] = place;
      }}
      __syncwarp();
    }}
    __syncthreads();
    A value = 0;
    int row = -1, column = -1;
    for (int k = threadIdx.x; k < columns; k += blockDim.x)
      if (best_row[k] >= 0 && better(best[k], best_row[k], k, value, row, column)) {{
        value = best[k];
        row = best_row[k];
        column = k;
      }}
    values[threadIdx.x] = value;
    of_row[threadIdx.x] = row;
    of_column[threadIdx.x] = column;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {{
      const int other = threadIdx.x + half;
      if (threadIdx.x < half && better(values[other], of_row[other], of_column[other], values[threadIdx.x],
                                       of_row[threadIdx.x], of_column[threadIdx.x])) {{
        values[threadIdx.x] = values[other];
        of_row[threadIdx.x] = of_row[other];
        of_column[threadIdx.x] = of_column[other];
      }}
      __syncthreads();
    }}
    row = of_row[0];
    column = of_column[0];
    if (row < 0) break;
    for (int k = threadIdx.x; k < columns; k += blockDim.x)
      if (best_row[k] == row) best_row[k] = k == column ? -1 : -2;
    if (threadIdx.x == 0) {{
      column_of[row] = column;
      row_of[column] = row;
    }}
    __syncthreads();
  }}
"""


def matchable(rows: int, columns: int) -> bool:
    """Return whether kernels match so many."""
    return rows * columns <= MAX_PAIRS


def _in_one_block(rows: int, columns: int) -> bool:
    return rows <= _MAX_ROWS and rows * columns * min(rows, columns) <= _MAX_SCORES


def match_temps(batch: int, rows: int, columns: int, dtype: Any) -> list[Temp]:
    """Temporaries of `match_calls`, which come first.

    The first two are the column of each row and the row of each column, -1 without one.
    """
    if not _in_one_block(rows, columns):
        return sorted_temps(batch, rows, columns, dtype)
    return [
        Temp((batch, rows), np.int32),
        *[Temp((batch, columns), np.int32)] * 2,
        Temp((batch, columns), accumulation_type(dtype)),
    ]


def match_calls(
    ctx: OpContext,
    block: KernelTemplate,
    scores: KernelTemplate,
    dtype: Any,
    arguments: Sequence[Any],
    limit: int,
    threshold: Any,
) -> list[Call]:
    """Calls that match.

    Args:
        ctx: its temporaries begin with those of `match_temps`.
        block: a kernel whose body is `matching`.
        scores: one for the same scores, whose body is `keyed`.
        dtype: their element type.
        arguments: what stands before the last parameters of both.
        limit: how many pairs are taken.
        threshold: what scores must be above.
    """
    (batch, rows), columns = ctx.temp[0].shape, ctx.temp[1].shape[1]
    if not _in_one_block(rows, columns):
        return sorted_calls(ctx, scores, dtype, arguments, limit, threshold)
    threads = threads_for(max(rows, 32 * columns), _THREADS)
    return [block.call(ctx, dtype, batch, threads, (*arguments, *ctx.temp[:4], np.int32(limit), threshold))]
