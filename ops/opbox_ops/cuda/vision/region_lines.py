"""Gradients of data from regions: a block has a line of an image, and adds up what regions have for it, in their order.

The regions that cover the line are sought by all threads together; then each thread adds for its own element of the
line's planes. No two threads write to one place, and runs agree to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...compute import Array, OpContext
from ..kernel import KernelTemplate

__all__ = ["LINE", "by_lines", "line_call"]

_THREADS = 256
LINE = "T *gdata, int regions, int planes, int height, int width"
"""The last parameters of such a kernel: gdata (batch, planes, height, width)."""


def by_lines(covers: str, adds: str, total: str = "A") -> str:
    """The body of such a kernel.

    Args:
        covers: an expression: whether region number `other` has something for line `i` of image number `image`.
        adds: statements that add to `total` what `region` has for element (`plane`, `i`, `j`).
        total: the type that is added up in.
    """
    return f"""  __shared__ char covers[{_THREADS}];
  const int line = planes * width, tiles = (line + blockDim.x - 1) / blockDim.x;
  const int i = blockIdx.x / tiles % height, image = blockIdx.x / tiles / height;
  const int number = blockIdx.x % tiles * blockDim.x + threadIdx.x, j = number % width, plane = number / width;
  {total} total = 0;
  for (int base = 0; base < regions; base += blockDim.x) {{
    const int other = base + threadIdx.x;
    const bool covered = other < regions && ({covers});
    covers[threadIdx.x] = covered;
    if (!__syncthreads_or(covered)) continue;
    for (int k = 0; k < blockDim.x; ++k) {{
      if (!covers[k] || number >= line) continue;
      const int region = base + k;
{adds}    }}
    __syncthreads();
  }}
  if (number < line) gdata[((image * planes + plane) * height + i) * width + j] = T(A(total));
"""


def line_call(
    ctx: OpContext, kernel: KernelTemplate, gdata: Array, regions: int, arguments: Sequence[Any]
) -> Callable[[], Any]:
    """A call of a kernel `by_lines`; `arguments` stand before those of LINE."""
    batch, planes, height, width = gdata.shape
    blocks = batch * height * math.ceil(planes * width / _THREADS)
    sizes = map(np.int32, (regions, planes, height, width))
    return kernel.call(ctx, gdata.dtype, blocks, _THREADS, (*arguments, gdata, *sizes))
