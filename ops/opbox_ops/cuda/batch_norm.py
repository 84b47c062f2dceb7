"""BatchNorm on a GPU: a block a channel, forward and backward a kernel each.

Arrays are (before, channel, after). Forward reads data twice and writes out: mean and variance come from one pass,
by Welford's recurrence in each thread and Chan's formula between threads. Backward reads gout and data twice and writes
gdata: gbeta and ggamma come from the first pass. Both are the least possible where a channel does not fit on the chip.

Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products" (1962); Chan, Golub and LeVeque,
"Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..nn.batch_norm import BatchNormParams, backward, op
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, scalar, threads_for

_THREADS = 512
_ELEMENTS = 32 * 64 * 112 * 112

_PLACE = "const int i = (k / after * channels + c) * after + k % after;"

FORWARD = KernelTemplate(
    "opbox_batch_norm",
    "const T *data, A *gamma, const A *beta, const A *moving_mean, const A *moving_var, T *out, A *means, A *inverses, "
    "int before, int channels, int after, A eps, int of_batch, int fix_gamma, int writes",
    f"""  extern __shared__ A room[];
  const int c = blockIdx.x, count = before * after;
  A mean = moving_mean[c], variance = moving_var[c];
  if (of_batch) {{
    A own = 0, squares = 0, n = 0;
    for (int k = threadIdx.x; k < count; k += blockDim.x) {{
      {_PLACE}
      const A x = A(data[i]), delta = x - own;
      n += 1;
      own += delta / n;
      squares += delta * (x - own);
    }}
    A *mean_of = room, *squares_of = room + blockDim.x, *n_of = room + 2 * blockDim.x;
    mean_of[threadIdx.x] = own;
    squares_of[threadIdx.x] = squares;
    n_of[threadIdx.x] = n;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {{
      const int t = threadIdx.x;
      if (t < half && n_of[t + half] > 0) {{
        const A other = n_of[t + half], all = n_of[t] + other, delta = mean_of[t + half] - mean_of[t];
        mean_of[t] += delta * (other / all);
        squares_of[t] += squares_of[t + half] + delta * delta * (n_of[t] * other / all);
        n_of[t] = all;
      }}
      __syncthreads();
    }}
    mean = mean_of[0];
    variance = squares_of[0] / A(count);
  }}
  const A inverse = 1 / sqrt(variance + eps);
  if (threadIdx.x == 0) {{
    means[c] = mean;
    inverses[c] = inverse;
    if (fix_gamma) gamma[c] = 1;
  }}
  if (!writes) return;
  const A factor = fix_gamma ? inverse : inverse * gamma[c], shift = beta[c];
  for (int k = threadIdx.x; k < count; k += blockDim.x) {{
    {_PLACE}
    out[i] = T((A(data[i]) - mean) * factor + shift);
  }}
""",
    ("32 images of 64 channels, 112 x 112", lambda: Moved(3 * 4 * _ELEMENTS, 3 * 4 * _ELEMENTS)),
)
BACKWARD = KernelTemplate(
    "opbox_batch_norm_back",
    "const T *gout, const T *data, const A *gamma, const A *means, const A *inverses, A *moving_mean, A *moving_var, "
    "T *gdata, A *ggamma, A *gbeta, int before, int channels, int after, A eps, A momentum, int of_batch, "
    "int fix_gamma, int writes",
    f"""  extern __shared__ A room[];
  const int c = blockIdx.x, count = before * after;
  const A mean = means[c], inverse = inverses[c];
  A sum = 0, products = 0;
  for (int k = threadIdx.x; k < count; k += blockDim.x) {{
    {_PLACE}
    const A g = A(gout[i]);
    sum += g;
    products += g * (A(data[i]) - mean);
  }}
  sum = block_sum(sum, room);
  products = block_sum(products, room) * inverse;
  if (threadIdx.x == 0) {{
    ggamma[c] = fix_gamma ? 0 : products;
    gbeta[c] = sum;
    if (of_batch) {{
      moving_mean[c] = moving_mean[c] * momentum + mean * (1 - momentum);
      moving_var[c] = moving_var[c] * momentum + (1 / (inverse * inverse) - eps) * (1 - momentum);
    }}
  }}
  if (!writes) return;
  const A factor = fix_gamma ? inverse : inverse * gamma[c];
  const A share = of_batch ? products * inverse / A(count) : 0, level = of_batch ? sum / A(count) : 0;
  for (int k = threadIdx.x; k < count; k += blockDim.x) {{
    {_PLACE}
    gdata[i] = T((A(gout[i]) - level - (A(data[i]) - mean) * share) * factor);
  }}
""",
    ("32 images of 64 channels, 112 x 112", lambda: Moved(5 * 4 * _ELEMENTS, 5 * 4 * _ELEMENTS)),
)
KERNELS += [FORWARD, BACKWARD]


def _sizes(p: BatchNormParams, shape: tuple[int, ...]) -> tuple[int, int, int]:
    axis = p.axis % len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _launch_sizes(sizes: tuple[int, int, int], dtype: Any, rooms: int) -> tuple[int, int, int]:
    """Grid, block, and bytes of shared memory for `rooms` numbers a thread."""
    block = threads_for(sizes[0] * sizes[2], _THREADS)
    return sizes[1], block, rooms * block * accumulation_type(dtype).itemsize


def _forward_temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    return [Temp(call.outputs[k].shape, call.outputs[k].dtype) for k in (1, 2) if not call.wants(k)]


@op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, call.inputs[0], call.outputs[0]),
    temps=_forward_temps,
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data, gamma, beta, *moving), calls = contiguous(ctx, inputs)
    after: list[Callable[[], Any]] = []
    if p.fix_gamma and gamma is not inputs[1]:
        after.append(lambda: ctx.xp.copyto(inputs[1], gamma))
    unread = list(ctx.temp)
    means, inverses = (unread.pop() if out is None else out for out in outputs[1:3])
    sizes = _sizes(p, data.shape)
    grid, block, room = _launch_sizes(sizes, data.dtype, 3)

    def launch(of_batch: bool) -> Callable[[], Any]:
        numbers = (*map(np.int32, sizes), scalar(p.eps, data.dtype), np.int32(of_batch), np.int32(p.fix_gamma))
        target = data if outputs[0] is None else outputs[0]
        arrays = (data, gamma, beta, *moving, target, means, inverses)
        arguments = (*arrays, *numbers, np.int32(outputs[0] is not None))
        return as_one([*calls, FORWARD.call(ctx, data.dtype, grid, block, arguments, room), *after])

    return _by_mode(p, ctx, launch)


def _by_mode(p: BatchNormParams, ctx: OpContext, launch: Callable[[bool], Callable[[], Any]]) -> Callable[[], Any]:
    """A call that takes the batch's statistics in a run that trains, and the moving ones in others."""
    moving = launch(False)
    if p.use_global_stats:
        return moving
    batch, mode = launch(True), ctx.mode

    def run() -> None:
        (batch if mode.is_train else moving)()

    return run


def _accepts_gradient(p: BatchNormParams, call: CallSpec) -> bool:
    return fits(call, *call.inputs[:2], call.outputs[0])


def _backward_temps(p: BatchNormParams, call: CallSpec) -> list[Temp]:
    mean = call.inputs[3]
    return [Temp(mean.shape, mean.dtype) for k in (1, 2) if not call.wants(k)]


@backward.compute("gpu", level="generated", prepares=True, accepts=_accepts_gradient, temps=_backward_temps)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (gout, data, gamma, means, inverses), calls = contiguous(ctx, inputs[:5])
    moving, copies = contiguous(ctx, inputs[5:])
    calls += copies
    after = [
        lambda plain=plain, own=own: ctx.xp.copyto(own, plain)
        for plain, own in zip(moving, inputs[5:], strict=True)
        if plain is not own
    ]
    unread = list(ctx.temp)
    ggamma, gbeta = (unread.pop() if out is None else out for out in outputs[1:3])
    sizes = _sizes(p, data.shape)
    grid, block, room = _launch_sizes(sizes, data.dtype, 1)

    def launch(of_batch: bool) -> Callable[[], Any]:
        factors = (scalar(p.eps, data.dtype), scalar(p.momentum, data.dtype))
        flags = map(np.int32, (of_batch, p.fix_gamma, outputs[0] is not None))
        target = gout if outputs[0] is None else outputs[0]
        arrays = (gout, data, gamma, means, inverses, *moving, target, ggamma, gbeta)
        arguments = (*arrays, *map(np.int32, sizes), *factors, *flags)
        return as_one([*calls, BACKWARD.call(ctx, data.dtype, grid, block, arguments, room), *after])

    return _by_mode(p, ctx, launch)
