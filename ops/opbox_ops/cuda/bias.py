"""A bias added to each channel of a convolution, and its gradient: the channel's sum over samples and positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array, OpContext
from .kernel import KERNELS, KernelTemplate, Moved, threads_for

__all__ = ["BIAS", "bias_gradient"]

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
    """  extern __shared__ A room[];
  const int filter = blockIdx.x;
  A sum = 0;
  for (int k = threadIdx.x; k < samples * positions; k += blockDim.x)
    sum += A(gout[(k / positions * filters + filter) * positions + k % positions]);
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) gbias[filter] = T(sum);
""",
    ("32 images of 64 channels, 56 x 56", lambda: Moved(4 * (_DATA + 64), 4 * (_DATA + 64))),
)
KERNELS += [BIAS, _BIAS_BACK]


def bias_gradient(ctx: OpContext, gout: Array, gbias: Array) -> Callable[[], Any]:
    """A call that writes the sum of each channel of gout (sample, channel, ...), in one order, to gbias."""
    samples, filters = gout.shape[:2]
    positions = gout.size // (samples * filters)
    threads = threads_for(samples * positions, _THREADS)
    arguments = (gout, gbias, *map(np.int32, (samples, filters, positions)))
    room = threads * accumulation_type(gout.dtype).itemsize
    return _BIAS_BACK.call(ctx, gout.dtype, filters, threads, arguments, room)
