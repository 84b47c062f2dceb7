"""_contrib_box_nms on a GPU: boxes with their scores as keys, sorted, suppressed, and written in order.

`vision/box_nms` says which boxes compete; numbers are rounded as NumPy rounds them, so that the same boxes stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...bound_calls import as_one, nothing
from ...compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ...vision.box_nms import BoxNmsParams, backward, op
from ..kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, contiguous, fits
from .arithmetic import ROUNDED, rounded_scalar
from .sort_rows import sort_calls, sort_temps
from .suppress import OVERLAP, SIDES, Rule, suppress_calls, suppress_temps

_ROWS, _BOXES, _WIDTH = 8, 8732, 6
_DATA = 4 * _ROWS * _BOXES * _WIDTH
_WHAT = f"{_ROWS} images of {_BOXES:,} boxes"

PREPARE = KernelTemplate(
    "opbox_nms_prepare",
    "const T *data, A *keys, A *boxes, int count, int n, int padded, int width, int score, int coordinates, int label, "
    "int center, A least, A background, A lowest",
    f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= count) return;
  const T *row = data + (long long)number * width;
  const A value = A(row[score]);
  const bool valid = value > least && (label < 0 || A(row[label]) != background);
  keys[(long long)(number / n) * padded + number % n] = valid ? value : lowest;
  A *box = boxes + (long long)number * {SIDES};
  for (int c = 0; c < 4; ++c) box[c] = A(row[coordinates + c]);
  if (center)
    for (int c = 0; c < 2; ++c) {{
      const A middle = box[c], half = rounded(box[c + 2] / 2);
      box[c] = rounded(middle - half);
      box[c + 2] = rounded(middle + half);
    }}
  box[4] = area_of(box[0], box[1], box[2], box[3], A(0));
  box[5] = label < 0 ? A(0) : A(row[label]);
""",
    (
        _WHAT,
        lambda: Moved(_DATA + 4 * _ROWS * _BOXES * (SIDES + 1), _DATA + 4 * _ROWS * _BOXES * (SIDES + 1)),
    ),
    OVERLAP,
)
WRITE = KernelTemplate(
    "opbox_nms_write",
    "const T *data, const int *sources, T *out, int elements, int n, int width, int coordinates, int change",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int column = number % width, rank = number / width, source = sources[rank];
  if (source < 0) {
    out[number] = T(-1.0f);
    return;
  }
  const T *row = data + (long long)(rank - rank % n + source) * width;
  const int side = column - coordinates;
  A value = A(row[column]);
  if (change && side >= 0 && side < 4 && !(A(row[coordinates]) < 0)) {
    const A first = A(row[coordinates + side % 2]), second = A(row[coordinates + side % 2 + 2]);
    // 1: to a middle and a size, 2: to corners.
    if (change == 1) value = side < 2 ? rounded(rounded(first + second) / 2) : rounded(second - first);
    else value = side < 2 ? rounded(first - rounded(second / 2)) : rounded(first + rounded(second / 2));
  }
  out[number] = T(value);
""",
    (_WHAT, lambda: Moved(2 * _DATA + 4 * _ROWS * _BOXES, 2 * _DATA + 4 * _ROWS * _BOXES)),
    ROUNDED,
)
ORIGIN = KernelTemplate(
    "opbox_nms_origin",
    "const int *sources, long long *origin, int count, int n",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= count) return;
  origin[number] = sources[number] < 0 ? -1 : number - number % n + sources[number];
""",
    (_WHAT, lambda: Moved(12 * _ROWS * _BOXES, 12 * _ROWS * _BOXES)),
)
ALL_IN_ORDER = KernelTemplate(
    "opbox_nms_all",
    "int *sources, int count, int n",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number < count) sources[number] = number % n;
""",
    (_WHAT, lambda: Moved(4 * _ROWS * _BOXES, 4 * _ROWS * _BOXES)),
)
BACKWARD = KernelTemplate(
    "opbox_nms_back",
    "const T *gout, const long long *origin, T *gdata, int elements, int rows, int width",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const long long source = origin[number / width];
  if (source >= 0 && source < rows) gdata[source * width + number % width] = gout[number];
""",
    (_WHAT, lambda: Moved(2 * _DATA + 8 * _ROWS * _BOXES, 2 * _DATA + 8 * _ROWS * _BOXES)),
)
KERNELS += [PREPARE, WRITE, ORIGIN, ALL_IN_ORDER, BACKWARD]


def _rows(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the number of batches, of boxes in each, and of numbers in a box's row."""
    return math.prod(shape[:-2]), shape[-2], shape[-1]


def _temps(p: BoxNmsParams, call: CallSpec) -> list[Temp]:
    batch, n, _ = _rows(call.inputs[0].shape)
    dtype = call.inputs[0].dtype
    return [*suppress_temps(batch, n, dtype), *sort_temps(batch, n, dtype)]


def _accepts(p: BoxNmsParams, call: CallSpec) -> bool:
    data = call.inputs[0]
    return fits(call, data) and all(math.prod(temp.shape) <= MAX_ELEMENTS for temp in _temps(p, call))


def _choose(p: BoxNmsParams, ctx: OpContext, data: Any) -> list[Callable[[], Any]]:
    """Calls that write the sources of the boxes that stay."""
    batch, n, width = _rows(data.shape)
    boxes, _, sources, *_ = suppressed = ctx.temp[:6]
    keys, places = ctx.temp[6:]
    count = batch * n
    if not p.topk:
        return [ALL_IN_ORDER.over(ctx, data.dtype, count, (sources, np.int32(count), np.int32(n)))]
    places_in_row = (p.score_index, p.coord_start, p.id_index, p.in_format == "center")
    sizes = map(np.int32, (count, n, keys.shape[1], width, *places_in_row))
    numbers = (rounded_scalar(value, data.dtype) for value in (p.valid_thresh, p.background_id, -np.inf))
    competing = min(p.topk, n) if p.topk > 0 else n
    rule = Rule(competing, n, p.overlap_thresh, by_class=p.id_index >= 0 and not p.force_suppress)
    return [
        PREPARE.over(ctx, data.dtype, count, (data, keys, boxes, *sizes, *numbers)),
        *sort_calls(ctx, keys, places, n),
        *suppress_calls(ctx, data.dtype, rule, keys, places, suppressed),
    ]


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: BoxNmsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out, origin = outputs
    if out is None and origin is None:
        return nothing
    (data,), calls = contiguous(ctx, inputs)
    batch, n, width = _rows(data.shape)
    sources = ctx.temp[2]
    calls += _choose(p, ctx, data)
    if out is not None:
        change = 0 if not p.topk or p.in_format == p.out_format else 1 if p.out_format == "center" else 2
        sizes = map(np.int32, (out.size, n, width, p.coord_start, change))
        calls.append(WRITE.over(ctx, data.dtype, out.size, (data, sources, out, *sizes)))
    if origin is not None:
        sizes = map(np.int32, (batch * n, n))
        calls.append(ORIGIN.over(ctx, data.dtype, batch * n, (sources, origin, *sizes)))
    return as_one(calls)


def _accepts_gradient(p: BoxNmsParams, call: CallSpec) -> bool:
    gout, origin = call.inputs
    return fits(call, gout, call.outputs[0]) and origin.dtype == np.int64


@backward.compute("gpu", level="generated", prepares=True, accepts=_accepts_gradient)
def _(p: BoxNmsParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (gdata,) = outputs
    if gdata is None:
        return nothing
    (gout, origin), calls = contiguous(ctx, inputs)
    sizes = map(np.int32, (gout.size, origin.size, gout.shape[-1]))
    calls += [partial(gdata.fill, 0), BACKWARD.over(ctx, gout.dtype, gout.size, (gout, origin, gdata, *sizes))]
    return as_one(calls)
