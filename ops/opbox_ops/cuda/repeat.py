"""Gradients of sums and means over axes on a GPU: each number repeated to the elements that it was made from.

Memory is (k1, r1, k2, r2, k3), as `fold` has it. A thread writes 16 bytes at once, and finds its number by one division
where kept and folded axes alternate once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..bound_calls import Call, as_one, nothing
from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs
from ..reduce import statistics
from ..reduce.axes import axes_of
from ..registry import get
from .fold import Fold, address_of, vector_of
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, contiguous, scalar

_THREADS = 256
_ELEMENTS = 4096 * 1024

REPEAT = KernelTemplate(
    "opbox_repeat",
    "const T *data, T *out, unsigned elements, unsigned r1, unsigned k2, unsigned r2, unsigned k3, unsigned lanes, "
    "A divisor",
    """#define LANES (16 / int(sizeof(T)))
  struct alignas(16) Vector { T of[LANES]; };
  const unsigned i = (blockIdx.x * blockDim.x + threadIdx.x) * lanes;
  if (i >= elements) return;
  // The first of this thread's elements, whose neighbours are of the same number (k3 = 1) or of those behind it.
  unsigned result = 0;
  if (r1 == 1 && k3 == 1) {
    result = i / r2;
  } else {
    const unsigned slab = i / (r2 * k3);
    result = (slab / (r1 * k2) * k2 + slab % k2) * k3 + i % k3;
  }
  if (lanes == 1) {
    out[i] = T(A(data[result]) / divisor);
    return;
  }
  Vector x;
  if (k3 == 1) {
    const T value = T(A(data[result]) / divisor);
    for (int k = 0; k < LANES; ++k) x.of[k] = value;
  } else {
    for (int k = 0; k < LANES; ++k) x.of[k] = T(A(data[result + k]) / divisor);
  }
  *reinterpret_cast<Vector *>(out + i) = x;
""",
    ("4,096 rows of 1,024", lambda: Moved(4 * (_ELEMENTS + 4096), 4 * (_ELEMENTS + 4096))),
    types=tuple(WITH_BFLOAT16),
)
KERNELS.append(REPEAT)


def _fold(p: Any, out: ArraySpec) -> Fold | None:
    return Fold.of(out.shape, axes_of(p, len(out.shape)), out.dtype)


def _accepts(p: Any, call: CallSpec) -> bool:
    g, out = call.inputs[0], call.outputs[0]
    return call.plain and g.dtype == out.dtype and out.dtype.name in WITH_BFLOAT16 and _fold(p, out) is not None


def _attach(name: str, *, is_mean: bool) -> None:
    @get(name).compute("gpu", level="generated", prepares=True, accepts=_accepts)
    def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
        (out,) = outputs
        if out is None:
            return nothing
        fold = _fold(p, ctx.call.outputs[0])
        assert fold is not None
        (g,), calls = contiguous(ctx, inputs)
        _, r1, k2, r2, k3 = fold.sizes
        if k2 == 1:
            r1, r2 = 1, r1 * r2
        # A thread's elements are of one number, or of neighbouring ones.
        lanes = vector_of(out.dtype)
        if (r2 if k3 == 1 else k3) % lanes or address_of(out) % 16:
            lanes = 1
        numbers = map(np.uint32, (out.size, r1, k2, r2, k3, lanes))
        arguments = (g, out, *numbers, scalar(fold.n if is_mean else 1, out.dtype))
        blocks = -(-out.size // (_THREADS * lanes))
        return as_one([*calls, REPEAT.call(ctx, out.dtype, blocks, _THREADS, arguments)])


for _name in ("sum", "mean"):
    for _operator in (_name, *statistics.NUMPY_NAMES[_name][:1]):
        _attach(f"_backward_{_operator.lstrip('_')}", is_mean=_name == "mean")
