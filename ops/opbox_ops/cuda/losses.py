"""softmax_cross_entropy, and the gradients of SoftmaxOutput and SVMOutput, on a GPU.

    out = -sum over rows of log softmax(data)[label]    softmax_cross_entropy; gdata = gout (softmax(data) - one_hot)
    gdata = scale (out - one_hot(label))                SoftmaxOutput

A cross entropy reads its rows as softmax does; each block adds the losses of its rows up, one block those of all. The
gradient of SoftmaxOutput is a thread for four elements; where it is divided by the number of valid labels, a launch
before it counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..loss import softmax_cross_entropy, softmax_output, svm_output
from ..loss.softmax_cross_entropy import MIN_PROBABILITY
from ..params import NoParams
from .division import DIVISION, declared, divisors
from .fours import by_rows
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, scalar
from .row_blocks import APPLY, ROW, ROW_SIZES, RowBlocks
from .softmax import ONLINE, exponentials

_THREADS = 256
_MAX_COUNTS = 256
"""Blocks that count labels: as many numbers as a block's threads read at once."""
_ROWS, _CLASSES = 4096, 1000
_ELEMENTS = _ROWS * _CLASSES
_EXAMPLE = "4,096 rows of 1,000"

CROSS_ENTROPY = KernelTemplate(
    "opbox_cross_entropy",
    f"const T *data, const T *label, A *losses, A *parts, {ROW_SIZES}, int phase",
    f"""  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
{exponentials("A(data[at])")}  A loss = 0;
  if (row.lane == 0 && row.inside) {{
    const A wanted = trunc(A(label[row.number]));
    const bool real = wanted >= 0 && wanted < n;
    const A p = real ? exp(A(data[row.start + (long long)wanted]) - all.top) / all.sum : A(0);
    loss = -log(p < A({MIN_PROBABILITY}) ? A({MIN_PROBABILITY}) : p);
  }}
  loss = block_sum(loss, scratch);
  if (row.slice == 0 && threadIdx.x == 0) losses[blockIdx.x / slices] = loss;
""",
    (_EXAMPLE, lambda: Moved(4 * (_ELEMENTS + _ROWS), 4 * (_ELEMENTS + _ROWS))),
    declares=ROW + ONLINE,
)
TOTAL = KernelTemplate(
    "opbox_cross_entropy_total",
    "const A *losses, T *out, int count",
    """  extern __shared__ A scratch[];
  A sum = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += losses[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) out[0] = T(sum);
""",
    ("4,096 losses", lambda: Moved(4 * (_ROWS + 1), 4 * (_ROWS + 1))),
)
_CROSSED = """const A p = exp(z - all.top) * inverse;
      gdata[at] = T((wanted == A(i) ? p - 1 : p) * factor);"""
CROSS_ENTROPY_BACK = KernelTemplate(
    "opbox_cross_entropy_back",
    f"const T *gout, const T *data, const T *label, T *gdata, A *parts, {ROW_SIZES}, int phase",
    f"""  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
{exponentials("A(data[at])")}  const A wanted = trunc(A(label[row.number])), factor = A(gout[0]), inverse = 1 / all.sum;
{by_rows({"z": "A(data[at])"}, _CROSSED)}""",
    (_EXAMPLE, lambda: Moved(4 * (2 * _ELEMENTS + _ROWS), 4 * (2 * _ELEMENTS + _ROWS))),
    declares=ROW + ONLINE,
)
VALID = KernelTemplate(
    "opbox_softmax_valid_labels",
    "const T *label, A *counts, int labels, A ignored",
    """  extern __shared__ A scratch[];
  A count = 0;
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < labels; i += gridDim.x * blockDim.x)
    count += trunc(A(label[i])) != ignored;
  count = block_sum(count, scratch);
  if (threadIdx.x == 0) counts[blockIdx.x] = count;
""",
    ("4,096 labels", lambda: Moved(4 * (_ROWS + 16), 4 * (_ROWS + 16))),
)
LOSS_BACK = KernelTemplate(
    "opbox_softmax_loss_back",
    "const T *out, const T *label, const T *gout, T *gdata, const A *counts, int count_parts, int classes, "
    "int positions, int elements, A scale, A hit, A spread, int ignores, A ignored, int of_classes, int with_gout, "
    + declared("classes", "positions"),
    """  extern __shared__ A scratch[];
  if (count_parts > 0) {
    const A count = block_sum(threadIdx.x < count_parts ? counts[threadIdx.x] : A(0), scratch);
    if (count > 1) scale /= count;
  }
  const long long first = (long long)blockIdx.x * blockDim.x * 4 + threadIdx.x;
  A value_of[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const long long at = first + j * blockDim.x;
    if (at >= elements) break;
    A value = A(out[at]);
    if (of_classes) {
      const int number = int(at), rest = OPBOX_QUOTIENT(number, positions), row = OPBOX_QUOTIENT(rest, classes);
      const A wanted = trunc(A(label[row * positions + number - rest * positions]));
      value -= spread;
      if (wanted == A(rest - row * classes)) value -= hit;
      if (ignores && wanted == ignored) value = 0;
    } else {
      value -= A(label[at]);
    }
    value *= scale;
    value_of[j] = with_gout ? value * A(gout[at]) : value;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (first + j * blockDim.x < elements) gdata[first + j * blockDim.x] = T(value_of[j]);
""",
    (_EXAMPLE, lambda: Moved(4 * (2 * _ELEMENTS + _ROWS), 4 * (2 * _ELEMENTS + _ROWS))),
    declares=DIVISION,
)
_HINGE = """const A y = wanted == A(i) ? A(1) : A(-1), distance = margin - y * x;
      const A beyond = distance > 0 || distance != distance ? distance : A(0);
      gdata[at] = T((linear ? (distance > 0 ? y : A(0)) : 2 * y * beyond) * factor);"""
SVM_BACK = KernelTemplate(
    "opbox_svm_back",
    f"const T *label, const T *out, T *gdata, A margin, A factor, int linear, {ROW_SIZES}, int phase",
    f"""  const Row row = row_here(outer, n, inner, width, lanes, slices);
  const A wanted = trunc(A(label[row.number]));
{by_rows({"x": "A(out[at])"}, _HINGE)}""",
    (_EXAMPLE, lambda: Moved(4 * (2 * _ELEMENTS + _ROWS), 4 * (2 * _ELEMENTS + _ROWS))),
    declares=ROW,
)
KERNELS += [CROSS_ENTROPY, TOTAL, CROSS_ENTROPY_BACK, VALID, LOSS_BACK, SVM_BACK]


def _blocks(call: CallSpec) -> RowBlocks:
    """The rows of data, which is the last input but one."""
    rows, classes = call.inputs[-2].shape
    return RowBlocks(rows, classes, 1)


def _loss_temps(p: NoParams, call: CallSpec) -> list[Temp]:
    blocks, data = _blocks(call), call.inputs[0]
    return [Temp((blocks.row_blocks,), accumulation_type(data.dtype)), blocks.parts(2, data.dtype)]


@softmax_cross_entropy.op.compute(
    "gpu", level="generated", prepares=True, accepts=lambda p, call: fits(call, *call.inputs), temps=_loss_temps
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data, label), calls = contiguous(ctx, inputs)
    (losses, parts), blocks = ctx.temp, _blocks(ctx.call)
    calls += blocks.calls(ctx, CROSS_ENTROPY, data.dtype, (data, label, losses, parts))
    total = (losses, outputs[0], np.int32(losses.size))
    scratch = _THREADS * losses.dtype.itemsize
    return as_one([*calls, TOTAL.call(ctx, data.dtype, 1, _THREADS, total, scratch)])


@softmax_cross_entropy.backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, *call.inputs),
    temps=lambda p, call: [_blocks(call).parts(2, call.inputs[1].dtype)],
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    arguments = (*arrays, outputs[0], ctx.temp[0])
    return as_one([*calls, *_blocks(ctx.call).calls(ctx, CROSS_ENTROPY_BACK, arrays[1].dtype, arguments)])


def _of_classes(call: CallSpec) -> bool:
    """Return whether labels are class numbers, not probabilities."""
    label, out = call.inputs[:2]
    return label.shape != out.shape


def _count_blocks(p: softmax_output.SoftmaxOutputParams, call: CallSpec) -> int:
    """Blocks that count the valid labels; 0 where nothing is divided by their number."""
    if p.normalization != "valid" or not _of_classes(call):
        return 0
    return min(_MAX_COUNTS, -(-size_of(call.inputs[0].shape) // _THREADS))


@softmax_output.backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, *call.inputs, call.outputs[0]),
    temps=lambda p, call: [Temp((max(1, _count_blocks(p, call)),), accumulation_type(call.inputs[1].dtype))],
)
def _(p: softmax_output.SoftmaxOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (label, out, *gout), calls = contiguous(ctx, inputs)
    (counts,), dtype, of_classes = ctx.temp, out.dtype, _of_classes(ctx.call)
    count_blocks = _count_blocks(p, ctx.call)
    scratch, ignored = _THREADS * counts.dtype.itemsize, scalar(int(p.ignore_label), dtype)
    if count_blocks:
        counted = (label, counts, np.int32(label.size), ignored)
        calls.append(VALID.call(ctx, dtype, count_blocks, _THREADS, counted, scratch))
    _, classes, positions = softmax_output.row_shape(p, out.shape)
    smooth = p.smooth_alpha if not p.multi_output else 0.0
    spread = smooth / max(1, classes - 1)
    scale = softmax_output.divided_scale(p, label.shape, positions) if of_classes else p.grad_scale
    sizes = map(np.int32, (count_blocks, classes, positions, out.size))
    factors = (scalar(n, dtype) for n in (scale, 1 - smooth - spread, spread))
    flags = (np.int32(p.use_ignore), ignored, np.int32(of_classes), np.int32(p.out_grad))
    numbers = (*sizes, *factors, *flags, *divisors(classes, positions))
    arrays = (out, label, gout[0] if p.out_grad else out, outputs[0], counts)
    grid = -(-out.size // (4 * _THREADS))
    return as_one([*calls, LOSS_BACK.call(ctx, dtype, grid, _THREADS, (*arrays, *numbers), scratch)])


@svm_output.backward.compute(
    "gpu", level="generated", prepares=True, accepts=lambda p, call: fits(call, *call.inputs, call.outputs[0])
)
def _(p: svm_output.SVMOutputParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (label, out), calls = contiguous(ctx, inputs)
    factors = (scalar(p.margin, out.dtype), scalar(-p.regularization_coefficient, out.dtype), np.int32(p.use_linear))
    blocks = RowBlocks(label.size, out.shape[-1], 1)
    return as_one([*calls, *blocks.calls(ctx, SVM_BACK, out.dtype, (label, out, outputs[0], *factors), (APPLY,))])
