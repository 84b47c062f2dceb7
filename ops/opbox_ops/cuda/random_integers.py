"""Whole numbers of a range on a GPU, all equally likely: four of a block of the stream.

With w words of 64 bits and n numbers in the range, a number is w n / 2^64 without its fraction. Words whose fraction is
below (2^64 mod n) / 2^64 would make some numbers likelier: the same word of the next attempt takes their place.

Lemire, "Fast Random Integer Generation in an Interval" (2019).
"""

from __future__ import annotations

import numpy as np

from ..compute import Arrays, OpContext, Outputs
from ..random.randint import RandintParams, randint
from .kernel import KERNELS, KernelTemplate, Moved, compiled
from .random_draws import NUMBERS, STREAM, SUB_STREAMS, stream_arguments

_THREADS = 256
INTEGERS = KernelTemplate(
    "opbox_integers",
    f"int *narrow, long long *wide, long long size, long long low, unsigned long long range, {STREAM}",
    """  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (thread * 4 >= size) return;
  SubStream stream = sub_stream(thread, where, first, k0, k1, c1, c2, c3);
  const Philox drawn = stream.next();
  const unsigned long long uneven = (0 - range) % range;
  for (int k = 0; k < 4; ++k) {
    const long long number = thread * 4 + k;
    if (number >= size) break;
    unsigned long long word = drawn.words[k];
    SubStream attempts = stream;
    while (word * range < uneven) word = attempts.next().words[k];
    const long long result = low + (long long)high_half(word, range);
    if (wide) wide[number] = result;
    else narrow[number] = int(result);
  }
""",
    (f"{NUMBERS:,} numbers", lambda: Moved(4 * NUMBERS, 4 * NUMBERS)),
    SUB_STREAMS,
)
KERNELS.append(INTEGERS)


@randint.compute("gpu", level="generated")
def _(p: RandintParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    [out] = outputs
    if not out.size:
        return
    blocks = -(-out.size // 4)
    targets = (np.uintp(0), out) if out.dtype == np.int64 else (out, np.uintp(0))
    sizes = np.int64(out.size), np.int64(p.low), np.uint64(p.high - p.low)
    arguments = (*targets, *sizes, *stream_arguments(ctx.random.reserve(blocks)))
    compiled(ctx.xp, INTEGERS, "float32")((-(-blocks // _THREADS),), (_THREADS,), arguments)
