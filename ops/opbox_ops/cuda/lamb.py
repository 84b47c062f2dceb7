"""Steps of LAMB with many weights on a GPU: two launches a weight, and norms that have the same bits in every run.

The first takes the gradient into mean and var, writes the direction g, and sums the squares of weight and g, a part of
the array a block. The second sums these parts up, in one order and in each block again, and takes the step.

    weight - lr * r1 / r2 * g, r1 = |weight| between the bounds, r2 = |g|; without the ratio where either is 0

`update/steps` has the formulas. In half precision all is computed in single and rounded once; the mp_ form computes
with weight32, and takes r1 of the narrow weight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..registry import get
from ..update.several import LambParams
from ..update.steps import correction
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, scalar

_THREADS = 256
_MAX_BLOCKS = 256
_WEIGHTS = 4096 * 1024

_DIRECTION = """  extern __shared__ A scratch[];
  A weights = 0, steps = 0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {
    A x = A(grad[i]) * rescale;
    if (clip >= 0) x = x > clip ? clip : x < -clip ? -clip : x;
    const A m = A(mean[i]) * beta1 + x * rest1, v = A(var[i]) * beta2 + x * x * rest2;
    mean[i] = m;
    var[i] = v;
    x = m * first / (sqrt(v * second) + epsilon) + A(wide[i]) * wd;
    g[i] = x;
    steps += x * x;
    x = A(weight[i]);
    weights += x * x;
  }
  weights = block_sum(weights, scratch);
  steps = block_sum(steps, scratch);
  if (threadIdx.x == 0) {
    parts[blockIdx.x] = weights;
    parts[gridDim.x + blockIdx.x] = steps;
  }
"""
_STEP = """  extern __shared__ A scratch[];
  A r1 = block_sum(threadIdx.x < count ? parts[threadIdx.x] : A(0), scratch);
  A r2 = block_sum(threadIdx.x < count ? parts[count + threadIdx.x] : A(0), scratch);
  r1 = sqrt(r1);
  r2 = sqrt(r2);
  if (lower >= 0 && r1 < lower) r1 = lower;
  if (upper >= 0 && r1 > upper) r1 = upper;
  const A factor = lr * (r1 != 0 && r2 != 0 ? r1 / r2 : A(1));
  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const A x = A(wide[number]) - g[number] * factor;
"""
_NUMBERS = (
    "A *g, A *parts, int elements, A rescale, A clip, A beta1, A rest1, A beta2, A rest2, A first, A second, "
    "A epsilon, A wd"
)
_SIZES = "const A *g, const A *parts, int elements, int count, A lr, A lower, A upper"
_WHAT = "4,096 x 1,024 weights"
DIRECTION = KernelTemplate(
    "opbox_lamb_direction",
    f"const T *weight, const T *grad, T *mean, T *var, const T *wide, {_NUMBERS}",
    _DIRECTION,
    (_WHAT, lambda: Moved(4 * (7 * _WEIGHTS + 2 * _MAX_BLOCKS), 4 * 6 * _WEIGHTS)),
)
DIRECTION_MIXED = KernelTemplate(
    "opbox_mp_lamb_direction",
    f"const T *weight, const T *grad, A *mean, A *var, const A *wide, {_NUMBERS}",
    _DIRECTION,
    (_WHAT, lambda: Moved(4 * (8 * _WEIGHTS + 2 * _MAX_BLOCKS), 4 * 7 * _WEIGHTS)),
)
STEP = KernelTemplate(
    "opbox_lamb_step",
    f"const T *wide, T *out, {_SIZES}",
    _STEP + "  out[number] = T(x);\n",
    (_WHAT, lambda: Moved(4 * (3 * _WEIGHTS + 2 * _MAX_BLOCKS), 4 * 3 * _WEIGHTS)),
)
STEP_MIXED = KernelTemplate(
    "opbox_mp_lamb_step",
    f"A *wide, T *out, {_SIZES}",
    _STEP + "  wide[number] = x;\n  out[number] = T(x);\n",
    (_WHAT, lambda: Moved(4 * (4 * _WEIGHTS + 2 * _MAX_BLOCKS), 4 * 4 * _WEIGHTS)),
)
KERNELS += [DIRECTION, DIRECTION_MIXED, STEP, STEP_MIXED]


def _blocks(elements: int) -> int:
    return min(_MAX_BLOCKS, -(-elements // _THREADS))


def _attach(name: str, mixed: bool) -> None:
    arrays_of = 5 if mixed else 4
    direction, step = (DIRECTION_MIXED, STEP_MIXED) if mixed else (DIRECTION, STEP)

    def accepts(p: LambParams, call: CallSpec) -> bool:
        groups = [call.inputs[k : k + arrays_of] for k in range(0, len(call.inputs), arrays_of)]
        narrow = [array for group in groups for array in (group[:2] if mixed else group)]
        wide = [array for group in groups for array in group[2:]] if mixed else []
        if not groups or not fits(call, *narrow) or (mixed and not fits(call, *wide)):
            return False
        return not mixed or wide[0].dtype == accumulation_type(narrow[0].dtype)

    def temps(p: LambParams, call: CallSpec) -> list[Temp]:
        largest, wide = max(size_of(out.shape) for out in call.outputs), accumulation_type(call.outputs[0].dtype)
        return [Temp((largest,), wide), Temp((2 * _blocks(largest),), wide)]

    @get(name).compute("gpu", level="generated", prepares=True, accepts=accepts, temps=temps)
    def _(p: LambParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
        calls: list[Callable[[], Any]] = []
        g, parts = ctx.temp
        for i, target in enumerate(outputs):
            plain = inputs[i * arrays_of : (i + 1) * arrays_of]
            arrays, copies = contiguous(ctx, plain)
            calls += copies
            weight, grad, mean, var = arrays[:4]
            wide, dtype = arrays[4] if mixed else weight, weight.dtype
            out = target if target is not None else ctx.backend.empty(weight.shape, dtype)
            count, scratch = _blocks(weight.size), _THREADS * g.itemsize
            corrections = (correction(beta, p.step_count[i]) for beta in (p.beta1, p.beta2))
            first, second = corrections if p.bias_correction else (1.0, 1.0)
            factors = (p.beta1, 1 - p.beta1, p.beta2, 1 - p.beta2, first, second, p.epsilon, p.wds[i])
            numbers = [scalar(value, dtype) for value in (p.rescale_grad, p.clip_gradient, *factors)]
            arguments = (weight, grad, mean, var, wide, g, parts, np.int32(weight.size), *numbers)
            calls.append(direction.call(ctx, dtype, count, _THREADS, arguments, scratch))
            sizes = (np.int32(weight.size), np.int32(count))
            bounds = [scalar(value, dtype) for value in (p.learning_rates[i], p.lower_bound, p.upper_bound)]
            blocks = -(-weight.size // _THREADS)
            calls.append(step.call(ctx, dtype, blocks, _THREADS, (wide, out, g, parts, *sizes, *bounds), scratch))
            # What is rewritten and was copied goes back.
            calls += [
                partial(ctx.xp.copyto, old, new)
                for old, new in zip(plain[2:], arrays[2:], strict=True)
                if new is not old
            ]
        return as_one(calls)


_attach("_multi_lamb_update", False)
_attach("_multi_mp_lamb_update", True)
