"""Whole arrays brought to one number on a GPU, sums of squares and whether all is finite; and LAMB's second half.

A sum is made in two steps: as many blocks as the size asks for sum up a part each, and one block sums up these, in one
order, so that every run has the same bits. Arrays are read once: the least possible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import as_one
from ..compute import Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..elementwise import mixed_precision
from ..infer import size_of
from ..registry import get
from ..update import norms
from ..update.lamb import Phase2Params
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits, scalar

_THREADS = 256
_MAX_BLOCKS = 1024
_WEIGHTS = 4096 * 1024


SQUARES = KernelTemplate(
    "opbox_squares",
    "const T *data, A *parts, int elements",
    """  extern __shared__ A scratch[];
  A sum = 0;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {
    const A x = A(data[i]);
    sum += x * x;
  }
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
""",
    ("4,096 x 1,024 weights", lambda: Moved(4 * (_WEIGHTS + _MAX_BLOCKS), 4 * _WEIGHTS)),
)
TOTAL = KernelTemplate(
    "opbox_total",
    "const A *parts, float *out, int count",
    """  extern __shared__ A scratch[];
  A sum = 0;
  for (int i = threadIdx.x; i < count; i += blockDim.x) sum += parts[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) out[0] = float(sum);
""",
    ("1,024 parts", lambda: Moved(4 * (_MAX_BLOCKS + 1), 4 * (_MAX_BLOCKS + 1))),
)
ALL_FINITE = KernelTemplate(
    "opbox_all_finite",
    "const T *data, float *out, int elements",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  const A x = number < elements ? A(data[number]) : A(0);
  // What is not finite is not itself less itself 0. Whoever writes, writes the same.
  if (__syncthreads_or(!(x - x == A(0))) && threadIdx.x == 0) out[0] = 0;
""",
    ("4,096 x 1,024 gradients", lambda: Moved(4 * (_WEIGHTS + 1), 4 * (_WEIGHTS + 1))),
)
_PHASE2 = """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  A norm = A(r1[0]);
  if (lower >= 0 && norm < lower) norm = lower;
  if (upper >= 0 && norm > upper) norm = upper;
  const A other = A(r2[0]), ratio = norm != 0 && other != 0 ? norm / other : A(1);
  const A x = A(weight[number]) - A(g[number]) * (lr * ratio);
"""
_NUMBERS = "T *out, int elements, A lr, A lower, A upper"
LAMB = KernelTemplate(
    "opbox_lamb_phase2",
    f"const T *weight, const T *g, const T *r1, const T *r2, {_NUMBERS}",
    _PHASE2 + "  out[number] = T(x);\n",
    ("4,096 x 1,024 weights", lambda: Moved(4 * (3 * _WEIGHTS + 2), 4 * (3 * _WEIGHTS + 2))),
)
LAMB_MIXED = KernelTemplate(
    "opbox_mp_lamb_phase2",
    f"A *weight, const A *g, const A *r1, const A *r2, {_NUMBERS}",
    _PHASE2 + "  weight[number] = x;\n  out[number] = T(x);\n",
    ("4,096 x 1,024 weights of single precision", lambda: Moved(4 * (4 * _WEIGHTS + 2), 4 * (4 * _WEIGHTS + 2))),
)
KERNELS += [SQUARES, TOTAL, ALL_FINITE, LAMB, LAMB_MIXED]


def _blocks(elements: int) -> int:
    return min(_MAX_BLOCKS, -(-elements // _THREADS))


def _accepts(p: Any, call: CallSpec) -> bool:
    return bool(call.inputs) and call.wants(0) and fits(call, *call.inputs)


def _parts(p: Any, call: CallSpec) -> list[Temp]:
    most = max(_blocks(size_of(array.shape)) for array in call.inputs)
    return [Temp((most,), accumulation_type(call.inputs[0].dtype))]


@norms.sum_sq.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_parts)
def _(p: norms.CountParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    (parts,), (out,) = ctx.temp, outputs
    for i, array in enumerate(arrays):
        scratch, blocks = _THREADS * parts.itemsize, _blocks(array.size)
        calls.append(SQUARES.call(ctx, array.dtype, blocks, _THREADS, (array, parts, np.int32(array.size)), scratch))
        total = (parts, out[i : i + 1], np.int32(blocks))
        calls.append(TOTAL.call(ctx, array.dtype, 1, _THREADS, total, scratch))
    return as_one(calls)


@mixed_precision.all_finite.compute("gpu", level="generated", prepares=True, accepts=_accepts)
@mixed_precision.multi_all_finite.compute("gpu", level="generated", prepares=True, accepts=_accepts)
def _(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls = contiguous(ctx, inputs)
    (out,) = outputs
    calls.append(partial(out.fill, 1))
    for array in arrays:
        arguments = (array, out, np.int32(array.size))
        calls.append(ALL_FINITE.call(ctx, array.dtype, -(-array.size // _THREADS), _THREADS, arguments))
    return as_one(calls)


def _attach(name: str, kernel: KernelTemplate, taken: Callable[[Sequence[ArraySpec]], Sequence[ArraySpec]]) -> None:
    """Computes of a half of LAMB: `taken` are weight, g, r1 and r2, as the kernel reads them."""

    def accepts(p: Phase2Params, call: CallSpec) -> bool:
        weight, *others = taken(call.inputs)
        narrow = call.inputs[0]
        computed = kernel is LAMB or weight.dtype == accumulation_type(narrow.dtype)
        return computed and fits(call, narrow) and fits(call, weight, *others)

    @get(name).compute("gpu", level="generated", prepares=True, accepts=accepts)
    def _(p: Phase2Params, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
        plain = taken(inputs)
        arrays, calls = contiguous(ctx, plain)
        out = outputs[0] if outputs[0] is not None else ctx.backend.empty(inputs[0].shape, inputs[0].dtype)
        numbers = [scalar(value, out.dtype) for value in (p.lr, p.lower_bound, p.upper_bound)]
        arguments = (*arrays, out, np.int32(out.size), *numbers)
        calls.append(kernel.call(ctx, out.dtype, -(-out.size // _THREADS), _THREADS, arguments))
        if kernel is LAMB_MIXED and arrays[0] is not plain[0]:
            calls.append(partial(ctx.xp.copyto, plain[0], arrays[0]))
        return as_one(calls)


_attach("lamb_update_phase2", LAMB, lambda inputs: inputs)
_attach("mp_lamb_update_phase2", LAMB_MIXED, lambda inputs: [inputs[4], *inputs[1:4]])
