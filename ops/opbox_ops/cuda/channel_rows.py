"""How kernels share arrays of channels last, which are rows of channels, out among blocks.

A block has 32 channels, one for each thread of a warp, of a slice of the rows: a warp reads and writes rows of memory.
There are so many slices that the device is busy. What is added up over the rows is added up by slice, into numbers
(slice, channel), and these in one order by a launch of its own (`join_slices`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..accumulation import accumulation_type
from ..compute import OpContext
from .kernel import KernelTemplate

__all__ = ["JOIN_PLACE", "MAX_SLICES", "PLACE", "SIZES", "THREADS", "blocks_for", "join_slices", "slices_of"]

THREADS = 256
_LANES = 32
_ROWS_AT_ONCE = THREADS // _LANES
MAX_SLICES = 256
_MAX_BLOCKS = 1024
_MIN_ROWS = 8 * _ROWS_AT_ONCE
"""Minimum number of rows of a slice: fewer are not worth the joining."""
_JOIN_THREADS = 512

SIZES = "int rows, int channels, int slices"
_THREAD = """  extern __shared__ A scratch[];
  const int t = threadIdx.x, row = t / 32, rows_at_once = blockDim.x / 32;
"""
PLACE = _THREAD + "  const int slice = blockIdx.x % slices, c = blockIdx.x / slices * 32 + t % 32;\n"
"""A thread's channel `c`, which may be beyond the last, and its first row in its block's slice."""
JOIN_PLACE = _THREAD + "  const int c = blockIdx.x * 32 + t % 32;\n"
"""A thread's channel `c`, which may be beyond the last, and the first slice that it joins."""


def slices_of(rows: int, channels: int) -> int:
    """How many slices the rows are shared out among."""
    return max(1, min(MAX_SLICES, _MAX_BLOCKS // _groups(channels), rows // _MIN_ROWS))


def blocks_for(channels: int, slices: int) -> int:
    """How many blocks there are."""
    return _groups(channels) * slices


def join_slices(
    ctx: OpContext, kernel: KernelTemplate, dtype: Any, channels: int, arguments: Sequence[Any]
) -> Callable[[], Any]:
    """A call of a kernel that begins with JOIN_PLACE."""
    shared_bytes = _JOIN_THREADS * accumulation_type(dtype).itemsize
    return kernel.call(ctx, dtype, _groups(channels), _JOIN_THREADS, arguments, shared_bytes)


def _groups(channels: int) -> int:
    return -(-channels // _LANES)
