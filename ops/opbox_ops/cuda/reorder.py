"""Copying an array into another layout on a GPU: the steps at the edges of a region of channels last.

An image (channel, position) becomes (position, channel), or back: a matrix is transposed by tiles of 32 x 32, which a
block reads along the rows and writes along the columns, so that both lie in a row of memory. Bfloat16 is copied as
numbers of its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import PLAIN, Array, Arrays, ArraySpec, CallSpec, Compute, Kernel, OpContext, Outputs
from ..layout import physical
from .kernel import KERNELS, MAX_ELEMENTS, TYPES, KernelTemplate, Moved, contiguous

__all__ = ["REORDER", "transposed_images"]

_TILE, _ROWS = 32, 8
_DATA = 32 * 64 * 56 * 56

TRANSPOSE = KernelTemplate(
    "opbox_reorder",
    "const T *source, T *target, int rows, int columns, int row_tiles, int column_tiles",
    f"""  __shared__ T tile[{_TILE}][{_TILE} + 1];
  const int across = threadIdx.x % {_TILE}, down = threadIdx.x / {_TILE};
  const int top = blockIdx.x / column_tiles % row_tiles * {_TILE}, left = blockIdx.x % column_tiles * {_TILE};
  const long long image = (long long)(blockIdx.x / column_tiles / row_tiles) * rows * columns;
  T read[{_TILE // _ROWS}];
#pragma unroll
  for (int k = 0; k < {_TILE // _ROWS}; ++k) {{
    const int row = top + down + {_ROWS} * k, column = left + across;
    if (row < rows && column < columns) read[k] = source[image + (long long)row * columns + column];
  }}
#pragma unroll
  for (int k = 0; k < {_TILE // _ROWS}; ++k) tile[down + {_ROWS} * k][across] = read[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < {_TILE // _ROWS}; ++k) {{
    const int row = top + across, column = left + down + {_ROWS} * k;
    if (row < rows && column < columns)
      target[image + (long long)column * rows + row] = tile[across][down + {_ROWS} * k];
  }}
""",
    ("32 images of 64 channels, 56 x 56", lambda: Moved(4 * 2 * _DATA, 4 * 2 * _DATA)),
)
"""target[image][column][row] = source[image][row][column]."""
KERNELS.append(TRANSPOSE)


def transposed_images(xp: Any, source: Array, target: Array, sizes: tuple[int, int, int]) -> Callable[[], Any]:
    """A call that transposes each image of a contiguous array: `sizes`: images, and rows and columns of the source."""
    images, rows, columns = sizes
    row_tiles, column_tiles = -(-rows // _TILE), -(-columns // _TILE)
    arguments = (source, target, *map(np.int32, (rows, columns, row_tiles, column_tiles)))
    return TRANSPOSE.launch(xp, source.dtype, images * row_tiles * column_tiles, _TILE * _ROWS, arguments)


def _moved_as(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type that elements are copied as."""
    return np.dtype(np.float16) if dtype.name == "bfloat16" else dtype


def _matrix(spec: ArraySpec) -> tuple[int, int]:
    """Rows and columns of an image as it lies."""
    channels, positions = spec.shape[1], math.prod(spec.shape[2:])
    return (channels, positions) if spec.layout == PLAIN else (positions, channels)


def _takes(p: Any, call: CallSpec) -> bool:
    source, target = call.inputs[0], call.outputs[0]
    return (
        call.device == "gpu"
        and source.dtype == target.dtype
        and source.layout != target.layout
        and _moved_as(source.dtype).name in TYPES
        and 0 < math.prod(source.shape) <= MAX_ELEMENTS
    )


def _reorder(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    source, target = ctx.call.inputs[0], ctx.call.outputs[0]
    dtype, (rows, columns) = _moved_as(source.dtype), _matrix(source)
    (read,), calls = contiguous(ctx, [physical(inputs[0], source.layout)])
    written = physical(outputs[0], target.layout)
    sizes = (source.shape[0], rows, columns)
    return as_one([*calls, transposed_images(ctx.xp, read.view(dtype), written.view(dtype), sizes)])


REORDER = Compute(lambda p, call: Kernel(_reorder) if _takes(p, call) else None, "generated")
"""out = data, where one of them has its channels last."""
