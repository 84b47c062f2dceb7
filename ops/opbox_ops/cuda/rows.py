"""Rows added up at positions on a GPU, those of a position in their order: the sums are the same in every run.

The positions are sorted first, so that the rows of one position follow one another. Then a thread has a window of
them and a column, and adds up what begins there. The rows of a position that are longer than a window are cut into
pieces as long as one: each is added up on its own, and a second launch adds the pieces, in their order. So no thread
goes through many rows, whatever the positions are. Rows are read once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Array, Arrays, Temp
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, threads_of
from .radix_sort import LOWER_BOUND, bits_for, radix_sort, radix_temps

__all__ = ["add_in_order", "adding_temps", "window_of"]

_MIN_WINDOW, _MAX_WINDOWS = 64, 4096
_ROWS, _WIDTH = 4096, 512
_WHAT = f"{_ROWS:,} rows of {_WIDTH}"
_TYPES = ("float32", "float64")
_SUM = 4 * (2 * _ROWS * _WIDTH + 2 * _ROWS)

_KEYS = KernelTemplate(
    "opbox_row_keys",
    "const long long *where, unsigned *keys, int count",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number < count) keys[number] = unsigned(where[number]);
""",
    (_WHAT, lambda: Moved(12 * _ROWS, 12 * _ROWS)),
    types=("float32",),
)
_SIZES = "int threads, int count, int width, int window"
_ADD = KernelTemplate(
    "opbox_add_rows",
    "const unsigned *keys, const int *order, const T *rows, T *total, T *pieces, long long row_step, "
    f"long long column_step, {_SIZES}",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= threads) return;
  const int column = number % width, begin = number / width * window, end = begin + min(window, count - begin);
  const T *own = rows + column * column_step;
  int k = begin;
  if (begin > 0 && keys[begin - 1] == keys[begin]) {
    // Rows of a position that begin before this window: the piece that begins in it, if there is one.
    const unsigned key = keys[begin];
    const int first = lower_bound(keys, begin, key), from = first + (begin - first + window - 1) / window * window;
    if (from < count && keys[from] == key)
      pieces[number] = sum_of(T(0), keys, order, own, row_step, from, from + min(window, count - from));
    while (k < end && keys[k] == key) ++k;
  }
  while (k < end) {
    T *target = total + (long long)keys[k] * width + column;
    const int first = k;
    *target = sum_of(*target, keys, order, own, row_step, k, k + min(window, count - k));
    while (k < end && keys[k] == keys[first]) ++k;
  }
""",
    (_WHAT, lambda: Moved(_SUM, _SUM)),
    f"""{LOWER_BOUND}// The sum and the rows from k on, until another position or `stop`.
__device__ T sum_of(T sum, const unsigned *keys, const int *order, const T *rows, long long step, int k, int stop) {{
  const unsigned key = keys[k];
  for (; k + 8 <= stop && keys[k + 7] == key; k += 8) {{
    T next[8];
    for (int i = 0; i < 8; ++i) next[i] = rows[order[k + i] * step];
    for (int i = 0; i < 8; ++i) sum += next[i];
  }}
  for (; k < stop && keys[k] == key; ++k) sum += rows[order[k] * step];
  return sum;
}}
""",
    types=_TYPES,
)
_JOIN = KernelTemplate(
    "opbox_join_rows",
    f"const unsigned *keys, const T *pieces, T *total, {_SIZES}",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= threads) return;
  const int column = number % width, begin = number / width * window, last = begin + min(window, count - begin) - 1;
  // Only the last position of a window goes on beyond it.
  const unsigned key = keys[last];
  if (last + 1 == count || keys[last + 1] != key || (begin > 0 && keys[begin - 1] == key)) return;
  const int length = last + 1 + lower_bound(keys + last + 1, count - last - 1, key + 1) - lower_bound(keys, count, key);
  T sum = total[(long long)key * width + column];
#pragma unroll 8
  for (int k = 1; k <= (length - 1) / window; ++k) sum += pieces[number + (long long)k * width];
  total[(long long)key * width + column] = sum;
""",
    (_WHAT, lambda: Moved(4 * 2 * _ROWS // _MIN_WINDOW, 4 * 2 * _ROWS // _MIN_WINDOW)),
    LOWER_BOUND,
    types=_TYPES,
)
KERNELS += [_KEYS, _ADD, _JOIN]


def window_of(count: int) -> int:
    """Rows of a window: a power of two that leaves at most _MAX_WINDOWS, where it is not the smallest."""
    return max(_MIN_WINDOW, 1 << (-(-count // _MAX_WINDOWS) - 1).bit_length())


def adding_temps(count: int, width: int, size: int, dtype: Any) -> list[Temp]:
    """Temporaries of `add_in_order` for `count` rows of `width` and `size` positions: of the sort, and pieces."""
    if not _takes(count, width, size, dtype):
        return []
    pieces = -(-count // window_of(count)) if count > _MIN_WINDOW else 0
    return [*radix_temps(1, count, bits_for(size - 1)), Temp((pieces, width), dtype)]


def _takes(count: int, width: int, size: int, dtype: Any) -> bool:
    threads = -(-count // window_of(count)) * width
    return np.dtype(dtype).name in _TYPES and min(count, width, size) > 0 and max(count, size, threads) <= MAX_ELEMENTS


def add_in_order(xp: Any, where: Array, rows: Array, total: Array, temps: Arrays) -> bool:
    """Add each of `rows` (n, width) to the row of `total` that `where` (n,), of int64, names.

    Args:
        temps: what `adding_temps` asked for.

    Returns:
        Whether it did; else the arrays are of types, or so large, that kernels do not take them.
    """
    (count, width), size = rows.shape, len(total)
    if not (rows.size and total.size):
        return True
    if not (_takes(count, width, size, total.dtype) and rows.dtype == total.dtype and total.flags.c_contiguous):
        return False
    *sorting, pieces = temps
    window, bits = window_of(count), bits_for(size - 1)
    sort, keys, order = radix_sort(xp, sorting, bits)
    threads = -(-count // window) * width
    block = threads_of(threads)
    sizes = tuple(np.int32(number) for number in (threads, count, width, window))
    steps = tuple(np.int64(step // rows.itemsize) for step in rows.strides)
    blocks, spans = -(-threads // block), pieces.size > 0
    calls = [
        _KEYS.launch(xp, np.float32, -(-count // 256), 256, (where, sorting[0], np.int32(count))),
        *sort,
        _ADD.launch(xp, total.dtype, blocks, block, (keys, order, rows, total, pieces, *steps, *sizes)),
    ]
    if spans:
        calls.append(_JOIN.launch(xp, total.dtype, blocks, block, (keys, pieces, total, *sizes)))
    for call in calls:
        call()
    return True
