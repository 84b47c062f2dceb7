"""The gradient of sampled images on a GPU, gathered: a thread adds up what reads one element, of a few channels.

It goes through the positions in their order, so that no two threads write to one place, and runs agree to the last bit.
Boxes around 32 and around 1,024 positions say where it need not look.

`nn/sampling` has the formulas, `sampling` the other kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..compute import Array, Arrays, OpContext, Temp
from .kernel import KERNELS, KernelTemplate, Moved, by_thread
from .sampling import SIZES, sizes_of

__all__ = ["box_temps", "spread"]

_TILE, _TILES = 32, 32
"""Positions of a box, and boxes of a larger one."""
_CHANNELS = 4
"""Channels that a thread adds up."""
_IMAGES, _DEPTH, _SIDE = 32, 64, 56
_PLANE = _IMAGES * _SIDE * _SIDE
_DATA = _DEPTH * _PLANE
_WHAT = f"{_IMAGES} images of {_DEPTH} channels, {_SIDE} x {_SIDE}, as many samples"
_TILE_BOXES = 4 * _IMAGES * -(-_SIDE * _SIDE // _TILE)
_BOXES = _TILE_BOXES + 4 * _IMAGES * -(-_SIDE * _SIDE // (_TILE * _TILES))

_BOXES_AROUND = KernelTemplate(
    "opbox_sample_boxes",
    "const A *along_y, const A *along_x, int *tiles, int *groups, int height, int width, int n, int group_count",
    f"""  extern __shared__ int scratch[];
  const int part = blockIdx.x / group_count, count = (n + {_TILE} - 1) / {_TILE};
  const int tile = blockIdx.x % group_count * {_TILES} + threadIdx.x;
  int box[4] = {{height, -1, width, -1}};
  for (int k = tile * {_TILE}; k < n && k < (tile + 1) * {_TILE}; ++k) {{
    const A y = floor(along_y[part * n + k]), x = floor(along_x[part * n + k]);
    if (!(y >= -1 && y < height && x >= -1 && x < width)) continue;
    box[0] = min(box[0], int(y));
    box[1] = max(box[1], int(y) + 1);
    box[2] = min(box[2], int(x));
    box[3] = max(box[3], int(x) + 1);
  }}
  for (int k = 0; k < 4; ++k) {{
    scratch[threadIdx.x * 4 + k] = box[k];
    if (tile < count) tiles[(part * count + tile) * 4 + k] = box[k];
  }}
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int other = 1; other < {_TILES}; ++other)
    for (int k = 0; k < 4; ++k)
      box[k] = k % 2 ? max(box[k], scratch[other * 4 + k]) : min(box[k], scratch[other * 4 + k]);
  for (int k = 0; k < 4; ++k) groups[blockIdx.x * 4 + k] = box[k];
""",
    (_WHAT, lambda: Moved(4 * (2 * _PLANE + _BOXES), 4 * (2 * _PLANE + _BOXES))),
)


def _spread_kernel(name: str, read: str, masked: bool) -> KernelTemplate:
    mask, times = ("const T *mask, ", " * A(mask[part * n + place])") if masked else ("", "")
    return KernelTemplate(
        name,
        f"const {read} *gsamples, const A *along_y, const A *along_x, {mask}const int *tiles, const int *groups, "
        f"T *gimages, {SIZES}",
        f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int size = height * width, element = number % size, i = element / width, j = element % width;
  const int chunks = (channels + {_CHANNELS} - 1) / {_CHANNELS}, part = number / size / chunks;
  const int first = number / size % chunks * {_CHANNELS}, planes = min({_CHANNELS}, channels - first);
  const int tile_count = (n + {_TILE} - 1) / {_TILE}, group_count = (tile_count + {_TILES} - 1) / {_TILES};
  const {read} *rows = gsamples + (part * channels + first) * n;
  A sums[{_CHANNELS}] = {{0}};
  for (int group = 0; group < group_count; ++group) {{
    const int *around = groups + (part * group_count + group) * 4;
    if (i < around[0] || i > around[1] || j < around[2] || j > around[3]) continue;
    for (int tile = group * {_TILES}; tile < tile_count && tile < (group + 1) * {_TILES}; ++tile) {{
      const int *box = tiles + (part * tile_count + tile) * 4;
      if (i < box[0] || i > box[1] || j < box[2] || j > box[3]) continue;
      for (int place = tile * {_TILE}; place < n && place < (tile + 1) * {_TILE}; ++place) {{
        const A near = nearness(along_y[part * n + place], i, height, clamp);
        if (near == 0) continue;
        A weight = near * nearness(along_x[part * n + place], j, width, clamp);
        if (weight == 0) continue;
        weight = weight{times};
        for (int k = 0; k < planes; ++k) sums[k] += weight * A(rows[k * n + place]);
      }}
    }}
  }}
  for (int k = 0; k < planes; ++k) gimages[(part * channels + first + k) * size + element] = T(sums[k]);
""",
        (_WHAT, _spread_moved),
        """// How much a sample at `where` has of the element `index`.
__device__ A nearness(A where, int index, int size, int clamp) {
  const A cell = floor(where), second = clamp ? fmin(cell + 1, A(size - 1)) : cell + 1;
  if (clamp && !(cell >= 0 && cell < size)) return 0;
  return (cell == index ? 1 - (where - cell) : A(0)) + (second == index ? where - cell : A(0));
}
""",
    )


def _spread_moved() -> Moved:
    """Positions of some tiles are read again for the elements of each, and of each chunk of channels."""
    least = 2 * _DATA + 2 * _PLANE + _BOXES
    return Moved(4 * (least + (_DEPTH // _CHANNELS - 1) * 2 * _PLANE), 4 * least)


_SPREAD = _spread_kernel("opbox_sample_back", "T", masked=False)
_COLUMNS_SPREAD = [_spread_kernel(f"opbox_columns_spread{'_masked' * m}", "A", masked=m) for m in (False, True)]
KERNELS += [_BOXES_AROUND, _SPREAD, *_COLUMNS_SPREAD]


def box_temps(m: int, n: int) -> list[Temp]:
    """Temporaries of `spread`: boxes around the positions, in small groups and in large ones."""
    tiles = -(-n // _TILE)
    return [Temp((m, count, 4), np.int32) for count in (tiles, -(-tiles // _TILES))]


def spread(
    ctx: OpContext,
    gsamples: Array,
    places: Array,
    gimages: Array,
    boxes: Arrays,
    *,
    columns: bool = False,
    mask: Array | None = None,
) -> list[Callable[[], Any]]:
    """Calls that write the gradient of images, of from those of samples; `boxes` is what `box_temps` says."""
    (m, channels, height, width), n, dtype = gimages.shape, places.shape[2], gimages.dtype
    groups = boxes[1].shape[1]
    sizes = map(np.int32, (height, width, n, groups))
    find = _BOXES_AROUND.call(ctx, dtype, m * groups, _TILES, (*places, *boxes, *sizes), 4 * 4 * _TILES)
    elements = m * -(-channels // _CHANNELS) * height * width
    kernel = _COLUMNS_SPREAD[mask is not None] if columns else _SPREAD
    masks = () if mask is None else (mask,)
    numbers = sizes_of(elements, gimages, places, clamp=columns and mask is None)
    return [find, by_thread(ctx, kernel, dtype, elements, (gsamples, *places, *masks, *boxes, gimages, *numbers))]
