"""Steps of AdamW with many weights on a GPU: a launch a weight, which reads and writes each array once.

The factor on the gradients is read on the device: where it is 0 or not finite, weight and state stay as they are.
`update/steps` has the formulas. In half precision all is computed in single and rounded once; the mp_ form computes
with weight32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs
from ..registry import get
from ..update.several import MultiAdamWParams
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, scalar, threads_for

_THREADS = 256
_WEIGHTS = 4096 * 1024
_WHAT = "4,096 x 1,024 weights"
_STEP = """  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  const A scale = A(rescale[0]);
  A x = A(wide[i]);
  if (isfinite(scale) && scale != 0) {
    A d = A(grad[i]) * scale;
    if (clip >= 0) d = d > clip ? clip : d < -clip ? -clip : d;
    const A m = A(mean[i]) * beta1 + d * rest1, v = A(var[i]) * beta2 + d * d * rest2;
    mean[i] = m;
    var[i] = v;
    x -= (m / (sqrt(v) + epsilon) * lr + x * wd) * eta;
  }
"""
_NUMBERS = "int elements, A clip, A beta1, A rest1, A beta2, A rest2, A epsilon, A lr, A wd, A eta"
STEP = KernelTemplate(
    "opbox_adamw",
    f"const T *wide, const T *grad, T *mean, T *var, const float *rescale, T *out, {_NUMBERS}",
    _STEP + "  out[i] = T(x);\n",
    (_WHAT, lambda: Moved(4 * 7 * _WEIGHTS, 4 * 7 * _WEIGHTS)),
)
STEP_MIXED = KernelTemplate(
    "opbox_mp_adamw",
    f"A *wide, const T *grad, A *mean, A *var, const float *rescale, T *out, {_NUMBERS}",
    _STEP + "  wide[i] = x;\n  out[i] = T(x);\n",
    (_WHAT, lambda: Moved(4 * 8 * _WEIGHTS, 4 * 8 * _WEIGHTS)),
)
KERNELS += [STEP, STEP_MIXED]


def _attach(name: str, mixed: bool) -> None:
    parts = 5 if mixed else 4
    kernel = STEP_MIXED if mixed else STEP

    def accepts(p: MultiAdamWParams, call: CallSpec) -> bool:
        groups = [call.inputs[k * parts : (k + 1) * parts] for k in range(len(call.outputs))]
        narrow = [array for group in groups for array in (group[:2] if mixed else group)]
        wide = [array for group in groups for array in group[2:]] if mixed else []
        if not groups or not fits(call, *narrow) or (mixed and not fits(call, *wide)):
            return False
        return not mixed or wide[0].dtype == accumulation_type(narrow[0].dtype)

    @get(name).compute("gpu", level="generated", prepares=True, accepts=accepts)
    def _(p: MultiAdamWParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
        (rescale,), calls = contiguous(ctx, inputs[len(outputs) * parts :])
        for k, target in enumerate(outputs):
            plain = inputs[k * parts : (k + 1) * parts]
            arrays, copies = contiguous(ctx, plain)
            calls += copies
            weight, grad, mean, var = arrays[:4]
            wide, dtype = arrays[4] if mixed else weight, weight.dtype
            out = target if target is not None else ctx.backend.empty(weight.shape, dtype)
            factors = (p.clip_gradient, p.beta1, 1 - p.beta1, p.beta2, 1 - p.beta2, p.epsilon)
            numbers = [scalar(value, dtype) for value in (*factors, p.lrs[k], p.wds[k], p.etas[k])]
            block = threads_for(weight.size, _THREADS)
            arguments = (wide, grad, mean, var, rescale, out, np.int32(weight.size), *numbers)
            calls.append(kernel.call(ctx, dtype, -(-weight.size // block), block, arguments))
            # What is rewritten and was copied goes back.
            calls += [
                partial(ctx.xp.copyto, old, new)
                for old, new in zip(plain[2:], arrays[2:], strict=True)
                if new is not old
            ]
        return as_one(calls)


_attach("_multi_adamw_update", False)
_attach("_multi_mp_adamw_update", True)
