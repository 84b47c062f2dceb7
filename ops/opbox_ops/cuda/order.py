"""sort, argsort and topk of small rows on a GPU: a block has a row in shared memory, and sorts it.

The network is Batcher's bitonic one. Equal elements keep their order, since a place decides between them; NaN is the
greatest number. A row is read once, and what is asked for is written once: the least possible. `long_order` has longer
rows. Integers and bfloat16 are the library's to sort.

Batcher, "Sorting Networks and Their Applications" (1968).
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
from ..index.order import ArgsortParams, SortParams, TopkParams, argsort, sort, top_length, topk
from ..infer import size_of
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, fits
from .long_order import LONG_TYPES, long_calls, long_temps

LONGEST = 2048
"""Elements of a row: keys and places of so many, padded to a power of two, find room in shared memory."""
_VALUES, _POSITIONS, _MASK = 1, 2, 4
_TOP_OF_ROWS = 4 * 4096 * 1000 + 8 * 4096 * 10

ORDER = KernelTemplate(
    "opbox_order",
    "const T *data, T *values, int *positions, int n, int padded, int inner, int count, int ascending, int what",
    """  extern __shared__ A scratch[];
  A *place = scratch + padded;
  const long long first = blockIdx.x / inner, last = blockIdx.x % inner;
  for (int i = threadIdx.x; i < padded; i += blockDim.x) {
    scratch[i] = i < n ? A(data[(first * n + i) * inner + last]) : A(0);
    place[i] = i;
  }
  __syncthreads();
  for (int size = 2; size <= padded; size *= 2) {
    for (int apart = size / 2; apart > 0; apart /= 2) {
      for (int t = threadIdx.x; t < padded / 2; t += blockDim.x) {
        const int i = 2 * t - (t & (apart - 1)), j = i + apart;
        const A a = scratch[i], b = scratch[j], at = place[i], bt = place[j];
        bool swapped = bt < at;
        if (at < n && bt < n) {
          const bool less = a < b || (a == a && b != b), more = b < a || (b == b && a != a);
          if (less || more) swapped = ascending ? more : less;
        }
        if (swapped == ((i & size) == 0)) {
          scratch[i] = b;
          scratch[j] = a;
          place[i] = bt;
          place[j] = at;
        }
      }
      __syncthreads();
    }
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (what & 4) values[(first * n + int(place[i])) * inner + last] = T(A(i < count));
    if (i >= count) continue;
    const long long to = (first * count + i) * inner + last;
    if (what & 1) values[to] = T(scratch[i]);
    if (what & 2) positions[to] = int(place[i]);
  }
""",
    ("the first 10 of 4,096 rows of 1,000", lambda: Moved(_TOP_OF_ROWS, _TOP_OF_ROWS)),
)
KERNELS.append(ORDER)


def _rows(p: SortParams | TopkParams, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the number of elements before, along and behind the sorted axis."""
    if p.axis is None:
        return 1, size_of(shape), 1
    axis = p.axis % len(shape)
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


def _accepts(p: SortParams | TopkParams, call: CallSpec) -> bool:
    data = call.inputs[0]
    if not (data.shape and fits(call, data)):
        return False
    return _rows(p, data.shape)[1] <= LONGEST or data.dtype.name in LONG_TYPES


def _temps(index: int) -> Callable[[Any, CallSpec], list[Temp]]:
    """Temporaries: int32 positions, where output `index` is unwanted or of another type; what long rows need."""

    def temps(p: Any, call: CallSpec) -> list[Temp]:
        outer, n, inner = _rows(p, call.inputs[0].shape)
        long = long_temps(outer * inner, n) if n > LONGEST else []
        if len(call.outputs) <= index:
            return [Temp((1,), "int32"), *long]
        out = call.outputs[index]
        return [*([] if call.wants(index) and out.dtype == np.int32 else [Temp(out.shape, "int32")]), *long]

    return temps


def _launch(
    p: SortParams | TopkParams,
    ctx: OpContext,
    inputs: Arrays,
    ascending: bool,
    count: int | None,
    values: Array | None,
    positions: Array | None,
    mask: bool = False,
) -> Callable[[], Any]:
    """A call that writes the first `count` (None: all) values and positions of rows, or a mask in place of values."""
    (data,), calls = contiguous(ctx, inputs)
    outer, n, inner = _rows(p, data.shape)
    own, long = (ctx.temp, ()) if n <= LONGEST else (ctx.temp[:-6], ctx.temp[-6:])
    numbers = own[0] if own else positions
    what = (_MASK if mask else _VALUES) * (values is not None) + _POSITIONS * (positions is not None)
    padded = max(2, 1 << (n - 1).bit_length())
    sizes = (n, padded, inner, n if count is None else count, ascending, what)
    arguments = (data, data if values is None else values, numbers, *map(np.int32, sizes))
    block = min(1024, max(32, padded // 2))
    shared_bytes = 2 * padded * accumulation_type(data.dtype).itemsize
    if long:
        length = n if count is None else count
        whole = None if positions is None else numbers
        calls += long_calls(ctx, long, data, inner, ascending, length, values, whole, mask=mask)
    else:
        calls.append(ORDER.call(ctx, data.dtype, outer * inner, block, arguments, shared_bytes))
    if positions is not None and numbers is not positions:
        calls.append(partial(ctx.xp.copyto, positions, numbers, casting="unsafe"))
    return as_one(calls)


def order_call(ctx: OpContext, keys: Array, positions: Array) -> Callable[[], Any]:
    """A call that writes into `positions` (int32) the ascending order of a row of keys, up to LONGEST floats."""
    n = keys.size
    padded = max(2, 1 << (n - 1).bit_length())
    arguments = (keys, keys, positions, *map(np.int32, (n, padded, 1, n, True, _POSITIONS)))
    shared_bytes = 2 * padded * accumulation_type(keys.dtype).itemsize
    return ORDER.call(ctx, keys.dtype, 1, min(1024, max(32, padded // 2)), arguments, shared_bytes)


@sort.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps(1))
def _(p: SortParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _launch(p, ctx, inputs, p.is_ascend, None, *outputs)


@argsort.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_temps(0))
def _(p: ArgsortParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _launch(p, ctx, inputs, p.is_ascend, None, None, outputs[0])


def _topk_temps(p: TopkParams, call: CallSpec) -> list[Temp]:
    return _temps({"indices": 0, "mask": 2}.get(p.ret_typ, 1))(p, call)


@topk.compute("gpu", level="generated", prepares=True, accepts=_accepts, temps=_topk_temps)
def _(p: TopkParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    count = top_length(p, _rows(p, inputs[0].shape)[1])
    if p.ret_typ == "indices":
        return _launch(p, ctx, inputs, p.is_ascend, count, None, outputs[0])
    if p.ret_typ == "mask":
        return _launch(p, ctx, inputs, p.is_ascend, count, outputs[0], None, True)
    return _launch(p, ctx, inputs, p.is_ascend, count, *outputs)
