"""LRN on a GPU: a thread for each element, which reads its neighbouring channels from the cache.

Neighbouring threads have neighbouring positions of a channel. `nn/lrn` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs
from ..infer import size_of
from ..nn.lrn import LRNParams, backward, op
from .division import DIVISION, declared, divisors
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, by_thread, contiguous, fits, scalar

_ELEMENTS = 32 * 96 * 55 * 55
_EXAMPLE = "32 images of 96 channels, 55 x 55"
_SIZES = f"int elements, int channels, int positions, int reach, {declared('channels', 'positions')}"
_PLACE = """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int plane = OPBOX_QUOTIENT(number, positions), c = plane - OPBOX_QUOTIENT(plane, channels) * channels;
  const int first = c < reach ? 0 : c - reach, end = channels - c > reach ? c + reach + 1 : channels;
  A sum = 0;
  for (int other = first; other < end; ++other) {
    const long long at = number + (long long)(other - c) * positions;
"""
"""An element, and the loop over its neighbours: without `max(-reach, -c)`, as CUDA 13.0's ptxas loses the sign of an
operand when it makes the VIMNMX3 of sm_90 of two maxima: neighbours beyond the last channel were read then."""
_POWER = """__device__ A power(A x, A beta) {
  const A root = sqrt(x);  // two roots for the usual exponent
  return beta == A(0.75) ? root * sqrt(root) : pow(x, beta);
}
"""

FORWARD = KernelTemplate(
    "opbox_lrn",
    f"const T *data, T *out, T *scales, int writes, A weight, A knorm, A beta, {_SIZES}",
    f"""{_PLACE}    const A x = A(data[at]);
    sum += x * x;
  }}
  const A scale = knorm + weight * sum;
  if (writes & 1) out[number] = T(A(data[number]) / power(scale, beta));
  if (writes & 2) scales[number] = T(scale);
""",
    (_EXAMPLE, lambda: Moved(4 * 3 * _ELEMENTS, 4 * 3 * _ELEMENTS)),
    declares=DIVISION + _POWER,
    types=tuple(WITH_BFLOAT16),
)
BACKWARD = KernelTemplate(
    "opbox_lrn_back",
    f"const T *gout, const T *data, const T *scales, T *gdata, A weight, A beta, {_SIZES}",
    f"""{_PLACE}    const A scale = A(scales[at]);
    sum += A(gout[at]) / power(scale, beta) * A(data[at]) / scale;
  }}
  const A direct = A(gout[number]) / power(A(scales[number]), beta);
  gdata[number] = T(direct - 2 * beta * weight * A(data[number]) * sum);
""",
    (_EXAMPLE, lambda: Moved(4 * 4 * _ELEMENTS, 4 * 4 * _ELEMENTS)),
    declares=DIVISION + _POWER,
    types=tuple(WITH_BFLOAT16),
)
KERNELS += [FORWARD, BACKWARD]


def _sizes(p: LRNParams, data: Array) -> tuple[Any, ...]:
    """The numbers that _SIZES declares."""
    channels, positions = data.shape[1], size_of(data.shape[2:])
    numbers = map(np.int32, (data.size, channels, positions, min(p.nsize // 2, channels)))
    return (*numbers, *divisors(channels, positions))


def _accepts(p: LRNParams, call: CallSpec) -> bool:
    return fits(call, *call.inputs, call.outputs[0], types=WITH_BFLOAT16)


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts)
def _(p: LRNParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (data,), calls = contiguous(ctx, inputs)
    writes = np.int32(sum(1 << k for k, target in enumerate(outputs) if target is not None))
    targets = [data if target is None else target for target in outputs]
    factors = (scalar(number, data.dtype) for number in (p.alpha / p.nsize, p.knorm, p.beta))
    arguments = (data, *targets, writes, *factors, *_sizes(p, data))
    return as_one([*calls, by_thread(ctx, FORWARD, data.dtype, data.size, arguments)])


@backward.compute("gpu", level="generated", prepares=True, accepts=lambda p, call: call.wants(0) and _accepts(p, call))
def _(p: LRNParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    data = arrays[1]
    factors = (scalar(p.alpha / p.nsize, data.dtype), scalar(p.beta, data.dtype))
    arguments = (*arrays, outputs[0], *factors, *_sizes(p, data))
    return as_one([*calls, by_thread(ctx, BACKWARD, data.dtype, data.size, arguments)])
