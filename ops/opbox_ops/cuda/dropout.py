"""Dropout on a GPU as one kernel: a thread draws a block of the stream and scales its eight elements, or four doubles.

The numbers are those of `RandomSource.uniform` at the same place, so that the mask is the CPU's, bit for bit. Data is
read once, the output and the mask are written once, and the drawn numbers stay in registers.
"""

from __future__ import annotations

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Arrays, CallSpec, OpContext, Outputs
from ..nn.dropout import DropoutParams, op, passes
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, compiled, contiguous, of_one_type
from .random import PHILOX
from .random_draws import STREAM, stream_arguments

_THREADS = 256
_NUMBERS = 1 << 24
DROPOUT = KernelTemplate(
    "opbox_dropout",
    f"const T *data, T *out, T *mask, long long size, A keep, A scale, int aligned, {STREAM}",
    """  const bool wide = sizeof(A) == 8;
  const int per = wide ? 4 : 8;
  const long long block = blockIdx.x * (long long)blockDim.x + threadIdx.x, at = block * per;
  if (at >= size) return;
  if (where) { k0 = where[0]; k1 += where[1]; c3 = where[2]; }
  const Philox drawn = philox(first + block + 1, c1, c2, c3, k0, k1);
  const bool whole = aligned && at + per <= size;
  #pragma unroll
  for (int begin = 0; begin < per; begin += 4) {
    Four x, y, m;
    if (whole) {
      x = *(const Four *)(data + at + begin);
    } else {
      for (int k = 0; k < 4; ++k) x.v[k] = at + begin + k < size ? data[at + begin + k] : T(0);
    }
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int n = begin + k;
      const unsigned half = unsigned(drawn.words[n / 2 % 4] >> (n % 2 * 32));
      const A number = wide ? A((drawn.words[n % 4] >> 11) * (1.0 / 9007199254740992.0))
                            : A((half >> 8) * (1.0f / 16777216.0f));
      m.v[k] = T(number < keep ? scale : A(0));
      y.v[k] = T(A(x.v[k]) * A(m.v[k]));
    }
    if (whole) {
      if (out) *(Four *)(out + at + begin) = y;
      if (mask) *(Four *)(mask + at + begin) = m;
    } else {
      for (int k = 0; k < 4 && at + begin + k < size; ++k) {
        if (out) out[at + begin + k] = y.v[k];
        if (mask) mask[at + begin + k] = m.v[k];
      }
    }
  }
""",
    ("16,777,216 numbers", lambda: Moved(4 * 3 * _NUMBERS, 4 * 3 * _NUMBERS)),
    PHILOX + "struct alignas(4 * sizeof(T)) Four { T v[4]; };\n",
    types=tuple(WITH_BFLOAT16),
)
KERNELS.append(DROPOUT)


def _accepts(p: DropoutParams, call: CallSpec) -> bool:
    [data], (out, mask) = call.inputs, call.outputs
    return call.plain and data.shape == mask.shape and of_one_type(data, out, mask, types=WITH_BFLOAT16)


@op.compute("gpu", level="generated", accepts=_accepts)
def _(p: DropoutParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> None:
    if passes(p, ctx, inputs, outputs):
        return
    [data], copies = contiguous(ctx, inputs)
    for copy in copies:
        copy()
    out, mask = outputs
    kind = accumulation_type(data.dtype).type
    keep = 1 - p.p
    per = 4 if kind is np.float64 else 8
    blocks = -(-data.size // per)
    arrays = [array for array in (data, out, mask) if array is not None]
    aligned = all(array.data.ptr % (4 * data.dtype.itemsize) == 0 for array in arrays)
    targets = (np.uintp(0) if array is None else array for array in (out, mask))
    numbers = np.int64(data.size), kind(keep), kind(1 / keep if keep > 0 else 0), np.int32(aligned)
    place = stream_arguments(ctx.random.reserve(blocks))
    launch = compiled(ctx.xp, DROPOUT, data.dtype.name)
    launch((-(-blocks // _THREADS),), (_THREADS,), (data, *targets, *numbers, *place))
