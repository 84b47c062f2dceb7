"""Rows added up at positions on a GPU, those of a position in their order: the sums are the same in every run.

A block has one row and a tile of its columns. It goes through the positions: the first row of a position adds up all
that go there, the others leave. Rows are read once, and each sum is read and written once: the least possible.
Positions are read by every block, from the cache; that is why only so many rows are taken. More are added by atomics
(`add.at` of CuPy), in an order that differs from run to run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Array
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, compiled

__all__ = ["MAX_ROWS", "add_in_order"]

MAX_ROWS = 1 << 15
_THREADS = 128
_ROWS, _WIDTH = 4096, 512

ADD_ROWS = KernelTemplate(
    "opbox_add_rows",
    "const long long *where, const A *rows, A *total, int count, int width",
    f"""  __shared__ char same[{_THREADS}];
  const int tiles = (width + blockDim.x - 1) / blockDim.x;
  const int row = blockIdx.x / tiles, column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  const long long position = where[row];
  for (int base = 0; base < row; base += blockDim.x) {{
    const int other = base + threadIdx.x;
    if (__syncthreads_or(other < row && where[other] == position)) return;
  }}
  const bool inside = column < width;
  A sum = inside ? total[position * width + column] : A(0);
  for (int base = row; base < count; base += blockDim.x) {{
    const int other = base + threadIdx.x;
    same[threadIdx.x] = other < count && where[other] == position;
    if (!__syncthreads_or(same[threadIdx.x])) continue;
    for (int k = 0; k < blockDim.x; ++k)
      if (same[k] && inside) sum += rows[(long long)(base + k) * width + column];
    __syncthreads();
  }}
  if (inside) total[position * width + column] = sum;
""",
    (
        "4,096 rows of 512",
        lambda: Moved(4 * 3 * _ROWS * _WIDTH + 8 * _ROWS, 4 * 3 * _ROWS * _WIDTH + 8 * _ROWS),
    ),
)
KERNELS.append(ADD_ROWS)


def add_in_order(xp: Any, where: Array, rows: Array, total: Array) -> bool:
    """Add each of `rows` (n, width) to the row of `total` that `where` (n,), of int64, names; False: it cannot."""
    count, width = rows.shape
    if not (
        rows.dtype == total.dtype
        and rows.dtype in (np.float32, np.float64)
        and where.dtype == np.int64
        and all(array.flags.c_contiguous for array in (where, rows, total))
        and count <= MAX_ROWS
        and max(rows.size, total.size) <= MAX_ELEMENTS
    ):
        return False
    if rows.size and total.size:
        blocks = count * -(-width // _THREADS)
        arguments = (where, rows, total, np.int32(count), np.int32(width))
        compiled(xp, ADD_ROWS, rows.dtype.name)((blocks,), (_THREADS,), arguments)
    return True
