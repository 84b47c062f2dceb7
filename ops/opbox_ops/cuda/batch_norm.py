"""BatchNorm and _contrib_BatchNormWithReLU on a GPU: a block a channel, forward and backward a kernel each.

Arrays are (before, channel, after); BatchNorm of images whose channels are last is `batch_norm_last`'s. Forward reads
data twice and writes out: mean and variance come from one pass, by Welford's recurrence in each thread and Chan's
formula between threads. Backward reads gout and data twice and writes gdata: gbeta and ggamma come from the first pass.
Both are the least possible where a channel does not fit on the chip. With ReLU, forward also writes the bytes
`positive`, 1 where out is above 0, and backward multiplies gout by them.

Welford, "Note on a Method for Calculating Corrected Sums of Squares and Products" (1962); Chan, Golub and LeVeque,
"Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..nn import batch_norm, batch_norm_relu
from ..nn.batch_norm import BatchNormParams
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, contiguous, fits, scalar, threads_for

__all__ = ["by_last_axis", "by_mode", "copies_back", "target_temps", "targets"]

_THREADS = 512
_ELEMENTS = 32 * 64 * 112 * 112
_EXAMPLE = "32 images of 64 channels, 112 x 112"

_PLACE = "const int i = (k / after * channels + c) * after + k % after;"


def _forward_kernel(name: str, more: str, write: str, moved: int) -> KernelTemplate:
    """The kernel with `more` parameters behind its arrays; `write` puts y, element i of the result, into out."""
    return KernelTemplate(
        name,
        "const T *data, A *gamma, const A *beta, const A *moving_mean, const A *moving_var, T *out, A *means, "
        f"A *inverses, {more}int before, int channels, int after, A eps, int of_batch, int fix_gamma, "
        "int writes_gamma, int writes",
        f"""  extern __shared__ A scratch[];
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
    A *mean_of = scratch, *squares_of = scratch + blockDim.x, *n_of = scratch + 2 * blockDim.x;
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
    if (writes_gamma) gamma[c] = 1;
  }}
  if (!writes) return;
  const A factor = fix_gamma ? inverse : inverse * gamma[c], shift = beta[c];
  for (int k = threadIdx.x; k < count; k += blockDim.x) {{
    {_PLACE}
    const A y = (A(data[i]) - mean) * factor + shift;
    {write}
  }}
""",
        (_EXAMPLE, lambda: Moved(moved * _ELEMENTS, moved * _ELEMENTS)),
        types=tuple(WITH_BFLOAT16),
    )


def _backward_kernel(name: str, more: str, gradient: str, moved: int) -> KernelTemplate:
    """The kernel with `more` parameters behind gout; `gradient` is what element i of gout counts as."""
    return KernelTemplate(
        name,
        f"const T *gout, {more}const T *data, const A *gamma, const A *means, const A *inverses, A *moving_mean, "
        "A *moving_var, T *gdata, A *ggamma, A *gbeta, int before, int channels, int after, A eps, A momentum, "
        "int of_batch, int fix_gamma, int writes",
        f"""  extern __shared__ A scratch[];
  const int c = blockIdx.x, count = before * after;
  const A mean = means[c], inverse = inverses[c];
  A sum = 0, products = 0;
  for (int k = threadIdx.x; k < count; k += blockDim.x) {{
    {_PLACE}
    const A g = {gradient};
    sum += g;
    products += g * (A(data[i]) - mean);
  }}
  sum = block_sum(sum, scratch);
  products = block_sum(products, scratch) * inverse;
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
    gdata[i] = T(({gradient} - level - (A(data[i]) - mean) * share) * factor);
  }}
""",
        (_EXAMPLE, lambda: Moved(moved * _ELEMENTS, moved * _ELEMENTS)),
        types=tuple(WITH_BFLOAT16),
    )


FORWARD = _forward_kernel("opbox_batch_norm", "", "out[i] = T(y);", 3 * 4)
FORWARD_RELU = _forward_kernel(
    "opbox_batch_norm_relu",
    "unsigned char *positive, ",
    "positive[i] = y > 0;\n    out[i] = T(y < 0 ? A(0) : y);",
    3 * 4 + 1,
)
BACKWARD = _backward_kernel("opbox_batch_norm_back", "", "A(gout[i])", 5 * 4)
BACKWARD_RELU = _backward_kernel(
    "opbox_batch_norm_relu_back", "const unsigned char *positive, ", "A(gout[i]) * A(positive[i])", 5 * 4 + 2
)
KERNELS += [FORWARD, FORWARD_RELU, BACKWARD, BACKWARD_RELU]


def _sizes(p: BatchNormParams, shape: tuple[int, ...]) -> tuple[int, int, int]:
    axis = p.axis % len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def by_last_axis(p: BatchNormParams, call: CallSpec) -> bool:
    """Return whether the channels of images are the last axis: `batch_norm_last` has kernels for that."""
    ndim = len(call.outputs[0].shape)
    return ndim >= 3 and p.axis % ndim == ndim - 1


def _launch_sizes(sizes: tuple[int, int, int], dtype: Any, numbers: int) -> tuple[int, int, int]:
    """Grid, block, and bytes of shared memory for so many `numbers` a thread."""
    block = threads_for(sizes[0] * sizes[2], _THREADS)
    return sizes[1], block, numbers * block * accumulation_type(dtype).itemsize


def target_temps(call: CallSpec, *numbers: int) -> list[Temp]:
    """Room for those of the outputs that nobody wants."""
    return [Temp(call.outputs[k].shape, call.outputs[k].dtype) for k in numbers if not call.wants(k)]


def targets(ctx: OpContext, outputs: Outputs, *numbers: int) -> list[Any]:
    """The outputs of these numbers, or the temporaries that `target_temps` asked for."""
    spare = iter(ctx.temp)
    return [next(spare) if outputs[k] is None else outputs[k] for k in numbers]


def copies_back(ctx: OpContext, inputs: Arrays, arrays: Arrays) -> list[Callable[[], Any]]:
    """The calls that write to inputs what a kernel wrote to contiguous copies of them."""
    return [partial(ctx.xp.copyto, own, plain) for own, plain in zip(inputs, arrays, strict=True) if plain is not own]


def _forward(
    p: BatchNormParams, ctx: OpContext, inputs: Arrays, kernel: KernelTemplate, out: Array | None, rest: Arrays
) -> Callable[[], Any]:
    """Bind a forward kernel; `rest` is behind out in its parameters."""
    (data, gamma, *others), calls = contiguous(ctx, inputs)
    writes_gamma = p.fix_gamma and ctx.call.wants(1)
    after = copies_back(ctx, inputs[1:2], [gamma]) if writes_gamma else []
    sizes = _sizes(p, data.shape)
    grid, block, scratch = _launch_sizes(sizes, data.dtype, 3)

    def launch(of_batch: bool, trains: bool) -> Callable[[], Any]:
        flags = map(np.int32, (of_batch, p.fix_gamma, writes_gamma and trains, out is not None))
        arrays = (data, gamma, *others, data if out is None else out, *rest)
        arguments = (*arrays, *map(np.int32, sizes), scalar(p.eps, data.dtype), *flags)
        return as_one([*calls, kernel.call(ctx, data.dtype, grid, block, arguments, scratch), *after])

    return by_mode(p, ctx, launch)


def by_mode(p: BatchNormParams, ctx: OpContext, launch: Callable[[bool, bool], Callable[[], Any]]) -> Callable[[], Any]:
    """A call that takes the batch's statistics in a run that trains, and the moving ones in others.

    Args:
        p, ctx: the node's parameters and context.
        launch: from whether the statistics are the batch's, and whether the run trains, to the call for that.
    """
    infer, train, mode = launch(False, False), launch(not p.use_global_stats, True), ctx.mode

    def run() -> None:
        (train if mode.is_train else infer)()

    return run


def _backward(
    p: BatchNormParams,
    ctx: OpContext,
    inputs: Arrays,
    kernel: KernelTemplate,
    gdata: Array | None,
    rest: Arrays,
) -> Callable[[], Any]:
    """Bind a backward kernel, whose inputs end in the moving statistics; `rest` is behind gdata in its parameters."""
    arrays, calls = contiguous(ctx, inputs)
    gout = arrays[0]
    after = copies_back(ctx, inputs[-2:], arrays[-2:])
    sizes = _sizes(p, gout.shape)
    grid, block, scratch = _launch_sizes(sizes, gout.dtype, 1)

    def launch(of_batch: bool, trains: bool) -> Callable[[], Any]:
        factors = (scalar(p.eps, gout.dtype), scalar(p.momentum, gout.dtype))
        flags = map(np.int32, (of_batch, p.fix_gamma, gdata is not None))
        arguments = (*arrays, gout if gdata is None else gdata, *rest, *map(np.int32, sizes), *factors, *flags)
        return as_one([*calls, kernel.call(ctx, gout.dtype, grid, block, arguments, scratch), *after])

    return by_mode(p, ctx, launch)


@batch_norm.op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: (
        not by_last_axis(p, call) and fits(call, call.inputs[0], call.outputs[0], types=WITH_BFLOAT16)
    ),
    temps=lambda p, call: target_temps(call, 1, 2),
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _forward(p, ctx, inputs, FORWARD, outputs[0], targets(ctx, outputs, 1, 2))


@batch_norm_relu.op.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, call.inputs[0], call.outputs[0], types=WITH_BFLOAT16),
    temps=lambda p, call: target_temps(call, 0, 1, 2, 3),
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    out, *rest = targets(ctx, outputs, 0, 1, 2, 3)
    return _forward(p, ctx, inputs, FORWARD_RELU, out, rest)


@batch_norm.backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: (
        not by_last_axis(p, call) and fits(call, *call.inputs[:2], call.outputs[0], types=WITH_BFLOAT16)
    ),
    temps=lambda p, call: target_temps(call, 1, 2),
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _backward(p, ctx, inputs, BACKWARD, outputs[0], targets(ctx, outputs, 1, 2))


@batch_norm_relu.backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: fits(call, call.inputs[0], call.inputs[2], call.outputs[0], types=WITH_BFLOAT16),
    temps=lambda p, call: target_temps(call, 1, 2),
)
def _(p: BatchNormParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _backward(p, ctx, inputs, BACKWARD_RELU, outputs[0], targets(ctx, outputs, 1, 2))
