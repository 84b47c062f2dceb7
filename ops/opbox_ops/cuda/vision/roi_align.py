"""ROIAlign on a GPU: the mean of a bin's samples is a sum of pixels, weighted along y and along x.

The first kernel writes for each bin of a region along an axis which pixels its samples touch, and how much each of
them weighs. Bins follow one another and share two pixels at most, so that an axis of `size` pixels and n bins has room
for size + 2 n weights. A thread adds up a bin; backward a thread adds up, region by region, what is for one element of
data: no two threads write to one place, and runs agree to the last bit.

Samples outside of data are skipped, not counted, so that a region as large as numbers go takes no longer than one that
covers its image.

`vision/roi_align` has the formulas. He et al., "Mask R-CNN" (2017).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...bound_calls import as_one, nothing
from ...compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ...infer import size_of
from ...vision.region_samples import MAX_REGIONS, MAX_SAMPLES
from ...vision.roi_align import ROIAlignParams, align, backward
from ..kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits, scalar
from .arithmetic import PRODUCT
from .region_lines import LINE, by_lines, line_call

_REGIONS, _CHANNELS, _SIDE, _POOLED = 512, 256, 50, 7
_DATA, _OUT = _CHANNELS * _SIDE**2, _REGIONS * _CHANNELS * _POOLED**2
_WEIGHTS = _REGIONS * (2 * (_SIDE + 2 * _POOLED) + 3 * 2 * _POOLED + 1)
_WHAT = f"{_REGIONS} regions of {_CHANNELS} channels, {_SIDE} x {_SIDE}, pooled to {_POOLED} x {_POOLED}"

WEIGHTS = KernelTemplate(
    "opbox_roi_align_weights",
    "const T *rois, int *bins, int *images, A *weights, int regions, int batch, int height, int width, int pooled_y, "
    "int pooled_x, int ratio, int aligned, A scale",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x, parts = pooled_y + pooled_x;
  if (number >= regions * parts) return;
  const int region = number / parts, part = number % parts, along_x = part >= pooled_y;
  const int bin = along_x ? part - pooled_y : part, count = along_x ? pooled_x : pooled_y;
  const int size = along_x ? width : height;
  const T *roi = rois + region * 5;
  const A image = A(roi[0]);
  const bool on = image > -1 && image < batch;
  if (part == 0) images[region] = on ? int(image) : -1;
  A start = product(A(roi[along_x ? 1 : 2]), scale), extent = product(A(roi[along_x ? 3 : 4]), scale) - start;
  if (aligned) start -= A(0.5);
  else if (extent < 1) extent = 1;
  const bool there = on && isfinite(start) && isfinite(extent);
  const A step = extent / A(count);
  const double samples = !there ? 0 : ratio > 0 ? double(ratio) : fmax(ceil(double(step)), 0.0);
  double first = 0;
  int left = ratio;
  if (ratio <= 0) {
    // More than half a pixel apart: those on the image are soon counted.
    first = fmax(floor(((-1.0 - start) / step - bin) * samples) - 2, 0.0);
    left = 2 * size + 10;
  }
  left = int(fmax(fmin(samples - first, double(left)), 0.0));
  const A share = A(1) / A(fmax(samples, 1.0));
  int begin = size, end = 0;
  A *room = 0;
  for (int pass = 0; pass < 2; ++pass) {
    for (int k = 0; k < left; ++k) {
      A place = A(product((first + k + 0.5) / samples + bin, double(step)) + start);
      if (!(place >= -1 && place <= size)) continue;
      place = fmax(fmin(place, A(size - 1)), A(0));
      const A cell = floor(place), near = product(place - cell, share);
      const int low = int(cell), high = int(ceil(place));
      if (pass) {
        room[low] += share - near;
        room[high] += near;
      } else {
        begin = low < begin ? low : begin;
        end = high >= end ? high + 1 : end;
      }
    }
    if (pass) break;
    begin = begin < end ? begin : end;
    // Turned round, bins come from the last to the first.
    const int shift = 2 * (step < 0 ? count - 1 - bin : bin) + (along_x ? height + 2 * pooled_y : 0);
    const int area = height + width + 2 * parts;
    bins[3 * number] = begin;
    bins[3 * number + 1] = end;
    bins[3 * number + 2] = region * area + shift;
    room = weights + region * area + shift;
    for (int j = begin; j < end; ++j) room[j] = 0;
  }
""",
    (_WHAT, lambda: Moved(20 * _REGIONS + 4 * _WEIGHTS, 20 * _REGIONS)),
    PRODUCT,
)
_SIZES = "int elements, int channels, int own, int height, int width, int pooled_y, int pooled_x"
FORWARD = KernelTemplate(
    "opbox_roi_align",
    f"const T *data, const int *bins, const int *images, const A *weights, T *out, {_SIZES}",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int x = number % pooled_x, y = number / pooled_x % pooled_y, parts = pooled_y + pooled_x;
  const int channel = number / (pooled_x * pooled_y) % channels, region = number / (pooled_x * pooled_y * channels);
  const int *row = bins + 3 * (region * parts + y), *column = bins + 3 * (region * parts + pooled_y + x);
  const int plane = (max(images[region], 0) * channels + channel) * own + (own > 1 ? y * pooled_x + x : 0);
  const T *pixels = data + plane * height * width;
  A total = 0;
  for (int i = row[0]; i < row[1]; ++i) {
    A line = 0;
    for (int j = column[0]; j < column[1]; ++j) line += weights[column[2] + j] * A(pixels[i * width + j]);
    total += weights[row[2] + i] * line;
  }
  out[number] = T(total);
""",
    (_WHAT, lambda: Moved(4 * (_DATA + _OUT + _WEIGHTS), 4 * (_DATA + _OUT))),
)
BACKWARD = KernelTemplate(
    "opbox_roi_align_back",
    f"const T *gout, const int *bins, const int *images, const A *weights, int own, int pooled_y, int pooled_x, {LINE}",
    by_lines(
        "images[other] == image && on_line(bins + 3 * other * (pooled_y + pooled_x), pooled_y, i)",
        """      const int mine = plane % own, channel = plane / own, parts = pooled_y + pooled_x;
      for (int y = own > 1 ? mine / pooled_x : 0; y < pooled_y; ++y) {
        const int *row = bins + 3 * (region * parts + y);
        if (i >= row[0] && i < row[1])
          for (int x = own > 1 ? mine % pooled_x : 0; x < pooled_x; ++x) {
            const int *column = bins + 3 * (region * parts + pooled_y + x);
            if (j >= column[0] && j < column[1])
              total += weights[row[2] + i] * weights[column[2] + j] *
                       A(gout[((region * (planes / own) + channel) * pooled_y + y) * pooled_x + x]);
            if (own > 1) break;
          }
        if (own > 1) break;
      }
""",
    ),
    (_WHAT, lambda: Moved(4 * (_OUT + _DATA + _WEIGHTS), 4 * (_OUT + _DATA))),
    """__device__ bool on_line(const int *rows, int count, int i) {
  for (int y = 0; y < count; ++y)
    if (i >= rows[3 * y] && i < rows[3 * y + 1]) return true;
  return false;
}
""",
)
KERNELS += [WEIGHTS, FORWARD, BACKWARD]


def _own(p: ROIAlignParams) -> int:
    """For how many bins a pixel has channels of its own."""
    return size_of(p.pooled_size) if p.position_sensitive else 1


def _weight_count(p: ROIAlignParams, size: tuple[int, ...]) -> int:
    """Weights of a region on images of `size`."""
    return sum(size) + 2 * sum(p.pooled_size)


def _temps(p: ROIAlignParams, call: CallSpec, *, gradient: bool = False) -> list[Temp]:
    """Bounds of bins along an axis, and where their weights are; images of the regions, -1 without one; weights."""
    (_, _, *size), rois = (call.outputs if gradient else call.inputs)[0].shape, call.inputs[1]
    n = rois.shape[0]
    return [
        Temp((n, sum(p.pooled_size), 3), np.int32),
        Temp((n,), np.int32),
        Temp((n, _weight_count(p, tuple(size))), accumulation_type(rois.dtype)),
    ]


def _fits(p: ROIAlignParams, call: CallSpec, data: ArraySpec, rois: ArraySpec, out: ArraySpec) -> bool:
    """Return whether kernels take the call; the reference refuses what has too many regions or samples."""
    n, ratio = rois.shape[0], max(p.sample_ratio, 0)
    return (
        fits(call, data, rois, out)
        and n <= MAX_REGIONS
        and n * max(_weight_count(p, data.shape[2:]), 3 * sum(p.pooled_size)) <= MAX_ELEMENTS
        and n * size_of(p.pooled_size) * ratio**2 <= MAX_SAMPLES
        and 2 * n * max(p.pooled_size) * ratio <= MAX_SAMPLES
    )


def _find_weights(p: ROIAlignParams, ctx: OpContext, rois: Array, shape: tuple[int, ...]) -> Callable[[], Any]:
    """A call that writes the weights of all regions of data of `shape`."""
    sizes = (len(rois), shape[0], *shape[2:], *p.pooled_size, p.sample_ratio, p.aligned)
    arguments = (rois, *ctx.temp, *map(np.int32, sizes), scalar(p.spatial_scale, rois.dtype))
    return WEIGHTS.over(ctx, rois.dtype, len(rois) * sum(p.pooled_size), arguments)


def _sizes(p: ROIAlignParams, out: Array, data: Array) -> list[Any]:
    return [*map(np.int32, (out.size, out.shape[1], _own(p), *data.shape[2:], *p.pooled_size))]


@align.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _fits(p, call, call.inputs[0], call.inputs[1], call.outputs[0]),
    temps=_temps,
)
def _(p: ROIAlignParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out = outputs[0]
    if out is None:
        return nothing
    (data, rois), calls = contiguous(ctx, inputs)
    arguments = (data, *ctx.temp, out, *_sizes(p, out, data))
    calls += [_find_weights(p, ctx, rois, data.shape), FORWARD.over(ctx, data.dtype, out.size, arguments)]
    return as_one(calls)


@backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _fits(p, call, call.outputs[0], call.inputs[1], call.inputs[0]),
    temps=partial(_temps, gradient=True),
)
def _(p: ROIAlignParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    gdata, grois = outputs
    calls: list[Callable[[], Any]] = [] if grois is None else [partial(grois.fill, 0)]
    if gdata is None:
        return as_one(calls)
    (gout, rois), copies = contiguous(ctx, inputs)
    arguments = (gout, *ctx.temp, *map(np.int32, (_own(p), *p.pooled_size)))
    calls += [*copies, _find_weights(p, ctx, rois, gdata.shape)]
    calls.append(line_call(ctx, BACKWARD, gdata, len(rois), arguments))
    return as_one(calls)
