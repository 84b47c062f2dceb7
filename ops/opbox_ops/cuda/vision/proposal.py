"""_contrib_Proposal and _contrib_MultiProposal on a GPU: boxes from anchors, sorted, suppressed, and written in order.

Boxes are computed in double precision, as in the reference, so that the same ones stay; `vision/proposal` has the
formulas. A box's last number is its score.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...accumulation import accumulation_type
from ...bound_calls import as_one, nothing
from ...compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ...vision.proposal import ProposalParams, anchors_of, multi_proposal, proposal
from ..kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits
from .arithmetic import PRODUCT
from .sort_rows import sort_calls, sort_temps
from .suppress import SIDES, Rule, suppress_calls, suppress_temps

_COUNT, _HEIGHT, _WIDTH, _REGIONS = 12, 38, 50, 300
_BOXES = _COUNT * _HEIGHT * _WIDTH
_WHAT = f"{_COUNT} anchors at {_HEIGHT} x {_WIDTH} places"

BOXES = KernelTemplate(
    "opbox_proposal_boxes",
    "const T *prob, const T *pred, const T *info, const double *anchors, double *keys, double *boxes, int total, "
    "int count, int height, int width, int padded, int stride, int least_size, int corners",
    f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= total) return;
  const int n = count * height * width, image = number / n, anchor = number % count;
  const int x = number / count % width, y = number / (count * width) % height, area = height * width;
  const T *of_image = info + 3 * image, *move = pred + (image * count + anchor) * 4 * area + y * width + x;
  const A least = product(A(least_size), A(of_image[2]));
  double box[4];
  bool small = false, beyond = false;
  for (int axis = 0; axis < 2; ++axis) {{
    const int place = axis ? y : x;
    const double shift = double(place) * stride;
    const double first = anchors[4 * anchor + axis] + shift, last = anchors[4 * anchor + axis + 2] + shift;
    const A near = A(move[axis * area]), far = A(move[(axis + 2) * area]), side = A(of_image[1 - axis]);
    if (corners) {{
      box[axis] = first + near;
      box[axis + 2] = last + far;
    }} else {{
      const double size = last - first + 1, middle = first + 0.5 * (size - 1);
      const double at = product(double(near), size) + middle, reach = 0.5 * (product(double(exp(far)), size) - 1);
      box[axis] = at - reach;
      box[axis + 2] = at + reach;
    }}
    for (int c = axis; c < 4; c += 2) {{
      const double edge = side - A(1);
      // What is no number stays so.
      if (box[c] > edge || edge != edge) box[c] = edge;
      if (box[c] < 0) box[c] = 0;
    }}
    small = small || box[axis + 2] - box[axis] + 1 < least;
    beyond = beyond || !(place < trunc(side / A(stride)));
  }}
  if (small)
    for (int c = 0; c < 4; ++c) box[c] += c < 2 ? -double(least / 2) : double(least / 2);
  const A score = small || beyond ? A(-1) : A(prob[(image * 2 * count + count + anchor) * area + y * width + x]);
  keys[(long long)image * padded + number % n] = score;
  double *out = boxes + (long long)number * {SIDES};
  for (int c = 0; c < 4; ++c) out[c] = box[c];
  const double across = box[2] - box[0] + 1, down = box[3] - box[1] + 1;
  out[4] = (across < 0 ? 0 : across) * (down < 0 ? 0 : down);
  out[5] = score;
""",
    (_WHAT, lambda: Moved(_BOXES * (4 * 5 + 8 * (SIDES + 1)), _BOXES * (4 * 5 + 8 * (SIDES + 1)))),
    PRODUCT,
)
_CHOSEN = f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= total) return;
  const int image = number / regions;
  // Where fewer boxes stay, they are repeated from the first on.
  const int source = sources[(long long)image * n + number % regions % max(counts[image], 1)];
  const double *box = boxes + ((long long)image * n + source) * {SIDES};
"""
REGIONS = KernelTemplate(
    "opbox_proposal_regions",
    "const double *boxes, const int *sources, const int *counts, T *rois, int total, int regions, int n",
    _CHOSEN
    + """  rois[(long long)number * 5] = T(A(image));
  for (int c = 0; c < 4; ++c) rois[(long long)number * 5 + c + 1] = T(A(box[c]));
""",
    (f"{_REGIONS} regions", lambda: Moved(_REGIONS * (20 + 32 + 4), _REGIONS * (20 + 32 + 4))),
)
SCORES = KernelTemplate(
    "opbox_proposal_scores",
    "const double *boxes, const int *sources, const int *counts, T *scores, int total, int regions, int n",
    _CHOSEN + "  scores[number] = T(A(box[5]));\n",
    (f"{_REGIONS} regions", lambda: Moved(_REGIONS * (4 + 8 + 4), _REGIONS * (4 + 8 + 4))),
)
KERNELS += [BOXES, REGIONS, SCORES]


def _boxes(p: ProposalParams, shape: tuple[int, ...]) -> int:
    """Boxes of an image."""
    return len(p.scales) * len(p.ratios) * math.prod(shape[2:])


def _temps(p: ProposalParams, call: CallSpec) -> list[Temp]:
    batch, n = call.inputs[0].shape[0], _boxes(p, call.inputs[0].shape)
    return [*suppress_temps(batch, n, "float64"), *sort_temps(batch, n, "float64")]


def _accepts(p: ProposalParams, call: CallSpec) -> bool:
    return fits(call, *call.inputs, call.outputs[0]) and all(
        math.prod(t.shape) <= MAX_ELEMENTS for t in _temps(p, call)
    )


@multi_proposal.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
@proposal.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: ProposalParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    rois, scores = outputs
    if rois is None and scores is None:
        return nothing
    (prob, pred, info), calls = contiguous(ctx, inputs)
    boxes, _, sources, counts, *_ = ctx.temp[:6]
    keys, places = ctx.temp[6:]
    batch, _, height, width = prob.shape
    n, dtype = _boxes(p, prob.shape), prob.dtype
    corners = np.array(anchors_of(p.feature_stride, tuple(p.scales), tuple(p.ratios)), accumulation_type(dtype))
    anchors = ctx.backend.put(corners.astype(np.float64))
    sizes = (batch * n, len(corners), height, width, keys.shape[1], p.feature_stride, p.rpn_min_size, p.iou_loss)
    calls.append(BOXES.over(ctx, dtype, batch * n, (prob, pred, info, anchors, keys, boxes, *map(np.int32, sizes))))
    calls += sort_calls(ctx, keys, places, n)
    competing = min(p.rpn_pre_nms_top_n, n) if p.rpn_pre_nms_top_n > 0 else n
    rule = Rule(competing, min(p.rpn_post_nms_top_n, competing), p.threshold, all=True, margin=1)
    calls += suppress_calls(ctx, np.float64, rule, keys, places, ctx.temp[:6])
    total = batch * p.rpn_post_nms_top_n
    for kernel, out in ((REGIONS, rois), (SCORES, scores)):
        if out is not None:
            rows = map(np.int32, (total, p.rpn_post_nms_top_n, n))
            calls.append(kernel.over(ctx, dtype, total, (boxes, sources, counts, out, *rows)))
    return as_one(calls)
