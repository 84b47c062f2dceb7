"""_contrib_PSROIPooling on a GPU: a thread adds up a bin; backward a thread adds up what is for one element of data.

The first kernel writes where each region's bins begin and end, as whole numbers, so that all others agree on it. Sums
are in double precision, as the reference's.

`vision/psroi_pooling` has the formulas. Dai et al., "R-FCN" (2016).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...bound_calls import as_one, nothing
from ...compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ...vision.psroi_pooling import PSROIPoolingParams, backward, op
from ..kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits, scalar
from .arithmetic import PRODUCT
from .region_lines import LINE, by_lines, line_call

_REGIONS, _CLASSES, _SIDE, _POOLED = 300, 21, 50, 7
_DATA, _OUT = _CLASSES * _POOLED**2 * _SIDE**2, _REGIONS * _CLASSES * _POOLED**2
_WHAT = f"{_REGIONS} regions of {_CLASSES} classes, {_SIDE} x {_SIDE}, pooled to {_POOLED} x {_POOLED}"

EDGES = KernelTemplate(
    "opbox_psroi_edges",
    "const T *rois, int *edges, int *images, int regions, int batch, int height, int width, int pooled, A scale",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= regions * 2 * pooled) return;
  const int region = number / (2 * pooled), part = number % (2 * pooled), along_x = part >= pooled;
  const T *roi = rois + region * 5;
  const A image = A(roi[0]);
  const bool on = image > -1 && image < batch;
  if (part == 0) images[region] = on ? int(image) : -1;
  const A first = A(roi[along_x ? 1 : 2]), last = A(roi[along_x ? 3 : 4]);
  const A start = product(trunc(first + (first < 0 ? A(-0.5) : A(0.5))), scale);
  const A room = product(trunc(last + (last < 0 ? A(-0.5) : A(0.5))) + 1, scale) - start;
  const A step = (room < A(0.1) ? A(0.1) : room) / A(pooled);
  const A size = along_x ? width : height;
  const int k = along_x ? part - pooled : part;
  // An edge that is no number is the last.
  const A begin = fmax(fmin(floor(product(A(k), step) + start), size), A(0));
  const A end = fmax(fmin(ceil(product(A(k + 1), step) + start), size), A(0));
  edges[2 * number] = int(begin);
  edges[2 * number + 1] = on ? int(end) : int(begin);
""",
    (_WHAT, lambda: Moved(20 * _REGIONS + 4 * _REGIONS * (4 * _POOLED + 1), 20 * _REGIONS)),
    PRODUCT,
)
FORWARD = KernelTemplate(
    "opbox_psroi_pooling",
    "const T *data, const int *edges, const int *images, T *out, int elements, int dim, int height, int width, "
    "int pooled, int group",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int x = number % pooled, y = number / pooled % pooled, channel = number / (pooled * pooled) % dim;
  const int region = number / (pooled * pooled * dim);
  const int *rows = edges + 2 * (region * 2 * pooled + y), *columns = edges + 2 * (region * 2 * pooled + pooled + x);
  const int of_group = (y * group / pooled) * group + x * group / pooled;
  const int plane = (max(images[region], 0) * dim + channel) * group * group + of_group;
  const T *pixels = data + plane * height * width;
  const int area = max(rows[1] - rows[0], 0) * max(columns[1] - columns[0], 0);
  double total = 0;
  for (int i = rows[0]; i < rows[1]; ++i)
    for (int j = columns[0]; j < columns[1]; ++j) total += double(A(pixels[i * width + j]));
  out[number] = T(A(area ? total / area : 0.0));
""",
    (_WHAT, lambda: Moved(4 * (_DATA + _OUT), 4 * (_DATA + _OUT))),
)
BACKWARD = KernelTemplate(
    "opbox_psroi_pooling_back",
    f"const T *gout, const int *edges, const int *images, int dim, int pooled, int group, {LINE}",
    by_lines(
        "images[other] == image && i >= edges[4 * other * pooled] && i < edges[4 * other * pooled + 2 * pooled - 1]",
        """      const int across = plane % group, down = plane / group % group, channel = plane / (group * group);
      const int *rows = edges + 4 * region * pooled, *columns = rows + 2 * pooled;
      // The bins that read this group.
      for (int y = (down * pooled + group - 1) / group; y * group < (down + 1) * pooled; ++y) {
        if (i < rows[2 * y] || i >= rows[2 * y + 1]) continue;
        for (int x = (across * pooled + group - 1) / group; x * group < (across + 1) * pooled; ++x) {
          if (j < columns[2 * x] || j >= columns[2 * x + 1]) continue;
          const int area = (rows[2 * y + 1] - rows[2 * y]) * (columns[2 * x + 1] - columns[2 * x]);
          total += double(A(gout[((region * dim + channel) * pooled + y) * pooled + x])) / area;
        }
      }
""",
        "double",
    ),
    (_WHAT, lambda: Moved(4 * (_OUT + _DATA), 4 * (_OUT + _DATA))),
)
KERNELS += [EDGES, FORWARD, BACKWARD]


def _temps(p: PSROIPoolingParams, call: CallSpec) -> list[Temp]:
    """Where bins begin and end, and the image of each region: -1 where it is on none."""
    regions = call.inputs[1].shape[0]
    return [Temp((regions, 2 * p.pooled_size, 2), np.int32), Temp((regions,), np.int32)]


def _accepts(p: PSROIPoolingParams, call: CallSpec) -> bool:
    rois = call.inputs[1]
    return fits(call, call.inputs[0], rois, call.outputs[0]) and 4 * rois.shape[0] * p.pooled_size <= MAX_ELEMENTS


def _sizes(p: PSROIPoolingParams) -> tuple[int, int]:
    return p.pooled_size, p.group_size or p.pooled_size


def _find_edges(p: PSROIPoolingParams, ctx: OpContext, rois: Array, shape: tuple[int, ...]) -> Callable[[], Any]:
    """A call that writes the bins of all regions of data of `shape`."""
    sizes = map(np.int32, (len(rois), shape[0], *shape[2:], p.pooled_size))
    arguments = (rois, *ctx.temp, *sizes, scalar(p.spatial_scale, rois.dtype))
    return EDGES.over(ctx, rois.dtype, len(rois) * 2 * p.pooled_size, arguments)


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: PSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out = outputs[0]
    if out is None:
        return nothing
    (data, rois), calls = contiguous(ctx, inputs)
    sizes = map(np.int32, (out.size, p.output_dim, *data.shape[2:], *_sizes(p)))
    calls.append(_find_edges(p, ctx, rois, data.shape))
    calls.append(FORWARD.over(ctx, data.dtype, out.size, (data, *ctx.temp, out, *sizes)))
    return as_one(calls)


@backward.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: PSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    gdata, grois = outputs
    calls: list[Callable[[], Any]] = [] if grois is None else [partial(grois.fill, 0)]
    if gdata is None:
        return as_one(calls)
    (gout, rois), copies = contiguous(ctx, inputs)
    arguments = (gout, *ctx.temp, *map(np.int32, (p.output_dim, *_sizes(p))))
    calls += [*copies, _find_edges(p, ctx, rois, gdata.shape)]
    calls.append(line_call(ctx, BACKWARD, gdata, len(rois), arguments))
    return as_one(calls)
