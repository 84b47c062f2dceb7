"""Dropout on a GPU as one kernel: a thread draws a block of the stream, which eight elements take, or four doubles.

The numbers are those of `RandomSource.uniform` at the same place, so that the mask is the CPU's, bit for bit. They go
through shared memory: a thread scales 16 bytes beside its neighbours', and not those of its own block. Data is on the
way while numbers are drawn. It is read once, and the output and the mask are written once.
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
    f"""  const bool wide = sizeof(A) == 8;
  const int vectors = 8 / WORDS;
  __shared__ __align__(16) unsigned words[8 * {_THREADS}];
  const long long first_vector = blockIdx.x * (long long)({_THREADS} * vectors) + threadIdx.x;
  Vector x[vectors], m;
#pragma unroll
  for (int j = 0; j < vectors; ++j) {{
    const long long at = (first_vector + j * {_THREADS}) * VECTOR;
    if (aligned && at + VECTOR <= size) {{
      x[j] = *(const Vector *)(data + at);
    }} else {{
#pragma unroll
      for (int k = 0; k < VECTOR; ++k) x[j].v[k] = at + k < size ? data[at + k] : T(0);
    }}
  }}
  if (where) {{ k0 = where[0]; k1 += where[1]; c3 = where[2]; }}
  const long long block = blockIdx.x * (long long){_THREADS} + threadIdx.x;
  const Philox drawn = philox(first + block + 1, c1, c2, c3, k0, k1);
#pragma unroll
  for (int k = 0; k < 4; ++k) {{
    words[8 * threadIdx.x + 2 * k] = unsigned(drawn.words[k]);
    words[8 * threadIdx.x + 2 * k + 1] = unsigned(drawn.words[k] >> 32);
  }}
  __syncthreads();
#pragma unroll
  for (int j = 0; j < vectors; ++j) {{
    const long long at = (first_vector + j * {_THREADS}) * VECTOR;
    const unsigned *own = words + (threadIdx.x + j * {_THREADS}) * WORDS;
#pragma unroll
    for (int k = 0; k < VECTOR; ++k) {{
      const unsigned low = own[wide ? 2 * k % WORDS : k], high = own[wide ? (2 * k + 1) % WORDS : k];
      const unsigned long long word = (unsigned long long)high << 32 | low;
      const A number = wide ? A((word >> 11) * (1.0 / 9007199254740992.0)) : A((low >> 8) * (1.0f / 16777216.0f));
      m.v[k] = T(number < keep ? scale : A(0));
      x[j].v[k] = T(A(x[j].v[k]) * A(m.v[k]));
    }}
    if (aligned && at + VECTOR <= size) {{
      if (out) *(Vector *)(out + at) = x[j];
      if (mask) *(Vector *)(mask + at) = m;
    }} else {{
#pragma unroll
      for (int k = 0; k < VECTOR; ++k) {{
        if (at + k < size && out) out[at + k] = x[j].v[k];
        if (at + k < size && mask) mask[at + k] = m.v[k];
      }}
    }}
  }}
""",
    ("16,777,216 numbers", lambda: Moved(4 * 3 * _NUMBERS, 4 * 3 * _NUMBERS)),
    PHILOX
    + "enum { VECTOR = 16 / sizeof(T), WORDS = VECTOR * (sizeof(A) / 4) };\n"
    + "struct alignas(16) Vector { T v[VECTOR]; };\n",
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
    aligned = all(array.data.ptr % 16 == 0 for array in arrays)
    targets = (np.uintp(0) if array is None else array for array in (out, mask))
    numbers = np.int64(data.size), kind(keep), kind(1 / keep if keep > 0 else 0), np.int32(aligned)
    place = stream_arguments(ctx.random.reserve(blocks))
    launch = compiled(ctx.xp, DROPOUT, data.dtype.name)
    launch((-(-blocks // _THREADS),), (_THREADS,), (data, *targets, *numbers, *place))
