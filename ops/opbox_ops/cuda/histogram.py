"""_histogram on a GPU: a thread seeks the bin of a number, and a block counts in shared memory where bins find scratch.

Counts are whole numbers, added up by atomics: their order does not matter. Edges of equal width are computed when a
plan is bound.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs
from ..infer import size_of
from ..reduce.histogram import HistogramParams, op, write_edges
from .kernel import KERNELS, MAX_ELEMENTS, TYPES, KernelTemplate, Moved, contiguous

_THREADS, _BLOCKS = 256, 512
_SHARED_BINS = 4096
_ELEMENTS, _BINS = 1 << 24, 256
_WHOLE = {"int8": "signed char", "uint8": "unsigned char", "int32": "int", "int64": "long long"}


def _kernel(kind: str, element: str, number: str) -> KernelTemplate:
    """The kernel for elements of a type of CUDA's that are compared as numbers of another."""
    return KernelTemplate(
        f"opbox_histogram_{kind}",
        f"const {element} *data, const {element} *edges, long long *counts, int elements, int bins, int shared",
        f"""  extern __shared__ int own[];
  for (int k = threadIdx.x; k < shared; k += blockDim.x) own[k] = 0;
  __syncthreads();
  const {number} end = ({number})edges[bins];
  for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += gridDim.x * blockDim.x) {{
    const {number} value = ({number})data[i];
    int low = 0, high = bins + 1;
    while (low < high) {{
      const int middle = low + (high - low) / 2;
      if (({number})edges[middle] <= value) low = middle + 1;
      else high = middle;
    }}
    // The last bin holds its right edge too.
    const int bin = value == end ? bins - 1 : low - 1;
    if (bin < 0 || bin >= bins) continue;
    if (shared) atomicAdd(own + bin, 1);
    else atomicAdd((unsigned long long *)(counts + bin), 1ull);
  }}
  __syncthreads();
  for (int k = threadIdx.x; k < shared; k += blockDim.x)
    if (own[k]) atomicAdd((unsigned long long *)(counts + k), (unsigned long long)own[k]);
""",
        (f"{_ELEMENTS:,} numbers in {_BINS} bins", lambda: Moved(4 * _ELEMENTS, 4 * _ELEMENTS)),
    )


FLOATS = _kernel("floats", "T", "A")
WHOLE = {kind: _kernel(kind, element, element) for kind, element in _WHOLE.items()}
KERNELS += [FLOATS, *WHOLE.values()]


def _accepts(p: HistogramParams, call: CallSpec) -> bool:
    size, dtype = size_of(call.inputs[0].shape), call.inputs[0].dtype
    bins = size_of(call.outputs[0].shape)
    return call.plain and 0 < size <= MAX_ELEMENTS and 0 < bins < MAX_ELEMENTS and dtype.name in (*TYPES, *WHOLE)


def _edges(p: HistogramParams, dtype: Any) -> Array:
    assert p.bin_cnt is not None
    edges = np.empty(p.bin_cnt + 1, dtype)
    write_edges(np, p, np.empty(len(edges), "float64"), edges)
    return edges


@op.compute("gpu", level="generated", prepares=True, accepts=_accepts)
def _(p: HistogramParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    counts, edges_out = outputs
    (data, *bounds), calls = contiguous(ctx, inputs)
    edges = bounds[0] if bounds else ctx.backend.put(_edges(p, data.dtype))
    if counts is not None:
        bins = counts.size
        shared = bins if bins <= _SHARED_BINS else 0
        kernel = WHOLE.get(data.dtype.name, FLOATS)
        blocks = min(_BLOCKS, -(-data.size // _THREADS))
        arguments = (data, edges, counts, *map(np.int32, (data.size, bins, shared)))
        element = data.dtype if kernel is FLOATS else np.float32
        calls += [partial(counts.fill, 0), kernel.call(ctx, element, blocks, _THREADS, arguments, 4 * shared)]
    if edges_out is not None:
        calls.append(partial(ctx.xp.copyto, edges_out, edges))
    return as_one(calls)
