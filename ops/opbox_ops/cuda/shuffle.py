"""_shuffle on a GPU: a random order of positions, and the slices taken in it.

Up to 2,048 slices have the order that sorts uniform numbers, which is the CPU's of the same seed. The order of more
slices is a cipher of positions, which needs no memory and no sorting: a number of 2 b bits is split into halves, and in
each of 24 rounds one half changes the other by a hash that has a key of its own; the keys are 12 words of the stream.
It maps the numbers below 4^b one to one, so that where a result is no position, the cipher of it is taken, until one
is. 4^b is below four times the slices. A thread makes a position.

Luby and Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions" (1988); Mitchell, Stokes,
Frank and Holmes, "Bandwidth-Optimal Random Shuffling for GPUs" (2022).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one, nothing
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..index.positions import take_rows
from ..params import NoParams
from ..random.shuffle import op
from .kernel import KERNELS, KernelTemplate, Moved, compiled
from .order import LONGEST, order_call
from .random_draws import NUMBERS, STREAM, SUB_STREAMS, stream_arguments

_THREADS = 256
SHUFFLED = KernelTemplate(
    "opbox_shuffled",
    f"long long *positions, long long size, int bits, {STREAM}",
    """  const long long number = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (number >= size) return;
  SubStream stream = sub_stream(0, where, first, k0, k1, c1, c2, c3);
  unsigned keys[24];
  for (int part = 0; part < 3; ++part) {
    const Philox drawn = stream.next();
    for (int k = 0; k < 8; ++k) keys[8 * part + k] = unsigned(drawn.words[k / 2] >> (k % 2 * 32));
  }
  const unsigned mask = (1u << bits) - 1;
  unsigned long long place = number;
  do {
    unsigned left = unsigned(place >> bits), right = unsigned(place) & mask;
    for (int round = 0; round < 24; ++round) {
      unsigned hash = right + keys[round];
      hash = (hash ^ (hash >> 16)) * 0x85EBCA6Bu;
      hash = (hash ^ (hash >> 13)) * 0xC2B2AE35u;
      hash ^= hash >> 16;
      const unsigned changed = left ^ (hash & mask);
      left = right;
      right = changed;
    }
    place = (unsigned long long)left << bits | right;
  } while (place >= size);
  positions[number] = place;
""",
    (f"the order of {NUMBERS:,} slices", lambda: Moved(8 * NUMBERS, 8 * NUMBERS)),
    SUB_STREAMS,
)
KERNELS.append(SHUFFLED)


def _temps(p: NoParams, call: CallSpec) -> list[Temp]:
    """The positions, and the keys that are sorted where there are few."""
    count = call.inputs[0].shape[0]
    few = count <= LONGEST
    return [Temp((count,), "int32" if few else "int64"), Temp((count if few else 0,), "float64")]


@op.compute("gpu", level="generated", prepares=True, temps=_temps)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data,), (positions, keys) = inputs, ctx.temp
    if not data.size:
        return nothing
    take = partial(take_rows, ctx.xp, data, positions, outputs[0])
    if keys.size:
        return as_one([partial(ctx.random.uniform, keys), order_call(ctx, keys, positions), take])
    count = positions.size
    bits = ((count - 1).bit_length() + 1) // 2
    function = compiled(ctx.xp, SHUFFLED, "float32")

    def draw() -> None:
        place = stream_arguments(ctx.random.reserve(1))
        function((-(-count // _THREADS),), (_THREADS,), (positions, np.int64(count), np.int32(bits), *place))

    return as_one([draw, take])
