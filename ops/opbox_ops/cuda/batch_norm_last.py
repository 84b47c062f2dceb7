"""BatchNorm of channels last on a GPU: arrays are rows of channels, shared out as `channel_rows` has it.

It runs images in a region of channels last, and those whose last axis the operator names. Forward is two kernels where
it needs the batch's statistics: one writes those of each slice, the other joins them, in one order in each block, and
writes out; with the moving statistics it is the second alone. Backward is two as well. They move what the kernels of
`batch_norm` do, which has the formulas and their sources, and beside it a few numbers a channel and slice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..layout import CHANNELS_LAST, physical_arrays, share_layout
from ..nn.batch_norm import BatchNormParams, backward, op
from .batch_norm import by_last_axis, by_mode, copies_back, target_temps, targets
from .channel_rows import PLACE, SIZES, THREADS, blocks_for, slices_of
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, contiguous, of_one_type, scalar

_ELEMENTS = 32 * 64 * 112 * 112
_EXAMPLE = "32 images of 64 channels, 112 x 112, channels last"

# Chan's formula, over the threads of a channel: their `own`, `squares` and `n` end in the room of the first of them.
_JOIN = """  A *mean_of = scratch, *squares_of = scratch + blockDim.x, *n_of = scratch + 2 * blockDim.x;
  mean_of[t] = own;
  squares_of[t] = squares;
  n_of[t] = n;
  __syncthreads();
  for (int half = blockDim.x / 2; half >= 32; half /= 2) {
    if (t < half && n_of[t + half] > 0) {
      const A other = n_of[t + half], all = n_of[t] + other, delta = mean_of[t + half] - mean_of[t];
      mean_of[t] += delta * (other / all);
      squares_of[t] += squares_of[t + half] + delta * delta * (n_of[t] * other / all);
      n_of[t] = all;
    }
    __syncthreads();
  }
"""
_ADD = """  A *sum_of = scratch, *product_of = scratch + blockDim.x;
  sum_of[t] = sum;
  product_of[t] = products;
  __syncthreads();
  for (int half = blockDim.x / 2; half >= 32; half /= 2) {
    if (t < half) {
      sum_of[t] += sum_of[t + half];
      product_of[t] += product_of[t + half];
    }
    __syncthreads();
  }
"""

STATISTICS = KernelTemplate(
    "opbox_batch_norm_last_statistics",
    f"const T *data, A *parts, {SIZES}",
    f"""{PLACE}  A own = 0, squares = 0, n = 0;
  if (c < channels)
    for (int k = slice * rows_at_once + row; k < rows; k += slices * rows_at_once) {{
      const A x = A(data[k * channels + c]), delta = x - own;
      n += 1;
      own += delta / n;
      squares += delta * (x - own);
    }}
{_JOIN}  if (row == 0 && c < channels) {{
    parts[slice * channels + c] = mean_of[t];
    parts[(slices + slice) * channels + c] = squares_of[t];
    parts[(2 * slices + slice) * channels + c] = n_of[t];
  }}
""",
    (_EXAMPLE, lambda: Moved(4 * _ELEMENTS, 4 * _ELEMENTS)),
    types=tuple(WITH_BFLOAT16),
)
FORWARD = KernelTemplate(
    "opbox_batch_norm_last",
    "const T *data, A *gamma, const A *beta, const A *moving_mean, const A *moving_var, T *out, A *means, A *inverses, "
    f"const A *parts, {SIZES}, A eps, int of_batch, int fix_gamma, int writes_gamma, int writes",
    f"""{PLACE}  A own = 0, squares = 0, n = 0;
  if (of_batch && c < channels)
    for (int s = row; s < slices; s += rows_at_once) {{
      const A other = parts[(2 * slices + s) * channels + c];
      if (other == 0) continue;
      const A all = n + other, delta = parts[s * channels + c] - own;
      own += delta * (other / all);
      squares += parts[(slices + s) * channels + c] + delta * delta * (n * other / all);
      n = all;
    }}
{_JOIN}  if (c >= channels) return;
  const A mean = of_batch ? mean_of[t % 32] : moving_mean[c];
  const A variance = of_batch ? squares_of[t % 32] / A(rows) : moving_var[c];
  const A inverse = 1 / sqrt(variance + eps);
  if (slice == 0 && row == 0) {{
    means[c] = mean;
    inverses[c] = inverse;
    if (writes_gamma) gamma[c] = 1;
  }}
  if (!writes) return;
  const A factor = fix_gamma ? inverse : inverse * gamma[c], shift = beta[c];
  for (int k = slice * rows_at_once + row; k < rows; k += slices * rows_at_once)
    out[k * channels + c] = T((A(data[k * channels + c]) - mean) * factor + shift);
""",
    (_EXAMPLE, lambda: Moved(4 * 2 * _ELEMENTS, 4 * 2 * _ELEMENTS)),
    types=tuple(WITH_BFLOAT16),
)
SUMS = KernelTemplate(
    "opbox_batch_norm_last_sums",
    f"const T *gout, const T *data, const A *means, A *parts, {SIZES}",
    f"""{PLACE}  A sum = 0, products = 0;
  if (c < channels) {{
    const A mean = means[c];
    for (int k = slice * rows_at_once + row; k < rows; k += slices * rows_at_once) {{
      const A g = A(gout[k * channels + c]);
      sum += g;
      products += g * (A(data[k * channels + c]) - mean);
    }}
  }}
{_ADD}  if (row == 0 && c < channels) {{
    parts[slice * channels + c] = sum_of[t];
    parts[(slices + slice) * channels + c] = product_of[t];
  }}
""",
    (_EXAMPLE, lambda: Moved(4 * 2 * _ELEMENTS, 4 * 2 * _ELEMENTS)),
    types=tuple(WITH_BFLOAT16),
)
BACKWARD = KernelTemplate(
    "opbox_batch_norm_last_back",
    "const T *gout, const T *data, const A *gamma, const A *means, const A *inverses, A *moving_mean, A *moving_var, "
    f"T *gdata, A *ggamma, A *gbeta, const A *parts, {SIZES}, A eps, A momentum, int of_batch, int fix_gamma, "
    "int writes",
    f"""{PLACE}  A sum = 0, products = 0;
  if (c < channels)
    for (int s = row; s < slices; s += rows_at_once) {{
      sum += parts[s * channels + c];
      products += parts[(slices + s) * channels + c];
    }}
{_ADD}  if (c >= channels) return;
  const A mean = means[c], inverse = inverses[c];
  sum = sum_of[t % 32];
  products = product_of[t % 32] * inverse;
  if (slice == 0 && row == 0) {{
    ggamma[c] = fix_gamma ? 0 : products;
    gbeta[c] = sum;
    if (of_batch) {{
      moving_mean[c] = moving_mean[c] * momentum + mean * (1 - momentum);
      moving_var[c] = moving_var[c] * momentum + (1 / (inverse * inverse) - eps) * (1 - momentum);
    }}
  }}
  if (!writes) return;
  const A factor = fix_gamma ? inverse : inverse * gamma[c];
  const A share = of_batch ? products * inverse / A(rows) : 0, level = of_batch ? sum / A(rows) : 0;
  for (int k = slice * rows_at_once + row; k < rows; k += slices * rows_at_once) {{
    const int i = k * channels + c;
    gdata[i] = T((A(gout[i]) - level - (A(data[i]) - mean) * share) * factor);
  }}
""",
    (_EXAMPLE, lambda: Moved(4 * 3 * _ELEMENTS, 4 * 3 * _ELEMENTS)),
    types=tuple(WITH_BFLOAT16),
)
KERNELS += [STATISTICS, FORWARD, SUMS, BACKWARD]


def _sizes(p: BatchNormParams, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Rows, channels and slices."""
    channels = shape[p.axis % len(shape)]
    rows = size_of(shape) // channels
    return rows, channels, slices_of(rows, channels)


def _launch(ctx: OpContext, kernel: KernelTemplate, dtype: Any, sizes: tuple[int, int, int], arguments: Any) -> Any:
    shared_bytes = 3 * THREADS * accumulation_type(dtype).itemsize
    return kernel.call(ctx, dtype, blocks_for(*sizes[1:]), THREADS, arguments, shared_bytes)


def _accepts(p: BatchNormParams, call: CallSpec, ins: tuple[int, ...]) -> bool:
    alike = [*(call.inputs[i] for i in ins), call.outputs[0]]
    in_a_region = alike[0].layout == CHANNELS_LAST and p.axis == 1
    return (
        (in_a_region or (call.plain and by_last_axis(p, call)))
        and share_layout(call, ins, (0,))
        and of_one_type(*alike, types=WITH_BFLOAT16)
    )


def _temps(p: BatchNormParams, call: CallSpec, data: ArraySpec, numbers: int) -> list[Temp]:
    """Room for outputs that nobody wants, and `numbers` numbers a channel and slice."""
    _, channels, slices = _sizes(p, data.shape)
    return [*target_temps(call, 1, 2), Temp((numbers, slices, channels), accumulation_type(data.dtype))]


@op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _accepts(p, call, (0,)),
    temps=lambda p, call: _temps(p, call, call.inputs[0], 3),
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    sizes, parts, statistics = _sizes(p, inputs[0].shape), ctx.temp[-1], targets(ctx, outputs, 1, 2)
    inputs, outputs = physical_arrays(ctx.call, inputs, outputs)
    (data, gamma, *others), calls = contiguous(ctx, inputs)
    writes_gamma = p.fix_gamma and ctx.call.wants(1)
    after = copies_back(ctx, inputs[1:2], [gamma]) if writes_gamma else []
    out: Array | None = outputs[0]
    numbers = tuple(map(np.int32, sizes))
    of_slices = _launch(ctx, STATISTICS, data.dtype, sizes, (data, parts, *numbers))

    def launch(of_batch: bool, trains: bool) -> Callable[[], Any]:
        flags = map(np.int32, (of_batch, p.fix_gamma, writes_gamma and trains, out is not None))
        arrays = (data, gamma, *others, data if out is None else out, *statistics, parts)
        arguments = (*arrays, *numbers, scalar(p.eps, data.dtype), *flags)
        before = [of_slices] if of_batch else []
        return as_one([*calls, *before, _launch(ctx, FORWARD, data.dtype, sizes, arguments), *after])

    return by_mode(p, ctx, launch)


@backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _accepts(p, call, (0, 1)),
    temps=lambda p, call: _temps(p, call, call.inputs[1], 2),
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    sizes, parts, gradients = _sizes(p, inputs[1].shape), ctx.temp[-1], targets(ctx, outputs, 1, 2)
    inputs, outputs = physical_arrays(ctx.call, inputs, outputs)
    arrays, calls = contiguous(ctx, inputs)
    gout, data, _, means = arrays[:4]
    after = copies_back(ctx, inputs[-2:], arrays[-2:])
    gdata: Array | None = outputs[0]
    numbers = tuple(map(np.int32, sizes))
    sums = _launch(ctx, SUMS, data.dtype, sizes, (gout, data, means, parts, *numbers))

    def launch(of_batch: bool, trains: bool) -> Callable[[], Any]:
        factors = (scalar(p.eps, data.dtype), scalar(p.momentum, data.dtype))
        flags = map(np.int32, (of_batch, p.fix_gamma, gdata is not None))
        results = (gout if gdata is None else gdata, *gradients, parts)
        arguments = (*arrays, *results, *numbers, *factors, *flags)
        return as_one([*calls, sums, _launch(ctx, BACKWARD, data.dtype, sizes, arguments), *after])

    return by_mode(p, ctx, launch)
