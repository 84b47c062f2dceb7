"""_contrib_MultiBoxDetection on a GPU: boxes with their scores as keys, sorted, suppressed, and written in order.

`vision/multibox_detection` says which boxes are detections; numbers are rounded as NumPy rounds them, so that the same
ones stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...bound_calls import as_one, nothing
from ...compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ...vision.multibox_detection import MultiBoxDetectionParams, op
from ..kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits
from .arithmetic import rounded_scalar
from .sort_rows import sort_calls, sort_temps
from .suppress import OVERLAP, SIDES, Rule, suppress_calls, suppress_temps

_IMAGES, _CLASSES, _ANCHORS = 8, 21, 8732
_ALL = _IMAGES * _ANCHORS
_WHAT = f"{_IMAGES} images of {_ANCHORS:,} anchors, {_CLASSES} classes"

DECODE = KernelTemplate(
    "opbox_multibox_decode",
    "const T *prob, const T *loc, const T *anchor, A *keys, A *order, A *scores, A *boxes, int total, int classes, "
    "int n, int padded, int clip, A x_factor, A y_factor, A width_factor, A height_factor, A least, A lowest",
    f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= total) return;
  const int k = number % n, image = number / n;
  const T *of_class = prob + (long long)image * classes * n + k;
  int label = 1;
  A score = A(of_class[n]);
  for (int c = 2; c < classes; ++c) {{
    const A value = A(of_class[c * n]);
    // A score that is no number stays so.
    if (value > score || value != value) {{
      score = value;
      label = c;
    }}
  }}
  const bool valid = score >= least && score > -1;
  keys[(long long)image * padded + k] = valid ? score : lowest;
  order[(long long)image * padded + k] = valid ? A(0) : lowest;
  scores[number] = score;
  A *box = boxes + (long long)number * {SIDES};
  for (int axis = 0; axis < 2; ++axis) {{
    const A first = A(anchor[4 * k + axis]), last = A(anchor[4 * k + axis + 2]);
    const A middle = rounded(rounded(first + last) / 2), size = rounded(last - first);
    const A shift = A(loc[4 * (long long)number + axis]), stretch = A(loc[4 * (long long)number + axis + 2]);
    const A at = rounded(times(times(shift, axis ? y_factor : x_factor), size) + middle);
    const A grown = rounded(exp(times(stretch, axis ? height_factor : width_factor)));
    const A half = rounded(times(grown, size) / 2);
    box[axis] = rounded(at - half);
    box[axis + 2] = rounded(at + half);
  }}
  if (clip)
    for (int c = 0; c < 4; ++c) box[c] = lesser(greater(box[c], A(0)), A(1));
  box[4] = area_of(box[0], box[1], box[2], box[3], A(0));
  box[5] = rounded(A(label - 1));
""",
    (
        _WHAT,
        lambda: Moved(4 * (_ALL * (_CLASSES + 4 + 3 + SIDES) + 4 * _ANCHORS), 4 * (_ALL * (_CLASSES + 4) + _ANCHORS)),
    ),
    OVERLAP,
)
WRITE = KernelTemplate(
    "opbox_multibox_write",
    "const A *keys, const int *places, const int *compact, const unsigned char *alive, const A *scores, "
    "const A *boxes, T *out, int elements, int n, int padded, int most, int suppressed, A lowest",
    f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int column = number % 6, rank = number / 6 % n, image = number / (6 * n);
  const long long at = (long long)image * padded + rank, first = (long long)image * n;
  if (!(keys[at] > lowest)) {{
    out[number] = T(-1.0f);
    return;
  }}
  // What is beyond the best keeps the place that it had before sorting.
  const long long source = first + (rank < most ? places[at] : compact[at]);
  const A *box = boxes + source * {SIDES};
  A value = box[column == 0 ? 5 : max(column - 2, 0)];
  if (column == 1) value = scores[source];
  if (column == 0 && suppressed && !alive[first + rank]) value = -1;
  out[number] = T(value);
""",
    (_WHAT, lambda: Moved(4 * _ALL * (6 + 8), 4 * _ALL * (6 + 8))),
)
KERNELS += [DECODE, WRITE]


def _temps(p: MultiBoxDetectionParams, call: CallSpec) -> list[Temp]:
    """Temporaries: what suppression and two sorts need (by score, and those in the order of the anchors), scores."""
    (batch, _, n), dtype = call.inputs[0].shape, call.inputs[0].dtype
    sorts = [temp for _ in range(2) for temp in sort_temps(batch, n, dtype)]
    return [*suppress_temps(batch, n, dtype), *sorts, Temp((batch, n), accumulation_type(dtype))]


def _accepts(p: MultiBoxDetectionParams, call: CallSpec) -> bool:
    return (
        fits(call, *call.inputs, call.outputs[0])
        and call.inputs[0].shape[1] > 1
        and all(math.prod(temp.shape) <= MAX_ELEMENTS for temp in _temps(p, call))
    )


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: MultiBoxDetectionParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out = outputs[0]
    if out is None:
        return nothing
    (prob, loc, anchor), calls = contiguous(ctx, inputs)
    boxes, alive = ctx.temp[:2]
    keys, places, order, compact, scores = ctx.temp[6:]
    (batch, classes, n), dtype, padded = prob.shape, prob.dtype, keys.shape[1]
    suppressed = 0 < p.nms_threshold <= 1
    most = min(p.nms_topk, n) if suppressed and p.nms_topk > 0 else n
    lowest = rounded_scalar(-np.inf, dtype)
    numbers = (rounded_scalar(value, dtype) for value in (*p.variances, p.threshold))
    sizes = map(np.int32, (batch * n, classes, n, padded, p.clip))
    arrays = (prob, loc, anchor, keys, order, scores, boxes)
    calls.append(DECODE.over(ctx, dtype, batch * n, (*arrays, *sizes, *numbers, lowest)))
    if not suppressed or most < n:
        calls += sort_calls(ctx, order, compact, n)
    if suppressed:
        calls += sort_calls(ctx, keys, places, n)
        rule = Rule(most, n, p.nms_threshold, by_class=not p.force_suppress, inclusive=True)
        calls += suppress_calls(ctx, dtype, rule, keys, places, ctx.temp[:6])
    else:
        keys, places = order, compact
    sizes = map(np.int32, (out.size, n, padded, most, suppressed))
    arrays = (keys, places, compact, alive, scores, boxes, out)
    calls.append(WRITE.over(ctx, dtype, out.size, (*arrays, *sizes, lowest)))
    return as_one(calls)
