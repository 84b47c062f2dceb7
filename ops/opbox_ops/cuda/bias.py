"""A bias added to each channel of a convolution, and its gradient: the channel's sum over samples and positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, ArraySpec, OpContext, Temp
from ..infer import size_of
from .channel_rows import PLACE, SIZES, THREADS, blocks_for, slices_of
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, threads_for

__all__ = ["BIAS", "bias_gradient", "last_bias_gradient", "last_parts"]

_THREADS = 256
_DATA = 32 * 64 * 56 * 56

BIAS = KernelTemplate(
    "opbox_convolution_bias",
    "const A *product, const T *bias, T *out, int elements, int filters, int positions, int with_bias",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  out[number] = T(product[number] + (with_bias ? A(bias[number / positions % filters]) : A(0)));
""",
    ("32 images of 64 channels, 56 x 56", lambda: Moved(4 * (2 * _DATA + 64), 4 * (2 * _DATA + 64))),
)
_BIAS_BACK = KernelTemplate(
    "opbox_convolution_bias_back",
    "const T *gout, T *gbias, int samples, int filters, int positions",
    """  extern __shared__ A scratch[];
  const int filter = blockIdx.x;
  A sum = 0;
  for (int k = threadIdx.x; k < samples * positions; k += blockDim.x)
    sum += A(gout[(k / positions * filters + filter) * positions + k % positions]);
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) gbias[filter] = T(sum);
""",
    ("32 images of 64 channels, 56 x 56", lambda: Moved(4 * (_DATA + 64), 4 * (_DATA + 64))),
    types=tuple(WITH_BFLOAT16),
)
_LAST_SUMS = KernelTemplate(
    "opbox_convolution_bias_last_sums",
    f"const T *gout, A *parts, {SIZES}",
    f"""{PLACE}  A sum = 0;
  if (c < channels)
    for (int k = slice * rows_at_once + row; k < rows; k += slices * rows_at_once) sum += A(gout[k * channels + c]);
  scratch[t] = sum;
  __syncthreads();
  for (int half = blockDim.x / 2; half >= 32; half /= 2) {{
    if (t < half) scratch[t] += scratch[t + half];
    __syncthreads();
  }}
  if (row == 0 && c < channels) parts[slice * channels + c] = scratch[t];
""",
    ("32 images of 64 channels, 56 x 56", lambda: Moved(4 * (_DATA + 64 * 64), 4 * _DATA)),
    types=tuple(WITH_BFLOAT16),
)
_LAST_BACK = KernelTemplate(
    "opbox_convolution_bias_last_back",
    "const A *parts, T *gbias, int channels, int slices",
    """  const int c = blockIdx.x * blockDim.x + threadIdx.x;
  if (c >= channels) return;
  A sum = 0;
  for (int s = 0; s < slices; ++s) sum += parts[s * channels + c];
  gbias[c] = T(sum);
""",
    ("64 channels of 64 slices", lambda: Moved(4 * (64 * 64 + 64), 4 * (64 * 64 + 64))),
    types=tuple(WITH_BFLOAT16),
)
KERNELS += [BIAS, _BIAS_BACK, _LAST_SUMS, _LAST_BACK]


def bias_gradient(ctx: OpContext, gout: Array, gbias: Array) -> Callable[[], Any]:
    """A call that writes the sum of each channel of gout (sample, channel, ...), in one order, to gbias."""
    samples, filters = gout.shape[:2]
    positions = gout.size // (samples * filters)
    threads = threads_for(samples * positions, _THREADS)
    arguments = (gout, gbias, *map(np.int32, (samples, filters, positions)))
    scratch = threads * accumulation_type(gout.dtype).itemsize
    return _BIAS_BACK.call(ctx, gout.dtype, filters, threads, arguments, scratch)


def last_parts(gout: ArraySpec, filters: int) -> Temp:
    """The temporary for `last_bias_gradient`: a sum for each channel and slice."""
    slices = slices_of(size_of(gout.shape) // filters, filters)
    return Temp((slices, filters), accumulation_type(gout.dtype))


def last_bias_gradient(ctx: OpContext, gout: Array, parts: Array, gbias: Array) -> Callable[[], Any]:
    """A call that does the same for gout (sample, ..., channel)."""
    slices, filters = parts.shape
    numbers = map(np.int32, (gout.size // filters, filters, slices))
    scratch, blocks = THREADS * parts.dtype.itemsize, blocks_for(filters, slices)
    joined = (parts, gbias, np.int32(filters), np.int32(slices))
    return as_one(
        [
            _LAST_SUMS.call(ctx, gout.dtype, blocks, THREADS, (gout, parts, *numbers), scratch),
            _LAST_BACK.call(ctx, gout.dtype, -(-filters // _THREADS), _THREADS, joined),
        ]
    )
