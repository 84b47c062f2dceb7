"""RROIAlign on a GPU: a thread adds up the samples of a bin of a turned region.

The image's corners, turned the other way round, bound the samples that can be on it; the others are skipped, so that a
region as large as numbers go takes no longer than one that covers its image.

`vision/roi_align` has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...bound_calls import as_one, nothing
from ...compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ...infer import size_of
from ...vision.region_samples import MAX_REGIONS, MAX_SAMPLES
from ...vision.roi_align import RotatedParams, rotated
from ..kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, scalar
from .arithmetic import PRODUCT

_REGIONS, _CHANNELS, _SIDE, _POOLED = 512, 256, 50, 7
_DATA, _OUT = _CHANNELS * _SIDE**2, _REGIONS * _CHANNELS * _POOLED**2
_WHAT = f"{_REGIONS} regions of {_CHANNELS} channels, {_SIDE} x {_SIDE}, pooled to {_POOLED} x {_POOLED}"

TURN = KernelTemplate(
    "opbox_turned_regions",
    "const T *rois, A *turned, int *images, int regions, int batch, A scale, A degree",
    """  const int region = blockIdx.x * blockDim.x + threadIdx.x;
  if (region >= regions) return;
  const T *roi = rois + region * 6;
  const A image = A(roi[0]), angle = product(A(roi[5]), degree);
  A *turn = turned + region * 6;
  turn[0] = product(A(roi[1]), scale);
  turn[1] = product(A(roi[2]), scale);
  const A width = product(A(roi[3]), scale), height = product(A(roi[4]), scale);
  turn[2] = width < 1 ? A(1) : width;
  turn[3] = height < 1 ? A(1) : height;
  turn[4] = cos(angle);
  turn[5] = sin(angle);
  const bool there = image > -1 && image < batch && isfinite(turn[0]) && isfinite(turn[1]) && isfinite(turn[2]) &&
                     isfinite(turn[3]) && isfinite(angle);
  images[region] = there ? int(image) : -1;
""",
    (_WHAT, lambda: Moved(52 * _REGIONS, 52 * _REGIONS)),
    PRODUCT,
)
FORWARD = KernelTemplate(
    "opbox_turned_pooling",
    "const T *data, const A *turned, const int *images, T *out, int elements, int channels, int height, int width, "
    "int pooled_y, int pooled_x, int ratio",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int x = number % pooled_x, y = number / pooled_x % pooled_y;
  const int channel = number / (pooled_x * pooled_y) % channels, region = number / (pooled_x * pooled_y * channels);
  const int image = images[region];
  if (image < 0) {
    out[number] = T(0.0f);
    return;
  }
  const T *pixels = data + (image * channels + channel) * height * width;
  const A *turn = turned + region * 6;
  const A center_x = turn[0], center_y = turn[1], cosine = turn[4], sine = turn[5];
  const A start_x = turn[2] / -2, start_y = turn[3] / -2;
  const A step_x = turn[2] / A(pooled_x), step_y = turn[3] / A(pooled_y);
  const Samples across = samples_of(start_x, step_x, x, ratio, center_x, center_y, cosine, sine, width, height);
  const Samples down = samples_of(start_y, step_y, y, ratio, center_y, center_x, cosine, -sine, height, width);
  A total = 0;
  for (int s = 0; s < down.left; ++s) {
    const A v = A(product((down.first + s + 0.5) / down.count + y, double(step_y)) + start_y);
    for (int t = 0; t < across.left; ++t) {
      const A u = A(product((across.first + t + 0.5) / across.count + x, double(step_x)) + start_x);
      A row = product(v, cosine) - product(u, sine) + center_y;
      A column = product(u, cosine) + product(v, sine) + center_x;
      if (!(row >= -1 && row <= height && column >= -1 && column <= width)) continue;
      row = fmax(fmin(row, A(height - 1)), A(0));
      column = fmax(fmin(column, A(width - 1)), A(0));
      const int top = int(floor(row)), bottom = int(ceil(row)), left = int(floor(column)), right = int(ceil(column));
      const A near_y = row - top, near_x = column - left;
      const T *upper = pixels + top * width, *lower = pixels + bottom * width;
      total += (1 - near_y) * ((1 - near_x) * A(upper[left]) + near_x * A(upper[right])) +
               near_y * ((1 - near_x) * A(lower[left]) + near_x * A(lower[right]));
    }
  }
  out[number] = T(total * (A(1) / A(across.count)) * (A(1) / A(down.count)));
""",
    (_WHAT, lambda: Moved(4 * (_DATA + _OUT), 4 * (_DATA + _OUT))),
    f"""{PRODUCT}struct Samples {{
  double count, first;
  int left;
}};
// A bin's samples along an axis of the region: how many there are, the first that may be on the image, and how many
// follow. An image's point (x, y) is at (x - center) * cosine - (y - other center) * sine along the axis.
__device__ Samples samples_of(A start, A step, int bin, int ratio, A center, A other, A cosine, A sine, int size,
                              int other_size) {{
  Samples samples = {{double(ratio), 0, ratio}};
  if (ratio > 0) return samples;
  samples.count = fmax(ceil(double(step)), 1.0);
  double low = 0, high = 0;
  for (int corner = 0; corner < 4; ++corner) {{
    const double x = (corner % 2 ? size + 1.0 : -2.0) - center, y = (corner / 2 ? other_size + 1.0 : -2.0) - other;
    const double along = x * cosine - y * sine;
    low = corner ? fmin(low, along) : along;
    high = corner ? fmax(high, along) : along;
  }}
  samples.first = fmax(floor(((low - start) / step - bin) * samples.count) - 2, 0.0);
  const double last = fmin(ceil(((high - start) / step - bin) * samples.count) + 2, samples.count);
  samples.left = int(fmax(fmin(last - samples.first, 4.0 * (size + other_size) + 32), 0.0));
  return samples;
}}
""",
)
KERNELS += [TURN, FORWARD]


def _temps(p: RotatedParams, call: CallSpec) -> list[Temp]:
    """The regions' centres, sizes, cosines and sines, and their images, -1 without one."""
    rois = call.inputs[1]
    return [Temp(rois.shape, accumulation_type(rois.dtype)), Temp(rois.shape[:1], np.int32)]


def _accepts(p: RotatedParams, call: CallSpec) -> bool:
    """Return whether kernels take the call; the reference refuses what has too many regions or samples."""
    n, ratio = call.inputs[1].shape[0], max(p.sampling_ratio, 0)
    return (
        fits(call, *call.inputs, call.outputs[0])
        and n <= MAX_REGIONS
        and n * size_of(p.pooled_size) * ratio**2 <= MAX_SAMPLES
        and 2 * n * max(p.pooled_size) * ratio <= MAX_SAMPLES
    )


@rotated.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: RotatedParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out = outputs[0]
    if out is None:
        return nothing
    (data, rois), calls = contiguous(ctx, inputs)
    numbers = (scalar(value, rois.dtype) for value in (p.spatial_scale, math.pi / 180))
    sizes = map(np.int32, (len(rois), data.shape[0]))
    calls.append(TURN.over(ctx, rois.dtype, len(rois), (rois, *ctx.temp, *sizes, *numbers)))
    sizes = map(np.int32, (out.size, *data.shape[1:], *p.pooled_size, p.sampling_ratio))
    calls.append(FORWARD.over(ctx, data.dtype, out.size, (data, *ctx.temp, out, *sizes)))
    return as_one(calls)
