"""softmax along rows of up to 1,024 numbers that lie side by side: a warp has a row, in registers, and reads it once.

The formulas are those of `softmax`; of exponentials, which take half of the time, there is one an element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..compute import Array, OpContext
from .kernel import KERNELS, KernelTemplate, Moved, scalar

__all__ = ["softmax_rows", "takes"]

_LANE_NUMBERS = 32
"""Numbers that a lane has in registers."""
_MIN_ROWS = 132 * 8
"""Minimum number of rows: of fewer, some of an H100's processors would have none."""
_MIN_ROW, _MAX_ROW = 129, 32 * _LANE_NUMBERS
"""Numbers of a row: shorter ones share a warp elsewhere."""
_THREADS = 256
_ROWS, _CLASSES = 65536, 1000

KERNEL = KernelTemplate(
    "opbox_softmax_rows",
    "const T *data, T *out, A factor, int logarithm, int rows, int n, int aligned",
    f"""  const int lane = threadIdx.x % 32, row = blockIdx.x * ({_THREADS} / 32) + threadIdx.x / 32;
  if (row >= rows) return;  // all of a warp
  const T *from = data + (long long)row * n;
  T *to = out + (long long)row * n;
  const A none = A(__int_as_float(0xff800000));
  A z[{_LANE_NUMBERS}];
  if (aligned) {{
    Vector read[VECTORS];
#pragma unroll
    for (int j = 0; j < VECTORS; ++j)
      if ((j * 32 + lane) * VECTOR < n) read[j] = *(const Vector *)(from + (j * 32 + lane) * VECTOR);
#pragma unroll
    for (int j = 0; j < {_LANE_NUMBERS}; ++j)
      z[j] = (j / VECTOR * 32 + lane) * VECTOR < n ? A(read[j / VECTOR].v[j % VECTOR]) * factor : none;
  }} else {{
#pragma unroll
    for (int j = 0; j < {_LANE_NUMBERS}; ++j) z[j] = j * 32 + lane < n ? A(from[j * 32 + lane]) * factor : none;
  }}
  A top = none, sum = 0;
#pragma unroll
  for (int j = 0; j < {_LANE_NUMBERS}; ++j)
    if (z[j] > top) top = z[j];
  for (int by = 16; by > 0; by /= 2) {{
    const A other = __shfl_xor_sync(0xffffffffu, top, by);
    if (other > top) top = other;
  }}
  // Where all are -infinity nothing is taken from them before the exponential.
  const A shift = top < 0 && top - top != 0 ? A(0) : top;
#pragma unroll
  for (int j = 0; j < {_LANE_NUMBERS}; ++j) {{
    const A power = exp(z[j] - shift);  // NaN where z is infinite
    sum += power;
    if (!logarithm) z[j] = power;
  }}
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
  const A less = log(sum), inverse = 1 / sum;
#pragma unroll
  for (int j = 0; j < {_LANE_NUMBERS}; ++j) z[j] = logarithm ? z[j] - top - less : z[j] * inverse;
  if (aligned) {{
#pragma unroll
    for (int j = 0; j < VECTORS; ++j) {{
      Vector written;
#pragma unroll
      for (int k = 0; k < VECTOR; ++k) written.v[k] = T(z[j * VECTOR + k]);
      if ((j * 32 + lane) * VECTOR < n) *(Vector *)(to + (j * 32 + lane) * VECTOR) = written;
    }}
  }} else {{
#pragma unroll
    for (int j = 0; j < {_LANE_NUMBERS}; ++j)
      if (j * 32 + lane < n) to[j * 32 + lane] = T(z[j]);
  }}
""",
    ("65,536 rows of 1,000 classes", lambda: Moved(4 * 2 * _ROWS * _CLASSES, 4 * 2 * _ROWS * _CLASSES)),
    declares=f"enum {{ VECTOR = 16 / sizeof(T), VECTORS = {_LANE_NUMBERS} / VECTOR }};\n"
    "struct alignas(16) Vector { T v[VECTOR]; };\n",
)
KERNELS.append(KERNEL)


def takes(shape: tuple[int, int, int]) -> bool:
    """Return whether the kernel takes arrays (outer, n, inner)."""
    return shape[2] == 1 and shape[0] >= _MIN_ROWS and _MIN_ROW <= shape[1] <= _MAX_ROW


def softmax_rows(
    ctx: OpContext, data: Array, out: Array, rows: int, n: int, factor: float, logarithm: bool
) -> Callable[[], Any]:
    """A call that writes the softmax of factor * data, or its logarithm, for contiguous arrays of so many rows of n."""
    dtype = out.dtype
    aligned = not (n * dtype.itemsize % 16 or data.data.ptr % 16 or out.data.ptr % 16)
    arguments = (data, out, scalar(factor, dtype), *map(np.int32, (logarithm, rows, n, aligned)))
    return KERNEL.call(ctx, dtype, -(-rows * 32 // _THREADS), _THREADS, arguments)
