"""_contrib_index_copy on a GPU: which of the new rows a row takes is settled first, then each number is written once.

Of new rows at one position the last one is taken, whatever order threads run in: it is the largest of their numbers,
which an atomic maximum finds. Positions that are not there are passed over, and the gradient of their rows is 0.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import Call, as_one
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..index.index_array import copy_backward, index_copy
from ..infer import size_of
from ..params import NoParams
from .kernel import KERNELS, MAX_ELEMENTS, KernelTemplate, Moved, by_thread, contiguous

_COUNT, _SIZE, _WIDTH = 4096, 65536, 512
_WHAT = f"{_COUNT:,} of {_SIZE:,} rows of {_WIDTH}"
_BITS = {2: np.float16, 4: np.float32, 8: np.float64}
"""Element types of kernels by their size: numbers are moved, and not computed with."""

_LAST = KernelTemplate(
    "opbox_last_row",
    "const int *where, int *last, int count, int size",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number < count && where[number] >= 0 && where[number] < size) atomicMax(last + where[number], number);
""",
    (_WHAT, lambda: Moved(4 * 3 * _COUNT, 4 * 3 * _COUNT)),
)
_COPY = KernelTemplate(
    "opbox_copy_rows",
    "const T *old, const T *rows, const int *last, T *out, int elements, int width, int zero",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int row = last[number / width];
  out[number] = row < 0 ? old[number] : zero ? T(0) : rows[row * width + number % width];
""",
    (_WHAT, lambda: Moved(4 * (2 * _SIZE * _WIDTH + _SIZE), 4 * (2 * _SIZE * _WIDTH + _SIZE))),
)
_TAKE = KernelTemplate(
    "opbox_take_rows",
    "const T *rows, const int *where, T *out, int elements, int width, int size",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int row = where[number / width];
  out[number] = row < 0 || row >= size ? T(0) : rows[row * width + number % width];
""",
    (_WHAT, lambda: Moved(4 * (2 * _COUNT * _WIDTH + _COUNT), 4 * (2 * _COUNT * _WIDTH + _COUNT))),
)
KERNELS += [_LAST, _COPY, _TAKE]


def _accepts_arrays(call: CallSpec, *arrays: ArraySpec) -> bool:
    dtype = arrays[0].dtype
    alike = all(array.dtype == dtype for array in arrays)
    sizes = [size_of(array.shape) for array in (*arrays, call.inputs[1])]
    return call.plain and alike and dtype.itemsize in _BITS and all(0 < size <= MAX_ELEMENTS for size in sizes)


def _temps(p: NoParams, call: CallSpec) -> list[Temp]:
    """The positions, and which of the new rows each row takes: -1 for none."""
    return [Temp(call.inputs[1].shape, np.int32), Temp(call.inputs[0].shape[:1], np.int32)]


def _bits(array: Array) -> Array:
    return array.view(_BITS[array.itemsize])


def _find(ctx: OpContext, index: Array) -> list[Call]:
    """Calls that write the temporaries."""
    where, last = ctx.temp
    arguments = (where, last, np.int32(where.size), np.int32(last.size))
    copy = partial(ctx.xp.copyto, where, index, casting="unsafe")
    return [copy, partial(last.fill, -1), by_thread(ctx, _LAST, np.float32, where.size, arguments)]


def _put(ctx: OpContext, old: Array, rows: Array, out: Array, *, zero: bool) -> Call:
    """A call that writes `old` with new rows where there are any, or zeros."""
    arguments = (old, rows, ctx.temp[1], out, *map(np.int32, (out.size, out.size // len(out), zero)))
    return by_thread(ctx, _COPY, out.dtype, out.size, arguments)


@index_copy.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _accepts_arrays(call, call.inputs[0], call.inputs[2], call.outputs[0]),
    temps=_temps,
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    (old, index, new), calls = contiguous(ctx, inputs)
    if outputs[0] is None:
        return as_one([])
    return as_one([*calls, *_find(ctx, index), _put(ctx, *map(_bits, (old, new, outputs[0])), zero=False)])


@copy_backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=lambda p, call: _accepts_arrays(call, call.inputs[0], call.outputs[0], call.outputs[2]),
    temps=_temps,
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Call:
    (gout, index), calls = contiguous(ctx, inputs)
    gold, gindex, gnew = outputs
    gout = _bits(gout)
    calls += _find(ctx, index)
    if gindex is not None:
        calls.append(partial(gindex.fill, 0))
    if gnew is not None:  # before gold, which may be gout's memory
        rows = _bits(gnew)
        arguments: tuple[Any, ...] = (gout, ctx.temp[0], rows)
        sizes = map(np.int32, (rows.size, rows.size // len(rows), len(gout)))
        calls.append(by_thread(ctx, _TAKE, rows.dtype, rows.size, (*arguments, *sizes)))
    if gold is not None:
        calls.append(_put(ctx, gout, gout, _bits(gold), zero=True))
    return as_one(calls)
