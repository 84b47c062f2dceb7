"""ROIPooling on a GPU: a thread finds the maximum of a part, and backward a thread adds up what is for one element.

The first kernel writes where each region's parts begin and end, as whole numbers, so that all others agree on it.
Backward finds the place of each maximum anew, and then adds up line by line what regions have for each element
(`region_lines`): no two threads write to one place, and runs agree to the last bit.

`nn/roi_pooling` has the formulas. Girshick, "Fast R-CNN" (2015).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..nn.roi_pooling import ROIPoolingParams, backward, op
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits, scalar
from .vision.region_lines import LINE, by_lines, line_call

_REGIONS, _CHANNELS, _SIDE, _POOLED = 300, 512, 38, 7
_DATA, _OUT = _CHANNELS * _SIDE * _SIDE, _REGIONS * _CHANNELS * _POOLED * _POOLED
_WHAT = f"{_REGIONS} regions of {_CHANNELS} channels, {_SIDE} x {_SIDE}, pooled to {_POOLED} x {_POOLED}"

PARTS = KernelTemplate(
    "opbox_roi_parts",
    "const T *rois, int *edges, int *images, int regions, int batch, int height, int width, int pooled_y, "
    "int pooled_x, A scale",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x, parts = pooled_y + pooled_x;
  if (number >= regions * parts) return;
  const int region = number / parts, part = number % parts, along_x = part >= pooled_y;
  const T *roi = rois + region * 5;
  const A image = A(roi[0]);
  const bool on = image > -1 && image < batch;
  if (part == 0) images[region] = on ? int(image) : -1;
  const A first = round(A(roi[along_x ? 1 : 2]) * scale), last = round(A(roi[along_x ? 3 : 4]) * scale);
  const A room = last - first + 1;
  const A length = (room < 1 ? A(1) : room) / A(along_x ? pooled_x : pooled_y);
  const A size = along_x ? width : height;
  const int k = along_x ? part - pooled_y : part;
  // An edge that is no number is 0.
  const A begin = fmin(fmax(floor(A(k) * length) + first, A(0)), size);
  const A end = fmin(fmax(ceil(A(k + 1) * length) + first, A(0)), size);
  edges[2 * number] = int(begin);
  edges[2 * number + 1] = on ? int(end) : int(begin);
""",
    (_WHAT, lambda: Moved(20 * _REGIONS + 4 * _REGIONS * (4 * _POOLED + 1), 20 * _REGIONS)),
)
_MAXIMUM = """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int x = number % pooled_x, y = number / pooled_x % pooled_y, parts = pooled_x * pooled_y;
  const int channel = number / parts % channels, region = number / (parts * channels);
  const int *rows = edges + 2 * (region * (pooled_y + pooled_x) + y);
  const int *columns = edges + 2 * (region * (pooled_y + pooled_x) + pooled_y + x);
  const T *image = data + (max(images[region], 0) * channels + channel) * height * width;
  A best = lowest;
  int place = -1;
  for (int i = rows[0]; i < rows[1]; ++i)
    for (int j = columns[0]; j < columns[1]; ++j) {
      const A value = A(image[i * width + j]);
      if (value > best) {
        best = value;
        place = i * width + j;
      }
    }
"""
_SIZES = "int elements, int channels, int height, int width, int pooled_y, int pooled_x"
FORWARD = KernelTemplate(
    "opbox_roi_pooling",
    f"const T *data, const int *edges, const int *images, T *out, {_SIZES}, A lowest",
    _MAXIMUM + "  out[number] = place < 0 ? T(0) : T(best);\n",
    (_WHAT, lambda: Moved(4 * (_DATA + _OUT), 4 * (_DATA + _OUT))),
)
PLACES = KernelTemplate(
    "opbox_roi_places",
    f"const T *data, const int *edges, const int *images, int *places, {_SIZES}, A lowest",
    _MAXIMUM + "  places[number] = place;\n",
    (_WHAT, lambda: Moved(4 * (_DATA + _OUT), 4 * (_DATA + _OUT))),
)
BACKWARD = KernelTemplate(
    "opbox_roi_pooling_back",
    f"const T *gout, const int *places, const int *edges, const int *images, int pooled_y, int pooled_x, {LINE}",
    by_lines(
        "images[other] == image && i >= edges[2 * other * (pooled_y + pooled_x)] && "
        "i < edges[2 * (other * (pooled_y + pooled_x) + pooled_y) - 1]",
        """      const int *rows = edges + 2 * region * (pooled_y + pooled_x), *columns = rows + 2 * pooled_y;
      if (j < columns[0] || j >= columns[2 * pooled_x - 1]) continue;
      for (int y = 0; y < pooled_y; ++y) {
        if (i < rows[2 * y] || i >= rows[2 * y + 1]) continue;
        for (int x = 0; x < pooled_x; ++x) {
          const int at = ((region * planes + plane) * pooled_y + y) * pooled_x + x;
          if (j >= columns[2 * x] && j < columns[2 * x + 1] && places[at] == i * width + j) total += A(gout[at]);
        }
      }
""",
    ),
    (_WHAT, lambda: Moved(4 * (2 * _OUT + _DATA), 4 * (2 * _OUT + _DATA))),
)
KERNELS += [PARTS, FORWARD, PLACES, BACKWARD]


def _edges_temps(p: ROIPoolingParams, regions: int) -> list[Temp]:
    """The temporaries: where parts begin and end, and the image of each region, -1 where it is on none."""
    return [Temp((regions, sum(p.pooled_size), 2), np.int32), Temp((regions,), np.int32)]


def _find_parts(p: ROIPoolingParams, ctx: OpContext, rois: Array, shape: tuple[int, ...]) -> Callable[[], Any]:
    """A call that writes the parts of all regions of data of `shape`."""
    regions = rois.shape[0]
    sizes = map(np.int32, (regions, shape[0], *shape[2:], *p.pooled_size))
    arguments = (rois, *ctx.temp[:2], *sizes, scalar(p.spatial_scale, rois.dtype))
    return PARTS.over(ctx, rois.dtype, regions * sum(p.pooled_size), arguments)


def _sizes(p: ROIPoolingParams, elements: int, shape: tuple[int, ...]) -> list[Any]:
    return [*map(np.int32, (elements, *shape[1:], *p.pooled_size))]


def _accepts(p: ROIPoolingParams, call: CallSpec) -> bool:
    return fits(call, call.inputs[0], call.inputs[1], call.outputs[0])


def _accepts_gradient(p: ROIPoolingParams, call: CallSpec) -> bool:
    return fits(call, *call.inputs[:3]) and size_of(call.outputs[0].shape) <= MAX_ELEMENTS


@op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=_accepts,
    temps=lambda p, call: _edges_temps(p, call.inputs[1].shape[0]),
)
def _(p: ROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data, rois), calls = contiguous(ctx, inputs)
    out = outputs[0]
    if out is None:
        return as_one([])
    arguments = (data, *ctx.temp, out, *_sizes(p, out.size, data.shape), scalar(-math.inf, data.dtype))
    calls += [_find_parts(p, ctx, rois, data.shape), FORWARD.over(ctx, data.dtype, out.size, arguments)]
    return as_one(calls)


@backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=_accepts_gradient,
    temps=lambda p, call: [*_edges_temps(p, call.inputs[2].shape[0]), Temp(call.inputs[0].shape, np.int32)],
)
def _(p: ROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    gdata, grois = outputs
    calls: list[Callable[[], Any]] = [] if grois is None else [partial(grois.fill, 0)]
    if gdata is None:
        return as_one(calls)
    (gout, data, rois), copies = contiguous(ctx, inputs[:3])
    edges, images, places = ctx.temp
    arguments = (data, edges, images, places, *_sizes(p, gout.size, data.shape), scalar(-math.inf, data.dtype))
    lines = (gout, places, edges, images, *map(np.int32, p.pooled_size))
    return as_one(
        [
            *(*calls, *copies, _find_parts(p, ctx, rois, data.shape)),
            PLACES.over(ctx, data.dtype, gout.size, arguments),
            line_call(ctx, BACKWARD, gdata, len(rois), lines),
        ]
    )
