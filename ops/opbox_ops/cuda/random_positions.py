"""_sample_multinomial on a GPU: the sums of each row's probabilities, and a search in them for each draw.

A block adds up a row: a thread its part, one of them the parts, and then each thread writes its part's sums. They do
not descend, and stay as they are over a probability of 0, which so is never drawn. A thread of the search makes four
draws of a block of the stream. Their uniform numbers are the CPU's of the same seed, and so are the positions, but
where a sum of the CPU's is another one in its last bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one, nothing
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..random.multinomial import MultinomialParams, op
from .kernel import KERNELS, KernelTemplate, Moved, compiled, contiguous, fits, threads_for
from .random_draws import STREAM, SUB_STREAMS, stream_arguments

_THREADS = 256
_ROWS, _CLASSES, _DRAWS = 1024, 10_000, 64
_READ, _WRITTEN = 4 * _ROWS * _CLASSES, 4 * _ROWS * _DRAWS
_STEPS = (_CLASSES - 1).bit_length()

RUNNING_SUMS = KernelTemplate(
    "opbox_running_sums",
    "const T *data, double *sums, int classes",
    """  extern __shared__ double parts[];
  const long long row = blockIdx.x * (long long)classes;
  const int part = (classes + blockDim.x - 1) / blockDim.x;
  const int begin = threadIdx.x * part, end = begin + part < classes ? begin + part : classes;
  double own = 0;
  for (int i = begin; i < end; ++i) own += double(A(data[row + i]));
  parts[threadIdx.x] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    double before = 0;
    for (int t = 0; t < blockDim.x; ++t) {
      const double of_part = parts[t];
      parts[t] = before;
      before += of_part;
    }
  }
  __syncthreads();
  own = 0;
  for (int i = begin; i < end; ++i) {
    own += double(A(data[row + i]));
    sums[row + i] = parts[threadIdx.x] + own;
  }
""",
    (
        f"{_ROWS:,} rows of {_CLASSES:,} probabilities",
        lambda: Moved(2 * _READ + 8 * _ROWS * _CLASSES, _READ + 8 * _ROWS * _CLASSES),
    ),
)
POSITIONS = KernelTemplate(
    "opbox_positions",
    "const T *data, const double *sums, int *positions, T *logarithms, long long size, long long draws, int classes, "
    + STREAM,
    """  const long long thread = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (thread * 4 >= size) return;
  SubStream stream = sub_stream(thread, where, first, k0, k1, c1, c2, c3);
  const Philox drawn = stream.next();
  for (int k = 0; k < 4; ++k) {
    const long long number = thread * 4 + k;
    if (number >= size) break;
    const long long row = number / draws * classes;
    const double total = sums[row + classes - 1], point = from_zero(drawn.words[k]) * total;
    int low = 0, high = classes - 1;
    while (low < high) {
      const int middle = low + (high - low) / 2;
      // The product may be rounded up to the total, which the last probability above 0 reaches.
      if (sums[row + middle] > point || sums[row + middle] >= total) high = middle;
      else low = middle + 1;
    }
    positions[number] = low;
    if (logarithms) logarithms[number] = T(log(A(data[row + low])));
  }
""",
    (
        f"{_DRAWS} draws of {_ROWS:,} rows of {_CLASSES:,}",
        lambda: Moved(8 * _ROWS * _DRAWS * _STEPS + _WRITTEN, 8 * _ROWS * _DRAWS + _WRITTEN),
    ),
    SUB_STREAMS,
)
KERNELS += [RUNNING_SUMS, POSITIONS]


def _accepts(p: MultinomialParams, call: CallSpec) -> bool:
    return fits(call, call.inputs[0])


def _temps(p: MultinomialParams, call: CallSpec) -> list[Temp]:
    """The sums, and the positions as the kernel writes them where they are wanted in another type, or not at all."""
    out = call.outputs[0]
    own = not call.wants(0) or out.dtype != np.int32
    return [Temp((size_of(call.inputs[0].shape),), "float64"), Temp(out.shape if own else (0,), "int32")]


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: MultinomialParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data,), calls = contiguous(ctx, inputs)
    sums, scratch = ctx.temp
    classes, draws = data.shape[-1], size_of(p.shape)
    rows = data.size // classes
    out = outputs[0]
    positions = out if out is not None and out.dtype == np.int32 else scratch
    logarithms = outputs[1] if p.get_prob and outputs[1] is not None else np.uintp(0)
    size = rows * draws
    if not size:
        return nothing
    block, blocks = threads_for(classes), -(-size // 4)
    arguments = (data, sums, np.int32(classes))
    calls.append(RUNNING_SUMS.call(ctx, data.dtype, rows, block, arguments, 8 * block))
    search = compiled(ctx.xp, POSITIONS, data.dtype.name)
    sizes = np.int64(size), np.int64(draws), np.int32(classes)

    def draw() -> None:
        place = stream_arguments(ctx.random.reserve(blocks))
        search((-(-blocks // _THREADS),), (_THREADS,), (data, sums, positions, logarithms, *sizes, *place))

    calls.append(draw)
    if out is not None and positions is not out:
        calls.append(partial(ctx.xp.copyto, out, positions, casting="unsafe"))
    return as_one(calls)
