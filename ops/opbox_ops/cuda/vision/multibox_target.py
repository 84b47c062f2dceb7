"""_contrib_MultiBoxTarget on a GPU: a block matches an image's anchors and true boxes, then a thread has an anchor.

With negative mining the anchors that may be background are sorted by their probability of it, and their ranks compared
with how many are wanted. `vision/multibox_target` says what is assigned; numbers are rounded as NumPy rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...bound_calls import as_one, nothing
from ...compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ...vision.multibox_target import MIN_OVERLAP, MultiBoxTargetParams, op
from ..kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits
from .arithmetic import rounded_scalar
from .matching import MATCHED, PAIRS, match_calls, match_temps, matchable, matching
from .sort_rows import sort_calls, sort_temps
from .sorted_matching import KEYS, SCORED, keyed
from .suppress import OVERLAP

_THREADS = 256
_IMAGES, _ANCHORS, _TRUE, _CLASSES = 8, 8732, 20, 21
_ALL = _IMAGES * _ANCHORS
_LABELS = 4 * _IMAGES * _TRUE * 5
_WHAT = f"{_IMAGES} images of {_ANCHORS:,} anchors and {_TRUE} true boxes"

_PAIR = f"""{OVERLAP}__device__ A of_pair(const T *anchor, const T *truth) {{
  A a[5], b[5];
  for (int c = 0; c < 4; ++c) {{
    a[c] = A(anchor[c]);
    b[c] = A(truth[c]);
  }}
  a[4] = area_of(a[0], a[1], a[2], a[3], A(0));
  b[4] = area_of(b[0], b[1], b[2], b[3], A(0));
  return overlap(a, b, A(0));
}}
"""
MATCH = KernelTemplate(
    "opbox_multibox_match",
    f"const T *anchor, const T *label, const int *real, int rows, int widest, int width, {MATCHED}",
    matching(
        "of_pair(anchor + 4 * row, label + column * width + 1)",
        """  const int columns = real[blockIdx.x];
  label += (long long)blockIdx.x * widest * width;
""",
    ),
    (_WHAT, lambda: Moved(16 * _ALL * _TRUE // 32 + _LABELS + 4 * _ALL, 16 * _ANCHORS + _LABELS + 4 * _ALL)),
    f"{_PAIR}{PAIRS}",
)
REAL = KernelTemplate(
    "opbox_multibox_real",
    "const T *label, int *real, int widest, int width",
    """  __shared__ int first;
  if (threadIdx.x == 0) first = widest;
  __syncthreads();
  // True boxes end with the first row of class -1.
  const T *row = label + (long long)blockIdx.x * widest * width;
  for (int k = threadIdx.x; k < widest; k += blockDim.x)
    if (A(row[k * width]) == -1) atomicMin(&first, k);
  __syncthreads();
  if (threadIdx.x == 0) real[blockIdx.x] = first;
""",
    (_WHAT, lambda: Moved(_LABELS // 5, _LABELS // 5)),
)
SCORES = KernelTemplate(
    "opbox_multibox_keys",
    f"const T *anchor, const T *label, const int *real, int rows, int columns, int width, {SCORED}",
    keyed(
        "of_pair(anchor + 4 * row, label + ((long long)image * columns + column) * width + 1)",
        real="column < real[image]",
    ),
    (_WHAT, lambda: Moved(4 * _ALL * _TRUE + 16 * _ANCHORS + _LABELS, 4 * _ALL * _TRUE + 16 * _ANCHORS + _LABELS)),
    f"{_PAIR}{KEYS}",
)
ASSIGN = KernelTemplate(
    "opbox_multibox_assign",
    "const T *anchor, const T *label, const T *pred, const int *real, int *chosen, unsigned char *state, A *keys, "
    "int total, int n, int widest, int width, int classes, int padded, int mining, A least, A most, A lowest",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= total) return;
  const int k = number % n, image = number / n;
  const T *truth = label + (long long)image * widest * width;
  A best = 0;
  int nearest = 0;
  for (int c = 0; c < widest; ++c) {
    const A share = c < real[image] ? of_pair(anchor + 4 * k, truth + c * width + 1) : A(-1);
    // An overlap that is no number counts as the greatest, and is above nothing.
    if (c == 0 || share > best || (share != share && best == best)) {
      best = share;
      nearest = c;
    }
  }
  const bool matched = chosen[number] >= 0 || (least > 0 && best > least);
  if (chosen[number] < 0) chosen[number] = nearest;
  const bool candidate = !matched && best < most;
  state[number] = matched + 2 * candidate;
  if (!mining) return;
  const T *odds = pred + (long long)image * classes * n + k;
  A greatest = A(odds[0]), total_odds = 0;
  for (int c = 1; c < classes; ++c) greatest = greater(greatest, A(odds[(long long)c * n]));
  const A background = rounded(exp(rounded(A(odds[0]) - greatest)));
  for (int c = 0; c < classes; ++c)
    total_odds = rounded(total_odds + rounded(exp(rounded(A(odds[(long long)c * n]) - greatest))));
  keys[(long long)image * padded + k] = candidate ? -rounded(background / total_odds) : lowest;
""",
    (
        _WHAT,
        lambda: Moved(4 * _ALL * (2 * _CLASSES + 3) + _ALL + _LABELS, 4 * _ALL * (_CLASSES + 3) + _ALL + _LABELS),
    ),
    _PAIR,
)
WANTED = KernelTemplate(
    "opbox_multibox_wanted",
    "const unsigned char *state, int *wanted, int n, double ratio",
    f"""  __shared__ int scratch[{_THREADS}];
  int matched = 0;
  for (int k = threadIdx.x; k < n; k += blockDim.x) matched += state[(long long)blockIdx.x * n + k] & 1;
  scratch[threadIdx.x] = matched;
  __syncthreads();
  for (int half = blockDim.x / 2; half > 0; half /= 2) {{
    if (threadIdx.x < half) scratch[threadIdx.x] += scratch[threadIdx.x + half];
    __syncthreads();
  }}
  if (threadIdx.x == 0) wanted[blockIdx.x] = int(fmin(trunc(scratch[0] * ratio), double(n - scratch[0])));
""",
    (_WHAT, lambda: Moved(_ALL, _ALL)),
)
CHOOSE = KernelTemplate(
    "opbox_multibox_background",
    "const int *places, const int *wanted, unsigned char *state, int total, int n, int padded",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= total) return;
  const int rank = number % n, image = number / n;
  const int at = image * n + places[(long long)image * padded + rank];
  if (state[at] & 2 && rank < wanted[image]) state[at] += 4;
""",
    (_WHAT, lambda: Moved(6 * _ALL, 6 * _ALL)),
)
TARGETS = KernelTemplate(
    "opbox_multibox_targets",
    "const T *anchor, const T *label, const int *real, const int *chosen, const unsigned char *state, T *loc_target, "
    "T *loc_mask, T *cls_target, int total, int n, int widest, int width, int mining, int outputs, A x_variance, "
    "A y_variance, A width_variance, A height_variance, A ignored",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= total) return;
  const int k = number % n, image = number / n;
  const T *truth = label + ((long long)image * widest + chosen[number]) * width;
  const bool matched = state[number] & 1;
  if (outputs & 4) {
    const bool background = real[image] > 0 && (mining ? state[number] & 4 : !matched);
    cls_target[number] = T(matched ? rounded(A(truth[0]) + 1) : background ? A(0) : ignored);
  }
  for (int axis = 0; axis < 2; ++axis) {
    const A first = A(anchor[4 * k + axis]), last = A(anchor[4 * k + axis + 2]), size = rounded(last - first);
    const A from = A(truth[1 + axis]), to = A(truth[3 + axis]);
    const A middle = rounded(rounded(first + last) / 2), wanted = rounded(rounded(from + to) / 2);
    const A shift = rounded(rounded(wanted - middle) / size);
    const A stretch = rounded(log(rounded(rounded(to - from) / size)));
    const long long at = 4 * (long long)number + axis;
    if (outputs & 1) {
      loc_target[at] = T(matched ? shift / (axis ? y_variance : x_variance) : A(0));
      loc_target[at + 2] = T(matched ? stretch / (axis ? height_variance : width_variance) : A(0));
    }
    if (outputs & 2) loc_mask[at] = loc_mask[at + 2] = T(A(matched));
  }
""",
    (_WHAT, lambda: Moved(_ALL * (36 + 5) + 16 * _ANCHORS + _LABELS, _ALL * (36 + 5) + 16 * _ANCHORS + _LABELS)),
    OVERLAP,
)
KERNELS += [MATCH, REAL, SCORES, ASSIGN, WANTED, CHOOSE, TARGETS]


def _temps(p: MultiBoxTargetParams, call: CallSpec) -> list[Temp]:
    """Temporaries of the matching and of mining: true boxes of images, states of anchors, backgrounds, keys, places."""
    anchor, label, _ = call.inputs
    (batch, true, _), n = label.shape, anchor.shape[1]
    return [
        *match_temps(batch, n, true, anchor.dtype),
        *(Temp((batch,), np.int32), Temp((batch, n), np.uint8), Temp((batch,), np.int32)),
        *sort_temps(batch if p.negative_mining_ratio > 0 else 1, n, anchor.dtype),
    ]


def _accepts(p: MultiBoxTargetParams, call: CallSpec) -> bool:
    return (
        fits(call, *call.inputs, *call.outputs)
        and matchable(call.inputs[0].shape[1], call.inputs[1].shape[1])
        and all(math.prod(temp.shape) <= MAX_ELEMENTS for temp in _temps(p, call))
    )


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: MultiBoxTargetParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    present = [out for out in outputs if out is not None]
    if not present:
        return nothing
    (anchor, label, pred), calls = contiguous(ctx, inputs)
    chosen, (real, state, wanted, keys, places) = ctx.temp[0], ctx.temp[-5:]
    (batch, true, width), (_, classes, n), dtype = label.shape, pred.shape, label.dtype
    padded, mining = keys.shape[1], p.negative_mining_ratio > 0

    def number(value: float) -> Any:
        return rounded_scalar(value, dtype)

    arguments: tuple[Any, ...] = (anchor, label, real, *map(np.int32, (n, true, width)))
    calls.append(REAL.call(ctx, dtype, batch, _THREADS, (label, real, *map(np.int32, (true, width)))))
    calls += match_calls(ctx, MATCH, SCORES, dtype, arguments, MAX_ELEMENTS, number(MIN_OVERLAP))
    sizes = map(np.int32, (batch * n, n, true, width, classes, padded, mining))
    numbers = map(number, (p.overlap_threshold, p.negative_mining_thresh, -np.inf))
    arguments = (anchor, label, pred, real, chosen, state, keys, *sizes, *numbers)
    calls.append(ASSIGN.over(ctx, dtype, batch * n, arguments))
    if mining:
        ratio = np.float64(p.negative_mining_ratio)
        calls.append(WANTED.call(ctx, dtype, batch, _THREADS, (state, wanted, np.int32(n), ratio)))
        calls += sort_calls(ctx, keys, places, n)
        sizes = map(np.int32, (batch * n, n, padded))
        calls.append(CHOOSE.over(ctx, dtype, batch * n, (places, wanted, state, *sizes)))
    targets = [present[0] if out is None else out for out in outputs]
    which = sum(1 << k for k, out in enumerate(outputs) if out is not None)
    sizes = map(np.int32, (batch * n, n, true, width, mining, which))
    arguments = (anchor, label, real, chosen, state, *targets, *sizes, *map(number, (*p.variances, p.ignore_label)))
    calls.append(TARGETS.over(ctx, dtype, batch * n, arguments))
    return as_one(calls)
