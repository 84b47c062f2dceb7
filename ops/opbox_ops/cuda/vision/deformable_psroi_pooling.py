"""_contrib_DeformablePSROIPooling on a GPU: a thread adds up a bin's samples.

The first kernel writes where each bin's samples begin, and what each weighs; the next one which lines of its image a
region reaches. Backward a thread adds up what is for one element of data, and a block what is for one part of trans.

`vision/deformable_psroi_pooling` has the formulas. Dai et al., "Deformable Convolutional Networks" (2017).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...bound_calls import as_one, nothing
from ...compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ...infer import size_of
from ...vision.deformable_psroi_pooling import MAX_SAMPLES, DeformablePSROIPoolingParams, backward, op
from ...vision.region_samples import MAX_SAMPLES as MAX_ALL_SAMPLES
from ..kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits, scalar
from .arithmetic import PRODUCT
from .region_lines import LINE, by_lines, line_call

_THREADS = 128
_REGIONS, _CLASSES, _SIDE, _POOLED = 300, 21, 50, 7
_DATA, _OUT = _CLASSES * _POOLED**2 * _SIDE**2, _REGIONS * _CLASSES * _POOLED**2
_SPOTS, _TRANS = 3 * _OUT, 2 * _OUT
_WHAT = f"{_REGIONS} regions of {_CLASSES} classes, {_SIDE} x {_SIDE}, pooled to {_POOLED} x {_POOLED}"

_ALONG = f"""{PRODUCT}struct Sample {{
  bool real;
  int low, high;
  A near;
}};
// A sample along an axis: whether it is on the image, both pixels beside it, and how near the second one is.
__device__ Sample sample_at(A place, int size) {{
  Sample sample;
  sample.real = place >= A(-0.5) && place <= size - A(0.5);
  place = fmax(fmin(place, A(size - 1)), A(0));
  sample.low = int(floor(place));
  sample.high = int(ceil(place));
  sample.near = place - sample.low;
  return sample;
}}
"""
SPOTS = KernelTemplate(
    "opbox_deformable_spots",
    "const T *rois, const T *trans, A *spots, A *sides, int *images, int total, int batch, int classes, int height, "
    "int width, int pooled, int part, int side, int moved, A scale, A deviation",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= total) return;
  const int x = number % pooled, y = number / pooled % pooled, bins = pooled * pooled;
  const int of_class = number / bins % classes, region = number / (bins * classes);
  const T *roi = rois + region * 5;
  const A image = A(roi[0]);
  const bool on = image > -1 && image < batch, first = number % (bins * classes) == 0;
  if (first) images[region] = on ? int(image) : -1;
  int counts[2];
  for (int axis = 0; axis < 2; ++axis) {
    const A left = A(roi[1 + axis]), right = A(roi[3 + axis]);
    const A start = product(trunc(left + (left < 0 ? A(-0.5) : A(0.5))), scale) - A(0.5);
    const A room = product(trunc(right + (right < 0 ? A(-0.5) : A(0.5))) + 1, scale) - A(0.5) - start;
    const A extent = room < A(0.1) ? A(0.1) : room, step = extent / A(pooled), apart = step / A(side);
    A place = product(A(axis ? y : x), step) + start;
    if (moved) {
      const int offset = ((region * classes + of_class) * 2 + axis) * part + y * part / pooled;
      place += product(product(A(trans[offset * part + x * part / pooled]), deviation), extent);
    }
    spots[3 * number + axis] = place;
    if (first) {
      sides[4 * region + axis] = apart;
      sides[4 * region + 2 + axis] = extent;
    }
    counts[axis] = 0;
    for (int k = 0; k < side; ++k) counts[axis] += sample_at(product(A(k), apart) + place, axis ? height : width).real;
  }
  const int count = counts[0] * counts[1];
  spots[3 * number + 2] = on && count ? A(1) / A(count) : A(0);
""",
    (_WHAT, lambda: Moved(4 * (5 * _REGIONS + _TRANS + _SPOTS + 5 * _REGIONS), 4 * (5 * _REGIONS + _TRANS))),
    _ALONG,
)
REACH = KernelTemplate(
    "opbox_deformable_reach",
    "const A *spots, const A *sides, int *reach, int spots_of_region, int height, int side",
    """  const int region = blockIdx.x, lane = threadIdx.x;
  int begin = height, end = 0;
  for (int k = lane; k < spots_of_region; k += 32) {
    const A *spot = spots + 3 * (region * spots_of_region + k);
    if (spot[2] == 0) continue;
    begin = min(begin, sample_at(spot[1], height).low);
    end = max(end, sample_at(product(A(side - 1), sides[4 * region + 1]) + spot[1], height).high + 1);
  }
  for (int apart = 16; apart > 0; apart /= 2) {
    begin = min(begin, __shfl_down_sync(0xffffffffu, begin, apart));
    end = max(end, __shfl_down_sync(0xffffffffu, end, apart));
  }
  if (lane > 0) return;
  reach[2 * region] = begin;
  reach[2 * region + 1] = end;
""",
    (_WHAT, lambda: Moved(4 * _SPOTS, 4 * _SPOTS)),
    _ALONG,
)
_SIZES = "int dim, int classes, int group, int pooled, int side"
FORWARD = KernelTemplate(
    "opbox_deformable_pooling",
    f"const T *data, const A *spots, const A *sides, const int *images, T *out, int elements, int height, int width, "
    f"{_SIZES}",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int x = number % pooled, y = number / pooled % pooled, bins = pooled * pooled;
  const int channel = number / bins % dim, region = number / (bins * dim), of_class = channel / (dim / classes);
  const A *spot = spots + 3 * ((region * classes + of_class) * bins + y * pooled + x);
  if (spot[2] == 0) {
    out[number] = T(0.0f);
    return;
  }
  const int plane = ((images[region] * dim + channel) * group + y * group / pooled) * group + x * group / pooled;
  const T *pixels = data + plane * height * width;
  A total = 0;
  for (int s = 0; s < side; ++s) {
    const Sample down = sample_at(product(A(s), sides[4 * region + 1]) + spot[1], height);
    if (!down.real) continue;
    for (int t = 0; t < side; ++t) {
      const Sample across = sample_at(product(A(t), sides[4 * region]) + spot[0], width);
      if (!across.real) continue;
      const T *upper = pixels + down.low * width, *lower = pixels + down.high * width;
      const A above = (1 - across.near) * A(upper[across.low]) + across.near * A(upper[across.high]);
      const A below = (1 - across.near) * A(lower[across.low]) + across.near * A(lower[across.high]);
      total += (1 - down.near) * above + down.near * below;
    }
  }
  out[number] = T(total * spot[2]);
""",
    (_WHAT, lambda: Moved(4 * (_DATA + _OUT + _SPOTS), 4 * (_DATA + _OUT))),
    _ALONG,
)
BACKWARD = KernelTemplate(
    "opbox_deformable_back",
    f"const T *gout, const A *spots, const A *sides, const int *images, const int *reach, {_SIZES}, {LINE}",
    by_lines(
        "images[other] == image && i >= reach[2 * other] && i < reach[2 * other + 1]",
        """      const int left = plane % group, top = plane / group % group, channel = plane / (group * group);
      const int of_class = channel / (dim / classes), bins = pooled * pooled;
      // The bins that read this group.
      for (int y = (top * pooled + group - 1) / group; y * group < (top + 1) * pooled; ++y)
        for (int x = (left * pooled + group - 1) / group; x * group < (left + 1) * pooled; ++x) {
          const A *spot = spots + 3 * ((region * classes + of_class) * bins + y * pooled + x);
          if (spot[2] == 0) continue;
          const A weight = spot[2] * weight_of(i, spot[1], sides[4 * region + 1], side, height) *
                           weight_of(j, spot[0], sides[4 * region], side, width);
          if (weight != 0) total += weight * A(gout[((region * dim + channel) * pooled + y) * pooled + x]);
        }
""",
    ),
    (_WHAT, lambda: Moved(4 * (_OUT + _DATA + _SPOTS), 4 * (_OUT + _DATA))),
    f"""{_ALONG}// What a pixel weighs in the sum of a bin's samples along an axis.
__device__ A weight_of(int pixel, A start, A apart, int side, int size) {{
  A total = 0;
  if (start > pixel + 1 || product(A(side - 1), apart) + start < pixel - 1) return total;
  for (int k = 0; k < side; ++k) {{
    const Sample sample = sample_at(product(A(k), apart) + start, size);
    if (sample.real && sample.low == pixel) total += 1 - sample.near;
    if (sample.real && sample.high == pixel) total += sample.near;
  }}
  return total;
}}
""",
)
MOVES = KernelTemplate(
    "opbox_deformable_moves",
    "const T *gout, const T *data, const A *spots, const A *sides, const int *images, T *gtrans, int height, "
    f"int width, int part, A deviation, {_SIZES}",
    f"""  __shared__ A scratch[{_THREADS}];
  const int part_x = blockIdx.x % part, part_y = blockIdx.x / part % part, parts = part * part;
  const int of_class = blockIdx.x / parts % classes, region = blockIdx.x / (parts * classes);
  const int share = dim / classes, bins = pooled * pooled, image = images[region];
  // The bins of this part.
  const int top = (part_y * pooled + part - 1) / part, bottom = ((part_y + 1) * pooled + part - 1) / part;
  const int left = (part_x * pooled + part - 1) / part, right = ((part_x + 1) * pooled + part - 1) / part;
  const int across_bins = right - left, work = image < 0 ? 0 : (bottom - top) * across_bins * share;
  A along_x = 0, along_y = 0;
  for (int k = threadIdx.x; k < work; k += blockDim.x) {{
    const int channel = of_class * share + k % share, bin = k / share;
    const int x = left + bin % across_bins, y = top + bin / across_bins;
    const A *spot = spots + 3 * ((region * classes + of_class) * bins + y * pooled + x);
    if (spot[2] == 0) continue;
    const int plane = ((image * dim + channel) * group + y * group / pooled) * group + x * group / pooled;
    const T *pixels = data + plane * height * width;
    A slope_x = 0, slope_y = 0;
    for (int s = 0; s < side; ++s) {{
      const Sample down = sample_at(product(A(s), sides[4 * region + 1]) + spot[1], height);
      if (!down.real) continue;
      for (int t = 0; t < side; ++t) {{
        const Sample across = sample_at(product(A(t), sides[4 * region]) + spot[0], width);
        if (!across.real) continue;
        const T *upper = pixels + down.low * width, *lower = pixels + down.high * width;
        const A a = A(upper[across.low]), b = A(upper[across.high]);
        const A c = A(lower[across.low]), d = A(lower[across.high]);
        slope_x += (1 - down.near) * (b - a) + down.near * (d - c);
        slope_y += (1 - across.near) * (c - a) + across.near * (d - b);
      }}
    }}
    const A head = A(gout[((region * dim + channel) * pooled + y) * pooled + x]) * spot[2];
    along_x += slope_x * head;
    along_y += slope_y * head;
  }}
  for (int axis = 0; axis < 2; ++axis) {{
    const A total = block_sum(axis ? along_y : along_x, scratch);
    if (threadIdx.x == 0)
      gtrans[((region * classes + of_class) * 2 + axis) * parts + part_y * part + part_x] =
          T(total * sides[4 * region + 2 + axis] * deviation);
  }}
""",
    (_WHAT, lambda: Moved(4 * (_OUT + _DATA + _SPOTS + _TRANS), 4 * (_OUT + _DATA + _TRANS))),
    _ALONG,
)
KERNELS += [SPOTS, REACH, FORWARD, BACKWARD, MOVES]


def _sizes(p: DeformablePSROIPoolingParams, trans: Any) -> tuple[int, ...]:
    """The numbers of _SIZES; `trans` is None without."""
    classes = 1 if trans is None else trans.shape[1] // 2
    return p.output_dim, classes, p.group_size, p.pooled_size, p.sample_per_part


def _trans(p: DeformablePSROIPoolingParams, inputs: Sequence[Any]) -> Any:
    """trans, an array or what is known of it; None without."""
    return None if p.no_trans else inputs[-1]


def _temps(p: DeformablePSROIPoolingParams, call: CallSpec, *, gradients: bool = False) -> list[Temp]:
    """Where each bin's samples begin, steps and extents of regions, their images (-1: none), lines that they reach."""
    inputs = call.inputs[1:] if gradients else call.inputs
    (n, _), dtype = inputs[1].shape, accumulation_type(inputs[1].dtype)
    _, classes, _, pooled, _ = _sizes(p, _trans(p, inputs))
    return [
        *(Temp((n, classes, pooled, pooled, 3), dtype), Temp((n, 4), dtype), Temp((n,), np.int32)),
        Temp((n if gradients else 0, 2), np.int32),
    ]


def _fits(p: DeformablePSROIPoolingParams, call: CallSpec, inputs: Sequence[ArraySpec], out: ArraySpec) -> bool:
    """Return whether kernels take the call; the reference refuses what has too many samples."""
    n = inputs[1].shape[0]
    _, classes, _, pooled, side = _sizes(p, _trans(p, inputs))
    samples = classes * pooled**2 * side**2
    return (
        fits(call, *inputs, out)
        and samples <= MAX_SAMPLES
        and n * samples <= MAX_ALL_SAMPLES
        and 3 * n * classes * pooled**2 <= MAX_ELEMENTS
    )


def _find_spots(
    p: DeformablePSROIPoolingParams, ctx: OpContext, inputs: Arrays, shape: tuple[int, ...]
) -> Callable[[], Any]:
    """A call that writes where the samples of all bins begin on data of `shape`."""
    rois, trans = inputs[1], _trans(p, inputs)
    spots, sides, images, _ = ctx.temp
    _, classes, _, pooled, side = _sizes(p, trans)
    part = p.part_size or pooled
    sizes = (size_of(spots.shape) // 3, shape[0], classes, *shape[2:], pooled, part, side, trans is not None)
    numbers = (scalar(value, rois.dtype) for value in (p.spatial_scale, p.trans_std))
    arguments = (rois, rois if trans is None else trans, spots, sides, images, *map(np.int32, sizes), *numbers)
    return SPOTS.over(ctx, rois.dtype, size_of(spots.shape) // 3, arguments)


@op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _fits(p, call, call.inputs, call.outputs[0]),
    temps=_temps,
)
def _(p: DeformablePSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out = outputs[0]
    if out is None:
        return nothing
    arrays, calls = contiguous(ctx, inputs)
    data = arrays[0]
    sizes = map(np.int32, (out.size, *data.shape[2:], *_sizes(p, _trans(p, arrays))))
    calls.append(_find_spots(p, ctx, arrays, data.shape))
    calls.append(FORWARD.over(ctx, data.dtype, out.size, (data, *ctx.temp[:3], out, *sizes)))
    return as_one(calls)


@backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _fits(p, call, call.inputs[1:], call.inputs[0]),
    temps=partial(_temps, gradients=True),
)
def _(p: DeformablePSROIPoolingParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    gdata, grois, *further = outputs
    gtrans = further[0] if further else None
    calls: list[Callable[[], Any]] = [] if grois is None else [partial(grois.fill, 0)]
    if gdata is None and gtrans is None:
        return as_one(calls)
    (gout, *arrays), copies = contiguous(ctx, inputs)
    data, rois, trans = arrays[0], arrays[1], _trans(p, arrays)
    spots, sides, images, reach = ctx.temp
    sizes = _sizes(p, trans)
    calls += [*copies, _find_spots(p, ctx, arrays, data.shape)]
    if gdata is not None:
        numbers = map(np.int32, (size_of(spots.shape[1:4]), data.shape[2], p.sample_per_part))
        calls.append(REACH.call(ctx, data.dtype, len(rois), 32, (spots, sides, reach, *numbers)))
        arguments = (gout, *ctx.temp, *map(np.int32, sizes))
        calls.append(line_call(ctx, BACKWARD, gdata, len(rois), arguments))
    if gtrans is not None:
        part = p.part_size or p.pooled_size
        arguments = (gout, data, spots, sides, images, gtrans, *map(np.int32, (*data.shape[2:], part)))
        arguments = (*arguments, scalar(p.trans_std, data.dtype), *map(np.int32, sizes))
        calls.append(MOVES.call(ctx, data.dtype, len(rois) * sizes[1] * part**2, _THREADS, arguments))
    return as_one(calls)
