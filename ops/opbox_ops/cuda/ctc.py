"""CTCLoss on a GPU: the recursion of a label is a block, whose threads have the label's positions, step after step.

A first launch has the logarithm of the sum of each step's exponentials. The second writes the label with blanks, then
goes along the steps; for the gradient, as many blocks go from the end to the beginning. The third is a block for each
step of each sample: it adds up what the positions of a class have, in their order, and writes the gradient.

`loss/ctc` has the formulas. Labels that are too long for a block's memory are the reference's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..loss.ctc import CTCLossParams, op
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, threads_for
from .row_blocks import LANES, ROW, ROW_SIZES, RowBlocks
from .softmax import ONLINE, exponentials

_THREADS = 256
_SHARED = 40_960
"""Bytes of shared memory that a block takes for positions."""
_TIME, _BATCH, _CLASSES, _LENGTH = 500, 32, 80, 60
_DATA, _WAYS = _TIME * _BATCH * _CLASSES, _TIME * _BATCH * (2 * _LENGTH + 1)
_EXAMPLE = f"{_TIME} steps of {_BATCH} samples, {_CLASSES} classes, {_LENGTH} numbers"
_FIRST = 1 << 30
"""The bit of a position whose class no earlier position has."""

STEPS = KernelTemplate(
    "opbox_ctc_steps",
    f"const T *data, A *logs, A *parts, {ROW_SIZES}, int phase",
    f"""  extern __shared__ A scratch[];
  const Row row = row_here(outer, n, inner, width, lanes, slices);
{exponentials("A(data[at])")}  if (row.lane > 0 || row.slice > 0 || !row.inside) return;
  logs[row.number] = all.top;
  logs[outer + row.number] = log(all.sum);
""",
    (_EXAMPLE, lambda: Moved(4 * (_DATA + 2 * _TIME * _BATCH), 4 * (_DATA + 2 * _TIME * _BATCH))),
    declares=ROW + ONLINE,
)
_WHOLE = """__device__ int whole(double value) {
  return value != value || value < -1e9 ? -1000000000 : value > 1e9 ? 1000000000 : int(value);
}
"""
_EITHER = """__device__ A either(A a, A b, A c) {  // log(exp(a) + exp(b) + exp(c))
  A top = a;
  if (b > top || b != b) top = b;
  if (c > top || c != c) top = c;
  return top < 0 && top - top != 0 ? top : top + log(exp(a - top) + exp(b - top) + exp(c - top));
}
"""
_SIZES = "int time, int batch, int classes, int length"
RECURSION = KernelTemplate(
    "opbox_ctc_recursion",
    "const T *data, const double *label, const double *data_lengths, const double *label_lengths, const A *logs, "
    f"T *out, A *totals, int *samples, int *links, A *ways, {_SIZES}, int blank, int padding, int with_data_lengths, "
    "int with_label_lengths, int writes, int both",
    f"""  extern __shared__ A scratch[];
  const int positions = 2 * length + 1, t = threadIdx.x, b = blockIdx.x % batch;
  const bool back = blockIdx.x >= batch;
  A *before = scratch + blockDim.x, *now = before + positions;
  int *written = (int *)(now + positions);
  label += (long long)b * length;
  int steps = time, count = length;
  if (with_data_lengths) steps = max(0, min(time, whole(data_lengths[b])));
  if (with_label_lengths) {{
    count = max(0, min(length, whole(label_lengths[b])));
  }} else {{
    for (int j = t; j < count; j += blockDim.x)
      if (whole(label[j]) == padding) count = j;
    count = least_over_lanes(count, (int *)scratch, 1, blockDim.x);
  }}
  const int end = 2 * count;
  int strange = 0, repeats = 0;
  for (int base = 0; base < length; base += blockDim.x) {{
    const int j = base + t, number = j < length ? whole(label[j]) : 0;
    const bool inside = j < count, real = number >= 0 && number < classes;
    if (j < length) written[2 * j + 1] = inside && real ? number : blank;
    strange += __syncthreads_count(inside && !real);
    repeats += __syncthreads_count(inside && j > 0 && number == whole(label[j - (j > 0)]));
  }}
  for (int j = t; j <= length; j += blockDim.x) written[2 * j] = blank;
  __syncthreads();
  const bool fits = count + repeats <= steps && steps > 0 && strange == 0;
  if (!back) {{
    if (t == 0) {{
      samples[b] = fits ? steps : 0;
      samples[batch + b] = end;
    }}
    if (both)
      for (int j = t; j < count; j += blockDim.x) {{
        int earlier = j - 1, later = j + 1;
        while (earlier >= 0 && written[2 * earlier + 1] != written[2 * j + 1]) --earlier;
        while (later < count && written[2 * later + 1] != written[2 * j + 1]) ++later;
        links[b * length + j] = later + (earlier < 0 ? {_FIRST} : 0);
      }}
    for (int s = t; both && s < positions; s += blockDim.x) samples[2 * batch + b * positions + s] = written[s];
  }}
  if (!fits) {{
    if (!back && t == 0) {{
      totals[b] = 0;
      if (writes) out[b] = T(0);
    }}
    return;
  }}
  const A none = A(__int_as_float(0xff800000));
  for (int step = 0; step < steps; ++step) {{
    const int row = (back ? steps - 1 - step : step) * batch + b;
    const A top = logs[row], sum = logs[time * batch + row];
    for (int s = t; s <= end; s += blockDim.x) {{
      const int kind = written[back ? end - s : s];
      A value = s < 2 ? A(0) : none;
      if (step > 0) {{
        const bool skips = s > 1 && kind != written[back ? end - s + 2 : s - 2];
        value = either(before[s], s > 0 ? before[s - 1] : none, skips ? before[s - 2] : none);
      }}
      if (both) ways[((long long)step * 2 * batch + blockIdx.x) * positions + s] = value;
      now[s] = value + (A(data[(long long)row * classes + kind]) - top - sum);
    }}
    __syncthreads();
    A *other = before;
    before = now;
    now = other;
  }}
  if (back || t > 0) return;
  const A total = either(before[end], end > 0 ? before[end - 1] : none, none);
  totals[b] = total;
  if (writes) out[b] = T(-total);
""",
    (_EXAMPLE, lambda: Moved(4 * (2 * _DATA + 2 * _WAYS), 4 * (_DATA + 2 * _WAYS))),
    declares=LANES + _WHOLE + _EITHER,
)
GRADIENT = KernelTemplate(
    "opbox_ctc_gradient",
    "const T *data, const A *logs, const A *totals, const int *samples, const int *links, const A *ways, T *gdata, "
    f"{_SIZES}, int blank",
    f"""  extern __shared__ A scratch[];
  A *shares = scratch + blockDim.x;
  const int positions = 2 * length + 1, t = threadIdx.x, b = blockIdx.x % batch, step = blockIdx.x / batch;
  const int steps = samples[b], end = samples[batch + b];
  const int *written = samples + 2 * batch + b * positions;
  const long long start = (long long)blockIdx.x * classes;
  const bool past = step >= steps;
  const A top = logs[blockIdx.x], sum = logs[time * batch + blockIdx.x];
  for (int k = t; k < classes; k += blockDim.x) gdata[start + k] = T(past ? A(0) : exp(A(data[start + k]) - top - sum));
  if (past) return;
  const A *ahead = ways + ((long long)step * 2 * batch + b) * positions;
  const A *behind = ways + ((long long)(steps - 1 - step) * 2 * batch + batch + b) * positions;
  A blanks = 0;
  for (int s = t; s <= end; s += blockDim.x) {{
    const A emitted = A(data[start + written[s]]) - top - sum;
    const A share = exp(ahead[s] + behind[end - s] + emitted - totals[b]);
    shares[s] = share;
    if (written[s] == blank) blanks += share;
  }}
  blanks = add_over_lanes(blanks, scratch, 1, blockDim.x);
  __syncthreads();
  if (t == 0) gdata[start + blank] = T(exp(A(data[start + blank]) - top - sum) - blanks);
  for (int j = t; 2 * j < end; j += blockDim.x) {{
    const int kind = written[2 * j + 1];
    if (kind == blank || !(links[b * length + j] & {_FIRST})) continue;
    A total = 0;
    for (int k = j; 2 * k < end; k = links[b * length + k] & {_FIRST - 1}) total += shares[2 * k + 1];
    gdata[start + kind] = T(exp(A(data[start + kind]) - top - sum) - total);
  }}
""",
    (_EXAMPLE, lambda: Moved(4 * (2 * _DATA + 2 * _WAYS), 4 * (2 * _DATA + 2 * _WAYS))),
    declares=LANES,
)
KERNELS += [STEPS, RECURSION, GRADIENT]


def _accepts(p: CTCLossParams, call: CallSpec) -> bool:
    data, label, *lengths = call.inputs
    itemsize = accumulation_type(data.dtype).itemsize
    return (
        fits(call, data, *call.outputs)
        and all(one.dtype.name != "bfloat16" for one in (label, *lengths))
        and (2 * label.shape[1] + 1) * (2 * itemsize + 4) <= _SHARED
    )


def _rows(call: CallSpec) -> RowBlocks:
    time, batch, classes = call.inputs[0].shape
    return RowBlocks(time * batch, classes, 1)


def _temps(p: CTCLossParams, call: CallSpec) -> list[Temp]:
    """The sums of steps; what makes them; label and lengths; totals; steps, ends, written labels; links; ways."""
    (time, batch, _), length = call.inputs[0].shape, call.inputs[1].shape[1]
    wide, positions, both = accumulation_type(call.inputs[0].dtype), 2 * length + 1, call.wants(1)
    return [
        Temp((2, time * batch), wide),
        _rows(call).parts(2, call.inputs[0].dtype),
        Temp((batch, max(1, length)), "float64"),
        *[Temp((batch,), "float64")] * 2,
        Temp((batch,), wide),
        Temp((batch * (2 + positions),), "int32"),
        Temp((batch, max(1, length)), "int32"),
        Temp((time, 2 * batch, positions) if both else (1,), wide),
    ]


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps)
def _(p: CTCLossParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data,), calls = contiguous(ctx, inputs[:1])
    logs, parts, label, data_lengths, label_lengths, totals, samples, links, ways = ctx.temp
    (time, batch, classes), length = data.shape, inputs[1].shape[1]
    out, gdata = outputs
    wanted = [use for use, wants in ((data_lengths, p.use_data_lengths), (label_lengths, p.use_label_lengths)) if wants]
    targets = [label, *wanted] if length else wanted
    sources = inputs[1:] if length else inputs[2:]
    calls += [partial(ctx.xp.copyto, a, b, casting="unsafe") for a, b in zip(targets, sources, strict=True)]
    calls += _rows(ctx.call).calls(ctx, STEPS, data.dtype, (data, logs, parts))
    sizes = tuple(map(np.int32, (time, batch, classes, length)))
    blank, padding = (0, 0) if p.blank_label == "first" else (classes - 1, -1)
    flags = (blank, padding, p.use_data_lengths, p.use_label_lengths, out is not None, gdata is not None)
    arrays = (
        data,
        label,
        data_lengths,
        label_lengths,
        logs,
        data if out is None else out,
        totals,
        samples,
        links,
        ways,
    )
    positions = 2 * length + 1
    block = threads_for(positions, _THREADS)
    itemsize = totals.dtype.itemsize
    ways_bytes = block * itemsize + positions * (2 * itemsize + 4)
    both = 1 if gdata is None else 2
    numbers = (*sizes, *map(np.int32, flags))
    calls.append(RECURSION.call(ctx, data.dtype, both * batch, block, (*arrays, *numbers), ways_bytes))
    if gdata is not None:
        arguments = (data, logs, totals, samples, links, ways, gdata, *sizes, np.int32(blank))
        block = threads_for(max(positions, classes), _THREADS)
        share_bytes = (block + positions) * itemsize
        calls.append(GRADIENT.call(ctx, data.dtype, time * batch, block, arguments, share_bytes))
    return as_one(calls)
