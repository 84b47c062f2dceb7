"""pick and batch_take on a GPU: a thread for each picked element; for the gradient, rows shared out by `row_blocks`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Array, Arrays, ArraySpec, CallSpec, OpContext, Outputs, Temp
from ..index import pick
from ..infer import size_of
from .division import DIVISION, declared, divisors
from .fours import by_rows
from .kernel import KERNELS, WITH_BFLOAT16, KernelTemplate, Moved, by_thread, contiguous, of_one_type
from .row_blocks import APPLY, ROW, ROW_SIZES, RowBlocks

_ROWS, _CLASSES = 4096, 1000
_EXAMPLE = "4,096 of rows of 1,000"
_POSITION = """// A number of `index` as a position from 0 to n - 1; what is no number is the least.
__device__ int position(double value, int n, int wraps) {
  const long long least = -9223372036854775807ll - 1;
  const long long whole = fabs(value) < 9e18 ? (long long)value : least;
  if (wraps) return int((whole % n + n) % n);
  return whole < 0 ? 0 : whole >= n ? n - 1 : int(whole);
}
"""


def _kernels(suffix: str, index: str) -> tuple[KernelTemplate, KernelTemplate]:
    """The kernels for positions of a type."""
    forward = KernelTemplate(
        f"opbox_pick{suffix}",
        f"const T *data, const {index} *index, T *out, int elements, int n, int inner, int wraps, {declared('inner')}",
        """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int before = OPBOX_QUOTIENT(number, inner), after = number - before * inner;
  out[number] = data[((long long)before * n + position(double(index[number]), n, wraps)) * inner + after];
""",
        (_EXAMPLE, lambda: Moved(4 * 3 * _ROWS, 4 * 3 * _ROWS)),
        declares=DIVISION + _POSITION,
        types=tuple(WITH_BFLOAT16),
    )
    backward = KernelTemplate(
        f"opbox_pick_back{suffix}",
        f"const T *gout, const {index} *index, T *gdata, int wraps, {ROW_SIZES}, int phase",
        f"""  const Row row = row_here(outer, n, inner, width, lanes, slices);
  const int chosen = position(double(index[row.number]), n, wraps);
  const T g = gout[row.number];
{by_rows({}, "gdata[at] = i == chosen ? g : T(0);")}""",
        (_EXAMPLE, lambda: Moved(4 * _ROWS * (_CLASSES + 2), 4 * _ROWS * (_CLASSES + 2))),
        declares=ROW + _POSITION,
        types=tuple(WITH_BFLOAT16),
    )
    return forward, backward


_OF_DATA, _OF_DOUBLES = _kernels("", "T"), _kernels("_by_doubles", "double")
KERNELS += [*_OF_DATA, *_OF_DOUBLES]


def _accepts(data: ArraySpec, index: ArraySpec, call: CallSpec) -> bool:
    alike = index.dtype == data.dtype or index.dtype.name != "bfloat16"
    return call.plain and alike and size_of(index.shape) > 0 and of_one_type(data, types=WITH_BFLOAT16)


def _temps(data: ArraySpec, index: ArraySpec) -> list[Temp]:
    """Positions of another type than data's, as doubles."""
    return [] if index.dtype == data.dtype else [Temp(index.shape, "float64")]


def _axis(p: Any, data: tuple[int, ...]) -> tuple[int, int, int]:
    """(outer, n, inner) of data, and n is what is picked from."""
    axis = p.axis % len(data) if isinstance(p, pick.PickParams) else 1
    return size_of(data[:axis]), data[axis], size_of(data[axis + 1 :])


def _positions(ctx: OpContext, array: Array, index: Array) -> tuple[Array, list[Callable[[], Any]], Any]:
    """`array` and index as a kernel reads them, the calls before it, and the kernels."""
    (plain,), calls = contiguous(ctx, [array])
    if not ctx.temp:
        (index,), copies = contiguous(ctx, [index])
        return (plain, index), calls + copies, _OF_DATA
    (doubles,) = ctx.temp
    return (plain, doubles), [*calls, partial(ctx.xp.copyto, doubles, index, casting="unsafe")], _OF_DOUBLES


def _wraps(p: Any) -> Any:
    return np.int32(isinstance(p, pick.PickParams) and p.mode == "wrap")


def _forward(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, calls, (kernel, _) = _positions(ctx, *inputs)
    out, (_, n, inner) = outputs[0], _axis(p, inputs[0].shape)
    numbers = (*map(np.int32, (out.size, n, inner)), _wraps(p), *divisors(inner))
    return as_one([*calls, by_thread(ctx, kernel, out.dtype, out.size, (*arrays, out, *numbers))])


def _backward(p: Any, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    gdata, *others = outputs
    calls: list[Callable[[], Any]] = [partial(other.fill, 0) for other in others if other is not None]
    if gdata is not None:
        arrays, copies, (_, kernel) = _positions(ctx, *inputs)
        blocks = RowBlocks(*_axis(p, gdata.shape))
        calls += [*copies, *blocks.calls(ctx, kernel, gdata.dtype, (*arrays, gdata, _wraps(p)), (APPLY,))]
    return as_one(calls)


for _op in (pick.pick, pick.batch_take):
    _op.compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=lambda p, call: _accepts(call.inputs[0], call.inputs[1], call),
        temps=lambda p, call: _temps(call.inputs[0], call.inputs[1]),
    )(_forward)
for _op in (pick.pick_backward, pick.batch_take_backward):
    _op.compute(
        "gpu",
        level="generated",
        prepares=True,
        accepts=lambda p, call: _accepts(call.outputs[0], call.inputs[1], call),
        temps=lambda p, call: _temps(call.outputs[0], call.inputs[1]),
    )(_backward)
