"""How kernels share arrays of channels last, which are rows of channels, out among blocks.

A block has 32 channels, one for each thread of a warp, of a slice of the rows: a warp reads and writes rows of memory.
There are so many slices that the device is busy. What is added up over the rows is added up by slice, into numbers
(slice, channel), and these in one order by whoever needs the whole.
"""

from __future__ import annotations

__all__ = ["PLACE", "SIZES", "THREADS", "blocks_for", "slices_of"]

THREADS = 256
_LANES = 32
_ROWS_AT_ONCE = THREADS // _LANES
_MAX_SLICES, _MAX_BLOCKS = 64, 1024
_MIN_ROWS = 8 * _ROWS_AT_ONCE
"""Minimum number of rows of a slice: fewer are not worth the joining."""

SIZES = "int rows, int channels, int slices"
PLACE = """  extern __shared__ A scratch[];
  const int t = threadIdx.x, row = t / 32, rows_at_once = blockDim.x / 32;
  const int slice = blockIdx.x % slices, c = blockIdx.x / slices * 32 + t % 32;
"""
"""A thread's channel `c`, which may be beyond the last, and its first row in its block's slice."""


def slices_of(rows: int, channels: int) -> int:
    """How many slices the rows are shared out among."""
    return max(1, min(_MAX_SLICES, _MAX_BLOCKS // _groups(channels), rows // _MIN_ROWS))


def blocks_for(channels: int, slices: int) -> int:
    """How many blocks there are."""
    return _groups(channels) * slices


def _groups(channels: int) -> int:
    return -(-channels // _LANES)
