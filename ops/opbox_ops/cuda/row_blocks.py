"""How kernels share rows out among threads: lines along the middle axis of an array (outer, n, inner).

A block has some neighbouring rows, and several threads (lanes) for each: memory is read in the order in which it lies,
whether rows lie one behind the other (inner 1) or beside each other. Where there are too few rows to keep a device
busy, a row is cut into slices, a block each: a first launch writes what each slice has added up, a second joins the
slices, in one order in each block, and goes on. Where a row is one slice, a single launch does both.

`ROW` is the CUDA text: `row_here()` is a thread's row, `add_over_lanes` adds its lanes' values up, for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import OpContext, Temp
from .kernel import KernelTemplate

__all__ = ["APPLY", "JOIN", "LANES", "MOMENTS", "ROW", "ROW_SIZES", "STATISTICS", "WHOLE", "RowBlocks"]

THREADS = 256
_WARP = 32
_MIN_BLOCKS = 264
"""Blocks that keep a device busy: two for each processor of an H100. With fewer, rows are cut into slices."""
_WANTED_BLOCKS = 528
_ENOUGH_BLOCKS = 2112
"""Blocks that fill a device twice."""
_PER_LANE = 8
"""Number of a row's elements for a lane, where there are enough rows; half of it where there are few."""
_WORTH_SLICES = 32
"""Elements for a lane that a row must have more of to be cut into slices: fewer are not worth a second launch."""
_MAX_SLICES = 512
WHOLE, STATISTICS, APPLY = range(3)
"""Phases of a launch: rows in one go; what a slice adds up; what comes of the whole row's sums."""

ROW_SIZES = "int outer, int n, int inner, int width, int lanes, int slices"
LANES = """// What values of `lanes` threads, `width` apart, are together, for each of them; all of a block call it.
#define OPBOX_OVER_LANES(name, V, JOIN)                                                           \\
  __device__ V name(V value, V *scratch, int width, int lanes) {                                  \\
    const int group = width * lanes, t = threadIdx.x;                                             \\
    for (int by = 16; by >= width; by /= 2)                                                       \\
      if (by < group) {                                                                           \\
        const V other = __shfl_xor_sync(0xffffffffu, value, by);                                  \\
        value = JOIN;                                                                             \\
      }                                                                                           \\
    if (group <= 32) return value;                                                                \\
    scratch[t] = value;                                                                           \\
    __syncthreads();                                                                              \\
    const int first = (t & -group) + (t & 31);                                                    \\
    value = scratch[first];                                                                       \\
    for (int k = 32; k < group; k += 32) {                                                        \\
      const V other = scratch[first + k];                                                         \\
      value = JOIN;                                                                               \\
    }                                                                                             \\
    __syncthreads();                                                                              \\
    return value;                                                                                 \\
  }
OPBOX_OVER_LANES(add_over_lanes, A, value + other)
OPBOX_OVER_LANES(greatest_over_lanes, A, other > value || other != other ? other : value)
OPBOX_OVER_LANES(least_over_lanes, int, other < value ? other : value)
"""
MOMENTS = """// Mean, sum of squares about it, and count of some values; Chan's formula joins them.
struct Moments {
  A mean, squares, count;
};
__device__ void join_moments(Moments &moments, A mean, A squares, A count) {
  if (count == 0) return;
  const A all = moments.count + count, share = count / all, delta = mean - moments.mean;
  moments.mean += delta * share;
  moments.squares += squares + delta * delta * (moments.count * share);
  moments.count = all;
}
// The first `count` of four values.
__device__ void add_values(Moments &moments, const A *x, int count) {
  if (count == 4) {
    const A mean = ((x[0] + x[1]) + (x[2] + x[3])) * A(0.25);
    const A a = x[0] - mean, b = x[1] - mean, c = x[2] - mean, d = x[3] - mean;
    join_moments(moments, mean, (a * a + b * b) + (c * c + d * d), 4);
  } else {
#pragma unroll
    for (int j = 0; j < 3; ++j)
      if (j < count) join_moments(moments, x[j], 0, 1);
  }
}
// Those of all lanes, which have `count` values together.
__device__ Moments moments_over_lanes(const Moments &own, A count, A *scratch, int width, int lanes) {
  Moments all;
  all.count = count;
  all.mean = add_over_lanes(own.mean * own.count, scratch, width, lanes) / max(count, A(1));
  const A delta = own.mean - all.mean;
  all.squares = add_over_lanes(own.squares + delta * delta * own.count, scratch, width, lanes);
  return all;
}
// How many of n elements a slice has that takes `lanes` of every slices * lanes.
__device__ A slice_count(int n, int slice, int slices, int lanes) {
  if (slices == 1) return A(n);
  const int by = slices * lanes, whole = n / by;
  return A(whole * lanes + max(0, min(lanes, n - whole * by - slice * lanes)));
}
"""
"""Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products" (1962); Chan, Golub and LeVeque,
"Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979)."""
ROW = (
    LANES
    + """// A thread's row: its number and start, and which elements the thread has: first, first + by, ... below end.
// An array has less than 2^31 elements, so that 32 bits count beyond them; 64 bits take more instructions each time.
struct Row {
  int number, lane, slice;
  bool inside;
  unsigned start, first, by, end;
};
__device__ Row row_here(int outer, int n, int inner, int width, int lanes, int slices) {
  // width and lanes are powers of two; a division takes as long as a dozen elements.
  const int t = threadIdx.x, shift = __popc(width - 1), group_shift = shift + __popc(lanes - 1);
  const int tiles = (inner + width - 1) >> shift, block = slices == 1 ? blockIdx.x : blockIdx.x / slices;
  const int tile = block * int(blockDim.x >> group_shift) + (t >> group_shift);
  const int before = tiles == 1 ? tile : tile / tiles, after = ((tile - before * tiles) << shift) + (t & (width - 1));
  Row row;
  row.inside = before < outer && after < inner;
  row.lane = (t >> shift) & (lanes - 1);
  row.slice = blockIdx.x - block * slices;
  row.number = row.inside ? before * inner + after : 0;
  row.start = row.inside ? unsigned(before) * n * inner + after : 0;
  row.first = row.slice * lanes + row.lane;
  row.by = slices * lanes;
  row.end = row.inside ? n : 0;
  return row;
}
"""
)
JOIN = "for (int s = row.inside ? row.lane : slices; s < slices; s += lanes)"
"""The loop over the slices of a thread's row, shared out among its lanes."""


@dataclass(frozen=True)
class RowBlocks:
    """The rows of an array (outer, n, inner), and the blocks that have them."""

    outer: int
    n: int
    inner: int

    @cached_property
    def width(self) -> int:
        """Neighbouring rows of a block, for which neighbouring threads read neighbouring elements."""
        return min(_WARP, 1 << (self.inner - 1).bit_length())

    @cached_property
    def lanes(self) -> int:
        """Threads for a row's slice: a power of two."""
        lanes = self._lanes(_PER_LANE)
        return lanes if self._blocks(lanes) >= _ENOUGH_BLOCKS else self._lanes(_PER_LANE // 2)

    def _lanes(self, elements: int) -> int:
        return min(THREADS // self.width, 1 << max(0, (self.n - 1) // elements).bit_length())

    def _blocks(self, lanes: int) -> int:
        tiles = self.outer * -(-self.inner // self.width)
        return -(-tiles // (THREADS // (self.width * lanes)))

    @cached_property
    def row_blocks(self) -> int:
        """Blocks that have a slice of all rows."""
        return self._blocks(self.lanes)

    @cached_property
    def slices(self) -> int:
        """Slices of each row."""
        if self.row_blocks >= _MIN_BLOCKS or self.n <= _WORTH_SLICES * self.lanes:
            return 1
        wanted = -(-_WANTED_BLOCKS // self.row_blocks)
        return max(1, min(wanted, self.n // (_PER_LANE // 2 * self.lanes), _MAX_SLICES))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.outer * self.inner

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The arguments that ROW_SIZES declares."""
        return tuple(map(np.int32, (self.outer, self.n, self.inner, self.width, self.lanes, self.slices)))

    def parts(self, numbers: int, dtype: Any) -> Temp:
        """The temporary for so many numbers of each slice of each row, for arrays of `dtype`."""
        sliced = self.slices > 1
        return Temp((numbers, self.slices, self.rows) if sliced else (1,), accumulation_type(dtype))

    def calls(
        self,
        ctx: OpContext,
        kernel: KernelTemplate,
        dtype: Any,
        arguments: Sequence[Any],
        sliced: Sequence[int] = (STATISTICS, APPLY),
    ) -> list[Callable[[], Any]]:
        """The launches of a kernel whose last parameters are ROW_SIZES and the phase: one, or one for each phase."""
        scratch = THREADS * accumulation_type(dtype).itemsize
        phases = (WHOLE,) if self.slices == 1 else sliced
        blocks = self.row_blocks * self.slices
        return [
            kernel.call(ctx, dtype, blocks, THREADS, (*arguments, *self.numbers, np.int32(phase)), scratch)
            for phase in phases
        ]
