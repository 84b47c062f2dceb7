"""_sample_unique_zipfian on a GPU: a block draws the different classes of a row.

In each round every thread makes a draw: the first word of an attempt in the row's sub-stream. A table of the row says
of each class which draw was the first of it; this draw counts, and all that count are numbered in their order. Which
draws a row takes so does not depend on the threads. The rounds end with n classes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..random.zipfian import ZipfianParams, op
from .kernel import KERNELS, KernelTemplate, Moved, compiled, threads_for
from .random_draws import STREAM, SUB_STREAMS, stream_arguments

_BATCH, _COUNT = 64, 8192
_WRITTEN = 8 * _BATCH * (_COUNT + 1)

CLASSES = KernelTemplate(
    "opbox_unique_classes",
    "unsigned long long *table, long long *classes, long long *tries, long long range, int n, int capacity, " + STREAM,
    """  extern __shared__ int ranks[];
  const long long row = blockIdx.x;
  // Of each place of the table: a class + 1, or 0; and the first draw of this class.
  unsigned long long *keys = table + row * 2 * capacity;
  volatile unsigned long long *earliest = keys + capacity;
  for (int i = threadIdx.x; i < capacity; i += blockDim.x) {
    keys[i] = 0;
    earliest[i] = ~0ull;
  }
  if (n == 0 && tries && threadIdx.x == 0) tries[row] = 0;
  __syncthreads();
  const SubStream stream = sub_stream(row, where, first, k0, k1, c1, c2, c3);
  int count = 0;
  for (unsigned long long begin = 0; count < n; begin += blockDim.x) {
    const unsigned long long draw = begin + threadIdx.x;
    const Philox drawn = philox(stream.block, stream.c1 + (draw << 32), stream.c2, stream.c3, stream.k0, stream.k1);
    const long long chosen = ((long long)rint(exp(from_zero(drawn.words[0]) * log(double(range)))) - 1) % range;
    const unsigned long long key = chosen + 1;
    int place = int((key * 0x9E3779B97F4A7C15ull >> 33) & (capacity - 1));
    while (true) {
      const unsigned long long before = atomicCAS(keys + place, 0ull, key);
      if (before == 0 || before == key) break;
      place = (place + 1) & (capacity - 1);
    }
    atomicMin(keys + capacity + place, draw);
    __syncthreads();
    const bool counts = earliest[place] == draw;
    ranks[threadIdx.x] = counts;
    __syncthreads();
    for (int apart = 1; apart < blockDim.x; apart *= 2) {
      const int before = threadIdx.x >= apart ? ranks[threadIdx.x - apart] : 0;
      __syncthreads();
      ranks[threadIdx.x] += before;
      __syncthreads();
    }
    const int rank = count + ranks[threadIdx.x];
    if (counts && rank <= n && classes) classes[row * n + rank - 1] = chosen;
    if (counts && rank == n && tries) tries[row] = draw + 1;
    count += ranks[blockDim.x - 1];
    __syncthreads();
  }
""",
    (
        f"{_BATCH} rows of {_COUNT:,} classes",
        lambda: Moved(2 * 16 * _BATCH * _capacity(_COUNT) + _WRITTEN, _WRITTEN),
    ),
    SUB_STREAMS,
)
KERNELS.append(CLASSES)


def _capacity(n: int) -> int:
    """Places of a row's table: twice as many as classes that may come into it, n - 1 and those of a round."""
    return 1 << (2 * (n + threads_for(n)) - 1).bit_length()


def _accepts(p: ZipfianParams, call: CallSpec) -> bool:
    # A sub-stream has 2^32 attempts. The rarer half of the classes has log(2) / log(range_max) of the chance: up
    # to half of the classes come up in fewer, and so do few classes, however many of them are wanted.
    if p.shape is None or p.range_max > 1 << 53:
        return False
    n = p.shape[1]
    return call.plain and n <= 1 << 26 and (2 * n <= p.range_max or p.range_max <= 1 << 20)


def _temps(p: ZipfianParams, call: CallSpec) -> list[Temp]:
    assert p.shape is not None
    batch, n = p.shape
    return [Temp((batch, 2, _capacity(max(n, 1))), "uint64")]


@op.compute("gpu", level="generated", accepts=_accepts, temps=_temps)
def _(p: ZipfianParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    assert p.shape is not None
    batch, n = p.shape
    if not batch:
        return
    targets: list[Any] = [np.uintp(0) if out is None or not out.size else out for out in outputs]
    threads = threads_for(max(n, 1))
    sizes = np.int64(p.range_max), np.int32(n), np.int32(_capacity(max(n, 1)))
    arguments = (ctx.temp[0], *targets, *sizes, *stream_arguments(ctx.random.reserve(batch)))
    compiled(ctx.xp, CLASSES, "float32")((batch,), (threads,), arguments, shared_mem=4 * threads)
