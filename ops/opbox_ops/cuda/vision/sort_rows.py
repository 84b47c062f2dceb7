"""Rows of any length in descending order on a GPU: a block sorts a piece of a row, and pieces are merged.

The network is Batcher's bitonic one. A step between elements further apart than a piece is a launch of its own; all
nearer ones are done by a block in shared memory. Equal keys keep their order, since a place decides between them; NaN
comes last. `cuda.order` sorts rows that one block has scratch for, in one launch.

Batcher, "Sorting Networks and Their Applications" (1968).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...compute import Array, OpContext, Temp
from ..kernel import KERNELS, KernelTemplate, Moved, threads_for

__all__ = ["sort_calls", "sort_temps"]

_PIECE = 2048
_ROWS, _PADDED = 8, 1 << 14
_MOVED = 16 * _ROWS * _PADDED
_WHAT = f"a step of {_ROWS} rows of {_PADDED:,}"

_BEFORE = """__device__ bool before(A a, int at, A b, int bt, int n) {
  if (at >= n || bt >= n) return at < bt;
  if (a > b || b > a) return a > b;
  return (a != a) == (b != b) ? at < bt : b != b;
}
"""
TOGETHER = KernelTemplate(
    "opbox_sort_pieces",
    "A *keys, int *places, int n, int padded, int piece, int from, int to",
    f"""  __shared__ A key[{_PIECE}];
  __shared__ int place[{_PIECE}];
  const int pieces = padded / piece, offset = blockIdx.x % pieces * piece;
  const long long begin = (long long)(blockIdx.x / pieces) * padded + offset;
  for (int i = threadIdx.x; i < piece; i += blockDim.x) {{
    place[i] = from == 2 ? offset + i : places[begin + i];
    key[i] = place[i] < n ? keys[begin + i] : A(0);
  }}
  __syncthreads();
  for (int size = from; size <= to; size *= 2)
    for (int apart = min(size, piece) / 2; apart > 0; apart /= 2) {{
      for (int t = threadIdx.x; t < piece / 2; t += blockDim.x) {{
        const int i = 2 * t - (t & (apart - 1)), j = i + apart;
        const A a = key[i], b = key[j];
        const int at = place[i], bt = place[j];
        if (before(b, bt, a, at, n) == (((offset + i) & size) == 0)) {{
          key[i] = b;
          key[j] = a;
          place[i] = bt;
          place[j] = at;
        }}
      }}
      __syncthreads();
    }}
  for (int i = threadIdx.x; i < piece; i += blockDim.x) {{
    keys[begin + i] = key[i];
    places[begin + i] = place[i];
  }}
""",
    (_WHAT, lambda: Moved(_MOVED, _MOVED)),
    _BEFORE,
)
APART = KernelTemplate(
    "opbox_sort_apart",
    "A *keys, int *places, int n, int padded, int size, int apart, int pairs",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= pairs) return;
  const int t = number % (padded / 2), i = 2 * t - (t & (apart - 1));
  const long long one = (long long)(number / (padded / 2)) * padded + i, other = one + apart;
  const A a = keys[one], b = keys[other];
  const int at = places[one], bt = places[other];
  if (before(b, bt, a, at, n) == ((i & size) == 0)) {
    keys[one] = b;
    keys[other] = a;
    places[one] = bt;
    places[other] = at;
  }
""",
    (_WHAT, lambda: Moved(_MOVED, _MOVED)),
    _BEFORE,
)
KERNELS += [TOGETHER, APART]


def sort_temps(rows: int, n: int, dtype: Any) -> list[Temp]:
    """Temporaries for rows of n: keys and places (rows, the next power of two)."""
    shape = (rows, max(2, 1 << (n - 1).bit_length()))
    return [Temp(shape, accumulation_type(dtype)), Temp(shape, np.int32)]


def sort_calls(ctx: OpContext, keys: Array, places: Array, n: int) -> list[Callable[[], Any]]:
    """Calls that sort the first n keys of each row, greatest first, and write where they came from to `places`."""
    rows, padded = keys.shape
    piece = min(padded, _PIECE)
    block = threads_for(piece // 2, 1024)

    def pieces(first: int, last: int) -> Callable[[], Any]:
        arguments = (keys, places, *map(np.int32, (n, padded, piece, first, last)))
        return TOGETHER.call(ctx, keys.dtype, rows * padded // piece, block, arguments)

    calls = [pieces(2, piece)]
    size = 2 * piece
    while size <= padded:
        apart = size // 2
        while apart >= piece:
            sizes = map(np.int32, (n, padded, size, apart, keys.size // 2))
            calls.append(APART.over(ctx, keys.dtype, keys.size // 2, (keys, places, *sizes)))
            apart //= 2
        calls.append(pieces(size, size))
        size *= 2
    return calls
