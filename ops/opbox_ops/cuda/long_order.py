"""sort, argsort and topk of long rows on a GPU: numbers become whole ones of the same order, which `radix_sort` sorts.

Equal elements keep their order, and NaN is the greatest number, as in `order`, which has short rows. Double precision,
integers and bfloat16 are the library's to sort.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import Call
from ..compute import Array, Arrays, OpContext, Temp
from .kernel import KERNELS, KernelTemplate, Moved, by_thread
from .radix_sort import radix_sort, radix_temps

__all__ = ["LONG_TYPES", "long_calls", "long_temps"]

LONG_TYPES = ("float16", "float32")
_BITS = 32
_VALUES, _POSITIONS, _MASK = 1, 2, 4
_ROWS, _LENGTH = 64, 50_000
_WHAT = f"{_ROWS} rows of {_LENGTH:,}"

_AT = """// Where element `k` of a row is.
__device__ long long place_of(int row, int k, int n, int inner) {
  return ((long long)(row / inner) * n + k) * inner + row % inner;
}
"""
_KEYS = KernelTemplate(
    "opbox_order_keys",
    "const T *data, unsigned *keys, int elements, int n, int inner, int ascending",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const A value = A(data[place_of(number / n, number % n, n, inner)]);
  unsigned bits = __float_as_uint(value);
  if (bits == 0x80000000u) bits = 0;
  const unsigned key = value != value ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
  keys[number] = ascending ? key : ~key;
""",
    (_WHAT, lambda: Moved(8 * _ROWS * _LENGTH, 8 * _ROWS * _LENGTH)),
    _AT,
    types=LONG_TYPES,
)
_WRITE = KernelTemplate(
    "opbox_write_ordered",
    "const T *data, const int *order, T *values, int *positions, int elements, int n, int inner, int count, int what",
    f"""  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int row = number / count, rank = number % count, from = order[(long long)row * n + rank];
  const long long source = place_of(row, from, n, inner), target = place_of(row, rank, count, inner);
  if (what & {_VALUES}) values[target] = data[source];
  if (what & {_POSITIONS}) positions[target] = from;
  if (what & {_MASK}) values[source] = T(1.0f);
""",
    (_WHAT, lambda: Moved(16 * _ROWS * _LENGTH, 16 * _ROWS * _LENGTH)),
    _AT,
    types=LONG_TYPES,
)
KERNELS += [_KEYS, _WRITE]


def long_temps(rows: int, n: int) -> list[Temp]:
    """Temporaries of `long_calls` for rows of n."""
    return radix_temps(rows, n, _BITS)


def long_calls(
    ctx: OpContext,
    temps: Arrays,
    data: Array,
    inner: int,
    ascending: bool,
    count: int,
    values: Array | None,
    positions: Array | None,
    *,
    mask: bool,
) -> list[Call]:
    """Calls that write the first `count` values and positions (int32) of rows in order, or a mask in place of values.

    Args:
        ctx: of the compute.
        temps: of `long_temps`.
        data: the elements of a row are `inner` apart.
    """
    rows, n = temps[0].shape
    sort, _, order = radix_sort(ctx.xp, temps, _BITS)
    sizes: list[Any] = [*map(np.int32, (data.size, n, inner, ascending))]
    calls = [by_thread(ctx, _KEYS, data.dtype, data.size, (data, temps[0], *sizes)), *sort]
    what = (_MASK if mask else _VALUES) * (values is not None) + _POSITIONS * (positions is not None)
    if mask and values is not None:
        calls.append(partial(values.fill, 0))
    arrays = (data, order, data if values is None else values, order if positions is None else positions)
    sizes = [*map(np.int32, (rows * count, n, inner, count, what))]
    return [*calls, by_thread(ctx, _WRITE, data.dtype, rows * count, (*arrays, *sizes))]
