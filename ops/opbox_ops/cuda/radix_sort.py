"""Rows of whole numbers in ascending order on a GPU, and where each number came from: equal ones keep their order.

Short rows need one launch: a thread counts the numbers before its own. Longer rows are sorted by their digits, the
lowest first. Per digit a block counts those of a tile, a block adds up the counts of one digit value over the tiles,
and a block sorts the numbers of its tile and moves them. Counts are whole numbers and places follow from them, so that
every run has the same order. Launches depend on sizes only: a graph records them.

Satish, Harris and Garland, "Designing Efficient Sorting Algorithms for Manycore GPUs" (2009).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bound_calls import Call
from ..compute import Array, Arrays, Temp
from .kernel import KERNELS, KernelTemplate, Moved, threads_for

__all__ = ["LOWER_BOUND", "bits_for", "radix_sort", "radix_temps"]

_THREADS, _ROUNDS = 256, 8
_TILE = _THREADS * _ROUNDS
"""Numbers that a block moves."""
_BITS = 8
"""Maximum number of bits of a digit: a thread for each of its values."""
_SHORT = 2048
"""Maximum length of a row whose numbers are ranked in one launch."""
_MAX_COMPARISONS = 1 << 31
"""Maximum number of comparisons of such a launch: about a millisecond."""
_RANKERS = 64
"""Threads of a block that ranks: small blocks, so that a single row uses many processors."""
_ROWS, _LENGTH = 32, 1 << 18
_WHAT = f"{_ROWS} rows of {_LENGTH:,}"
_ANY = ("float32",)
"""Kernels of whole numbers: one text for all element types."""

LOWER_BOUND = """// How many of the first n numbers, which ascend, are less than `bound`.
__device__ int lower_bound(const unsigned *sorted, int n, unsigned bound) {
  int low = 0, high = n;
  while (low < high) {
    const int middle = low + (high - low) / 2;
    if (sorted[middle] < bound) low = middle + 1;
    else high = middle;
  }
  return low;
}
"""
"""Declared before a kernel that searches what `radix_sort` has sorted."""

_RANK = KernelTemplate(
    "opbox_rank",
    "const unsigned *keys, unsigned *sorted, int *order, int elements, int n",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int own = number % n;
  const long long first = number - own;
  const unsigned key = keys[number];
  int before = 0;
  for (int k = 0; k < own; ++k) before += keys[first + k] <= key;
  for (int k = own + 1; k < n; ++k) before += keys[first + k] < key;
  sorted[first + before] = key;
  order[first + before] = own;
""",
    ("32 rows of 2,048", lambda: Moved(12 * 32 * _SHORT, 12 * 32 * _SHORT)),
    types=_ANY,
)
_COUNT = KernelTemplate(
    "opbox_radix_count",
    "const unsigned *keys, int *counts, int n, int tiles, int shift, int digits",
    f"""  __shared__ int own[{1 << _BITS}];
  const int row = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  for (int d = threadIdx.x; d < digits; d += blockDim.x) own[d] = 0;
  __syncthreads();
  for (int round = 0; round < {_ROUNDS}; ++round) {{
    const long long k = (long long)tile * {_TILE} + round * {_THREADS} + threadIdx.x;
    if (k < n) atomicAdd(own + (keys[(long long)row * n + k] >> shift & (digits - 1)), 1);
  }}
  __syncthreads();
  for (int d = threadIdx.x; d < digits; d += blockDim.x)
    counts[((long long)row * digits + d) * tiles + tile] = own[d];
""",
    (_WHAT, lambda: Moved(4 * _ROWS * _LENGTH, 4 * _ROWS * _LENGTH)),
    types=_ANY,
)
_OFFSETS = KernelTemplate(
    "opbox_radix_offsets",
    "int *counts, int *totals, int tiles",
    f"""  __shared__ int scratch[{_THREADS}];
  int *row = counts + (long long)blockIdx.x * tiles;
  int before = 0;
  for (int start = 0; start < tiles; start += blockDim.x) {{
    const int tile = start + threadIdx.x, own = tile < tiles ? row[tile] : 0;
    scratch[threadIdx.x] = own;
    __syncthreads();
    for (int step = 1; step < blockDim.x; step *= 2) {{
      const int further = threadIdx.x >= step ? scratch[threadIdx.x - step] : 0;
      __syncthreads();
      scratch[threadIdx.x] += further;
      __syncthreads();
    }}
    if (tile < tiles) row[tile] = before + scratch[threadIdx.x] - own;
    before += scratch[blockDim.x - 1];
    __syncthreads();
  }}
  if (threadIdx.x == 0) totals[blockIdx.x] = before;
""",
    (
        _WHAT,
        lambda: Moved(8 * _ROWS * (_LENGTH // _TILE << _BITS), 8 * _ROWS * (_LENGTH // _TILE << _BITS)),
    ),
    types=_ANY,
)
_MOVE = KernelTemplate(
    "opbox_radix_move",
    "const unsigned *keys, const int *order, unsigned *moved_keys, int *moved_order, const int *counts, "
    "const int *totals, int n, int tiles, int shift, int bits, int first",
    f"""  __shared__ int before[{_THREADS}];
  __shared__ int base[{_THREADS}];
  __shared__ int of_warp[{_THREADS // 32}][{_THREADS}];
  __shared__ unsigned tile_keys[{_TILE}];
  __shared__ int tile_order[{_TILE}];
  const int row = blockIdx.x / tiles, tile = blockIdx.x % tiles, digits = 1 << bits;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const long long begin = (long long)row * n, from = (long long)tile * {_TILE};
  // A thread has a value of the digit. Smaller ones stand before it in the row, and those of earlier tiles.
  const int total = threadIdx.x < digits ? totals[row * digits + threadIdx.x] : 0;
  const int first_place = sum_before(total, before) +
                          (threadIdx.x < digits ? counts[((long long)row * digits + threadIdx.x) * tiles + tile] : 0);
  // The rank of each number among those of the tile with its digit.
  unsigned own[{_ROUNDS}];
  int ranks[{_ROUNDS}], seen = 0;
#pragma unroll
  for (int round = 0; round < {_ROUNDS}; ++round) {{
    const long long k = from + round * {_THREADS} + threadIdx.x;
    const bool inside = k < n;
    own[round] = inside ? keys[begin + k] : 0;
    const int digit = own[round] >> shift & (digits - 1);
    for (int w = 0; w < {_THREADS // 32}; ++w) of_warp[w][threadIdx.x] = 0;
    __syncthreads();
    unsigned alike = __ballot_sync(0xffffffffu, inside);
    for (int bit = 0; bit < bits; ++bit) {{
      const bool set = digit >> bit & 1;
      const unsigned lanes = __ballot_sync(0xffffffffu, set);
      alike &= set ? lanes : ~lanes;
    }}
    const int rank = __popc(alike & ((1u << lane) - 1));
    if (inside && rank == 0) of_warp[warp][digit] = __popc(alike);
    __syncthreads();
    for (int w = 0; w < {_THREADS // 32}; ++w) {{
      const int count = of_warp[w][threadIdx.x];
      of_warp[w][threadIdx.x] = seen;
      seen += count;
    }}
    __syncthreads();
    ranks[round] = of_warp[warp][digit] + rank;
    __syncthreads();
  }}
  // The tile is sorted in shared memory, so that neighbours are written to neighbours.
  const int start = sum_before(seen, before);
  before[threadIdx.x] = start;
  base[threadIdx.x] = first_place - start;
  __syncthreads();
#pragma unroll
  for (int round = 0; round < {_ROUNDS}; ++round) {{
    const long long k = from + round * {_THREADS} + threadIdx.x;
    if (k >= n) continue;
    const int place = before[own[round] >> shift & (digits - 1)] + ranks[round];
    tile_keys[place] = own[round];
    tile_order[place] = first ? int(k) : order[begin + k];
  }}
  __syncthreads();
  for (int place = threadIdx.x; place < {_TILE} && from + place < n; place += {_THREADS}) {{
    const unsigned key = tile_keys[place];
    const long long to = begin + base[key >> shift & (digits - 1)] + place;
    moved_keys[to] = key;
    moved_order[to] = tile_order[place];
  }}
""",
    (_WHAT, lambda: Moved(16 * _ROWS * _LENGTH, 16 * _ROWS * _LENGTH)),
    """// The sum of what the threads before have; all of a block call it.
__device__ int sum_before(int own, int *scratch) {
  scratch[threadIdx.x] = own;
  __syncthreads();
  for (int step = 1; step < blockDim.x; step *= 2) {
    const int further = threadIdx.x >= step ? scratch[threadIdx.x - step] : 0;
    __syncthreads();
    scratch[threadIdx.x] += further;
    __syncthreads();
  }
  const int before = scratch[threadIdx.x] - own;
  __syncthreads();
  return before;
}
""",
    types=_ANY,
)
KERNELS += [_RANK, _COUNT, _OFFSETS, _MOVE]


def bits_for(largest: int) -> int:
    """Bits of numbers up to `largest`."""
    return max(1, largest.bit_length())


def _ranked(rows: int, n: int) -> bool:
    """Whether rows of n are sorted in one launch."""
    return n <= _SHORT and rows * n * n <= _MAX_COMPARISONS


def _digits(bits: int) -> list[tuple[int, int]]:
    """First bit and length of the digits, which are as long as one another where that is possible."""
    passes = -(-bits // _BITS)
    size = -(-bits // passes)
    return [(shift, min(size, bits - shift)) for shift in range(0, bits, size)]


def radix_temps(rows: int, n: int, bits: int) -> list[Temp]:
    """Temporaries for rows of n numbers of so many bits (at most 32), which kernels read without a sign.

    The numbers, which the caller writes; the same again, and twice their order; counts of digits in tiles and in rows.
    """
    rank, tiles = _ranked(rows, n), -(-n // _TILE)
    digits = 0 if rank else 1 << _digits(bits)[0][1]
    return [
        *[Temp((rows, n), np.int32)] * 3,
        Temp((0 if rank else rows, n), np.int32),
        *(Temp((rows, digits, tiles), np.int32), Temp((rows, digits), np.int32)),
    ]


def radix_sort(xp: Any, temps: Arrays, bits: int) -> tuple[list[Call], Array, Array]:
    """Calls that sort each row, and where the numbers are then, and the position that each had in its row.

    Args:
        xp: the array module.
        temps: of `radix_temps`; the first are the numbers.
        bits: of the numbers.
    """
    keys, spare_keys, order, spare_order, counts, totals = temps
    rows, n = keys.shape
    if _ranked(rows, n):
        arguments = (keys, spare_keys, order, np.int32(rows * n), np.int32(n))
        return [_RANK.launch(xp, np.float32, -(-rows * n // _RANKERS), _RANKERS, arguments)], spare_keys, order
    tiles = counts.shape[2]
    calls: list[Call] = []
    for shift, size in _digits(bits):
        digits = 1 << size
        numbers = [np.int32(number) for number in (n, tiles, shift)]
        calls += [
            _COUNT.launch(xp, np.float32, rows * tiles, _THREADS, (keys, counts, *numbers, np.int32(digits))),
            _OFFSETS.launch(
                xp, np.float32, rows * digits, threads_for(tiles, _THREADS), (counts, totals, np.int32(tiles))
            ),
            _MOVE.launch(
                xp,
                np.float32,
                rows * tiles,
                _THREADS,
                (keys, order, spare_keys, spare_order, counts, totals, *numbers, np.int32(size), np.int32(shift == 0)),
            ),
        ]
        keys, spare_keys, order, spare_order = spare_keys, keys, spare_order, order
    return calls, keys, order
