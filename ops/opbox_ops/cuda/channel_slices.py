"""How kernels share the channels of arrays (before, channel, after) out among blocks: each block has a slice of one.

Where there are many channels, a slice is the whole of a channel. Few are cut, so that a device is busy: a first launch
writes what each slice has added up, a second joins the slices of a channel, in one order in each block.

`WALK` is the CUDA text with a thread's elements: `next` is the number of one after the other, without a division.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import OpContext, Temp
from .kernel import KernelTemplate, threads_for
from .row_blocks import APPLY, STATISTICS, WHOLE

__all__ = ["CHANNEL_SIZES", "WALK", "ChannelSlices"]

_THREADS = 512
_ENOUGH_CHANNELS = 264
"""Channels that keep a device busy: two blocks for each processor of an H100."""
_WANTED_BLOCKS = 1056
_MIN_ELEMENTS = 8 * _THREADS
"""Minimum number of elements of a slice: fewer are not worth a second launch."""
_MAX_SLICES = 512

CHANNEL_SIZES = "int before, int channels, int after, int slices"
WALK = """// A thread's elements of its block's slice of a channel: the next is number k of the channel, i of the array.
struct Walk {
  long long k;
  int by, within, by_within, after, count;
  unsigned i, by_i, over;
};
__device__ Walk walk_here(int before, int channels, int after, int slices) {
  Walk walk;
  const int slice = blockIdx.x % slices, c = blockIdx.x / slices;
  walk.k = slice * blockDim.x + threadIdx.x;
  walk.by = slices * blockDim.x;
  walk.after = after;
  walk.count = before * after;
  walk.within = int(walk.k % after);
  walk.by_within = walk.by % after;
  walk.i = (unsigned(walk.k / after) * channels + c) * after + walk.within;
  walk.by_i = unsigned(walk.by / after) * channels * after + walk.by_within;
  walk.over = unsigned(channels - 1) * after;
  return walk;
}
__device__ bool goes_on(const Walk &walk) { return walk.k < walk.count; }
__device__ unsigned next(Walk &walk) {
  const unsigned i = walk.i;
  walk.k += walk.by;
  walk.within += walk.by_within;
  walk.i += walk.by_i;
  if (walk.within >= walk.after) {
    walk.within -= walk.after;
    walk.i += walk.over;
  }
  return i;
}
"""


@dataclass(frozen=True)
class ChannelSlices:
    """The channels of an array (before, channels, after), and the blocks that have them."""

    before: int
    channels: int
    after: int

    @cached_property
    def slices(self) -> int:
        """Slices of each channel."""
        if self.channels >= _ENOUGH_CHANNELS:
            return 1
        wanted = -(-_WANTED_BLOCKS // self.channels)
        return max(1, min(wanted, self.before * self.after // _MIN_ELEMENTS, _MAX_SLICES))

    def parts(self, numbers: int, dtype: Any) -> Temp:
        """The temporary for so many numbers of each slice of each channel, for arrays of `dtype`."""
        sliced = self.slices > 1
        return Temp((numbers, self.slices, self.channels) if sliced else (1,), accumulation_type(dtype))

    def calls(
        self, ctx: OpContext, kernel: KernelTemplate, dtype: Any, arguments: Sequence[Any], *, statistics: bool = True
    ) -> list[Callable[[], Any]]:
        """The launches of a kernel whose last parameters are CHANNEL_SIZES and the phase: one, or one for each phase.

        Args:
            ctx: the node's context.
            kernel: what is launched.
            dtype: the element type.
            arguments: those before CHANNEL_SIZES.
            statistics: whether the kernel adds anything up: else the second phase is all there is.
        """
        block = threads_for(self.before * self.after, _THREADS)
        scratch = block * accumulation_type(dtype).itemsize
        phases = (WHOLE,) if self.slices == 1 else (STATISTICS, APPLY) if statistics else (APPLY,)
        sizes = tuple(map(np.int32, (self.before, self.channels, self.after, self.slices)))
        blocks = self.channels * self.slices
        return [
            kernel.call(ctx, dtype, blocks, block, (*arguments, *sizes, np.int32(phase)), scratch) for phase in phases
        ]
