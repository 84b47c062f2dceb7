"""cumsum and its gradient on a GPU: a thread for each of many short sums, or a block for each of few long ones.

Numbers are added up in single precision at least, in one order, so that every run has the same bits. Integers and
arrays of two types are the library's.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ..accumulation import accumulation_type
from ..bound_calls import Call, as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs
from ..reduce.cumsum import CumsumParams, backward, op
from .kernel import KERNELS, KernelTemplate, Moved, by_thread, contiguous, fits

_THREADS = 256
_SHORT = 64
"""Numbers of a sum that a thread adds up alone, however far apart sums lie."""
_NEIGHBOURS = 32
"""Sums beside one another, which a warp reads together: threads add these up, however long they are."""
_ROWS, _LENGTH = 4096, 1024

_BY_THREAD = KernelTemplate(
    "opbox_cumsum_by_thread",
    "const T *data, T *out, int sums, int length, int inner, int backwards",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= sums) return;
  const int first = number / inner * length * inner + number % inner;
  A sum = 0;
  for (int i = 0; i < length; i++) {
    const int at = first + (backwards ? length - 1 - i : i) * inner;
    sum += A(data[at]);
    out[at] = T(sum);
  }
""",
    (f"{_ROWS:,} x {_LENGTH:,} along the first axis", lambda: Moved(8 * _ROWS * _LENGTH, 8 * _ROWS * _LENGTH)),
)
_BY_BLOCK = KernelTemplate(
    "opbox_cumsum_by_block",
    "const T *data, T *out, int length, int inner, int backwards",
    """  extern __shared__ A scratch[];
  const int first = blockIdx.x / inner * length * inner + blockIdx.x % inner;
  A before = 0;
  for (int start = 0; start < length; start += blockDim.x) {
    const int i = start + threadIdx.x, at = first + (backwards ? length - 1 - i : i) * inner;
    scratch[threadIdx.x] = i < length ? A(data[at]) : A(0);
    __syncthreads();
    for (int step = 1; step < blockDim.x; step *= 2) {
      const A further = threadIdx.x >= step ? scratch[threadIdx.x - step] : A(0);
      __syncthreads();
      scratch[threadIdx.x] += further;
      __syncthreads();
    }
    if (i < length) out[at] = T(before + scratch[threadIdx.x]);
    before += scratch[blockDim.x - 1];
    __syncthreads();
  }
""",
    (f"{_ROWS:,} x {_LENGTH:,} along the last axis", lambda: Moved(8 * _ROWS * _LENGTH, 8 * _ROWS * _LENGTH)),
)
KERNELS += [_BY_THREAD, _BY_BLOCK]


def _accepts(p: CumsumParams, call: CallSpec) -> bool:
    return fits(call, call.inputs[0], call.outputs[0])


def _sums(p: CumsumParams, ctx: OpContext, inputs: Arrays, outputs: Outputs, *, backwards: bool) -> Call:
    (data,), calls = contiguous(ctx, inputs)
    out = outputs[0]
    if out is None:
        return as_one([])
    shape = (out if backwards else data).shape
    axis = 0 if p.axis is None else p.axis
    length = data.size if p.axis is None or not shape else shape[axis]
    inner = 1 if p.axis is None else int(np.prod(shape[axis + 1 :], dtype=np.int64))
    sums = data.size // length
    numbers = (*map(np.int32, (length, inner, backwards)),)
    if length <= _SHORT or inner >= _NEIGHBOURS:
        calls.append(by_thread(ctx, _BY_THREAD, data.dtype, sums, (data, out, np.int32(sums), *numbers)))
    else:
        scratch = _THREADS * accumulation_type(data.dtype).itemsize
        calls.append(_BY_BLOCK.call(ctx, data.dtype, sums, _THREADS, (data, out, *numbers), scratch))
    return as_one(calls)


op.compute("gpu", level="generated", prepares=True, accepts=_accepts)(partial(_sums, backwards=False))
backward.compute("gpu", level="generated", prepares=True, accepts=_accepts)(partial(_sums, backwards=True))
