"""_linalg_inverse, _linalg_det, _linalg_slogdet and their gradients on a GPU: Gaussian elimination with row pivots.

A kernel eliminates BLOCK columns, a block of threads a matrix; its exchanges of rows are then made in the other
columns, the rows beside the block are a triangular system, and what is under them a product. The inverse of a singular
matrix is infinite or NaN.

`linalg/inverse` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one, nothing
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..infer import size_of
from ..linalg.inverse import det, det_backward, inverse, slogdet, slogdet_backward
from ..params import NoParams
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, threads_for
from .matrix_parts import BLOCK, EXAMPLE, EXAMPLE_BYTES, MatrixPart, accepts, at, identity, multiply, place_of
from .triangular import solve

_THREADS = 256
_SIGN, _LOGARITHM, _VALUE = 1, 2, 4

PANEL = KernelTemplate(
    "opbox_eliminate_panel",
    f"{at('x')}, int *pivots, int n, int start, int rows, int width",
    f"""  __shared__ A largest[{_THREADS}];
  __shared__ int places[{_THREADS}];
  T *panel = x + x_first + blockIdx.x * x_matrix;
  const int t = threadIdx.x;
  for (int k = 0; k < width; ++k) {{
    A most = -1;
    int place = k;
    for (int i = k + t; i < rows; i += blockDim.x) {{
      const A size = fabs(A(panel[i * x_row + k * x_column]));
      if (size > most) {{
        most = size;
        place = i;
      }}
    }}
    largest[t] = most;
    places[t] = place;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {{
      if (t < half) {{
        const A other = largest[t + half];
        if (other > largest[t] || (other == largest[t] && places[t + half] < places[t])) {{
          largest[t] = other;
          places[t] = places[t + half];
        }}
      }}
      __syncthreads();
    }}
    const int pivot = places[0];
    if (t == 0) pivots[blockIdx.x * n + start + k] = start + pivot;
    if (pivot != k)
      for (int j = t; j < width; j += blockDim.x) {{
        const T value = panel[k * x_row + j * x_column];
        panel[k * x_row + j * x_column] = panel[pivot * x_row + j * x_column];
        panel[pivot * x_row + j * x_column] = value;
      }}
    __syncthreads();
    const A divisor = A(panel[k * x_row + k * x_column]);
    if (divisor != 0)
      for (int i = k + 1 + t; i < rows; i += blockDim.x)
        panel[i * x_row + k * x_column] = T(A(panel[i * x_row + k * x_column]) / divisor);
    __syncthreads();
    // A warp has a row.
    for (int number = t; number < (rows - k - 1) * {BLOCK}; number += blockDim.x) {{
      const int i = k + 1 + number / {BLOCK}, j = k + 1 + number % {BLOCK};
      if (j < width) {{
        const A taken = A(panel[i * x_row + k * x_column]) * A(panel[k * x_row + j * x_column]);
        panel[i * x_row + j * x_column] = T(A(panel[i * x_row + j * x_column]) - taken);
      }}
    }}
    __syncthreads();
  }}
""",
    (EXAMPLE, lambda: Moved(EXAMPLE_BYTES * (BLOCK + 1), 2 * EXAMPLE_BYTES)),
    contracts=True,
)
EXCHANGE_ROWS = KernelTemplate(
    "opbox_exchange_rows",
    f"{at('x')}, const int *pivots, int n, int first, int last, int columns, int skip_at, int skipped",
    """  const int tiles = (columns + blockDim.x - 1) / blockDim.x, matrix = blockIdx.x / tiles;
  int column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  if (column >= skip_at) column += skipped;
  T *to = x + x_first + matrix * x_matrix + column * x_column;
  for (int k = first; k < last; ++k) {
    const int other = pivots[matrix * n + k];
    if (other == k) continue;
    const T value = to[k * x_row];
    to[k * x_row] = to[other * x_row];
    to[other * x_row] = value;
  }
""",
    (EXAMPLE, lambda: Moved(2 * EXAMPLE_BYTES, 2 * EXAMPLE_BYTES)),
)
DETERMINANT = KernelTemplate(
    "opbox_determinant",
    "const T *factors, const int *pivots, T *signs, T *logarithms, int n, int what",
    f"""  extern __shared__ A scratch[];
  const T *matrix = factors + blockIdx.x * n * n;
  A sum = 0, changes = 0;
  bool zero = false;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {{
    const A value = A(matrix[i * n + i]);
    sum += log(fabs(value));
    changes += A((value < 0) != (pivots[blockIdx.x * n + i] != i));
    zero |= value == 0;
  }}
  sum = block_sum(sum, scratch);
  changes = block_sum(changes, scratch);
  const bool singular = __syncthreads_or(zero);
  if (threadIdx.x != 0) return;
  const A sign = singular ? A(0) : int(changes) % 2 ? A(-1) : A(1);
  if (what & {_SIGN}) signs[blockIdx.x] = T(sign);
  if (what & {_VALUE}) signs[blockIdx.x] = T(singular ? A(0) : sign * exp(sum));
  if (what & {_LOGARITHM}) logarithms[blockIdx.x] = T(singular ? log(A(0)) : sum);
""",
    (EXAMPLE, lambda: Moved(EXAMPLE_BYTES // BLOCK, EXAMPLE_BYTES // BLOCK)),
)
SCALE_REGULAR = KernelTemplate(
    "opbox_scale_regular",
    "T *x, const T *g, const T *values, int elements, int size, int times_value",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const A value = A(values[number / size]);
  const A factor = A(g[number / size]) * (times_value ? value : A(1));
  x[number] = value == 0 ? T(0) : T(factor * A(x[number]));
""",
    (EXAMPLE, lambda: Moved(2 * EXAMPLE_BYTES, 2 * EXAMPLE_BYTES)),
)
KERNELS += [PANEL, EXCHANGE_ROWS, DETERMINANT, SCALE_REGULAR]


def _exchange(
    ctx: OpContext, x: MatrixPart, pivots: Array, first: int, last: int, skip_at: int = 0, skipped: int = 0
) -> Callable[[], Any]:
    """A call that makes the exchanges from `first` to `last` in the rows of x, but for some of its columns."""
    columns = x.columns - skipped
    block = threads_for(columns, _THREADS)
    sizes = map(np.int32, (pivots.shape[-1], first, last, columns, skip_at, skipped))
    grid = len(x.array) * -(-columns // block)
    return EXCHANGE_ROWS.call(ctx, x.array.dtype, grid, block, (*place_of(x), pivots, *sizes))


def _eliminated(ctx: OpContext, a: Array, factors: Array, pivots: Array) -> list[Callable[[], Any]]:
    """Calls that write L (without its diagonal of 1) and U of matrices, and the row that each was exchanged for."""
    calls: list[Callable[[], Any]] = [partial(ctx.xp.copyto, factors, a)]
    whole = MatrixPart.of(factors)
    n = whole.rows
    for start in range(0, n, BLOCK):
        here, rest = slice(start, min(start + BLOCK, n)), slice(min(start + BLOCK, n), n)
        panel = whole.part(slice(start, n), here)
        sizes = map(np.int32, (n, start, panel.rows, panel.columns))
        block = threads_for(panel.rows, _THREADS)
        calls.append(PANEL.call(ctx, a.dtype, len(whole.array), block, (*place_of(panel), pivots, *sizes)))
        if panel.columns < n:
            calls.append(_exchange(ctx, whole, pivots, start, here.stop, start, panel.columns))
        if here.stop < n:
            beside = whole.part(here, rest)
            calls += solve(ctx, whole.part(here, here), beside, True, unit=True)
            calls.append(multiply(ctx, whole.part(rest, here), beside, whole.part(rest, rest), add=True, factor=-1))
    return calls


def _inverted(ctx: OpContext, a: Array, out: MatrixPart) -> list[Callable[[], Any]]:
    """Calls that write the inverse of matrices; the first two temporaries are their factors and pivots."""
    factors, pivots = ctx.temp[:2]
    whole = MatrixPart.of(factors)
    return [
        *_eliminated(ctx, a, factors, pivots),
        *identity(out.array),
        _exchange(ctx, out, pivots, 0, whole.rows),
        *solve(ctx, whole, out, True, unit=True),
        *solve(ctx, whole, out, False),
    ]


def _factors_temps(index: int) -> Any:
    """Temporaries for the factors of input `index`, and their pivots."""

    def temps(p: NoParams, call: CallSpec) -> list[Temp]:
        a = call.inputs[index]
        return [Temp(a.shape, a.dtype), Temp((size_of(a.shape[:-2]), a.shape[-1]), np.int32)]

    return temps


def _determinants(ctx: OpContext, a: Array, first: Array | None, second: Array | None, what: int) -> Callable[[], Any]:
    """A call that factors matrices and writes what _SIGN, _LOGARITHM and _VALUE ask for."""
    factors, pivots = ctx.temp
    n = a.shape[-1]
    block = threads_for(n, _THREADS)
    outs = [factors if out is None else out for out in (first, second)]
    arguments = (factors, pivots, *outs, np.int32(n), np.int32(what))
    determinant = DETERMINANT.call(ctx, factors.dtype, len(pivots), block, arguments, block * factors.dtype.itemsize)
    return as_one([*_eliminated(ctx, a, factors, pivots), determinant])


@inverse.compute("gpu", level="generated", prepares=True, accepts=accepts, temps=_factors_temps(0))
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return as_one(_inverted(ctx, inputs[0], MatrixPart.of(outputs[0])))


@det.compute("gpu", level="generated", prepares=True, accepts=accepts, temps=_factors_temps(0))
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _determinants(ctx, inputs[0], outputs[0], None, _VALUE)


@slogdet.compute("gpu", level="generated", prepares=True, accepts=accepts, temps=_factors_temps(0))
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    sign, logarithm = outputs
    what = _SIGN * (sign is not None) + _LOGARITHM * (logarithm is not None)
    return _determinants(ctx, inputs[0], sign, logarithm, what) if what else nothing


def _gradient(ctx: OpContext, inputs: Arrays, out: Array, times_value: bool) -> Callable[[], Any]:
    """A call that writes g * A^-T, times the determinant if `times_value`; 0 for singular matrices."""
    (g, values), copies = contiguous(ctx, [inputs[0], inputs[2]])
    size = out.shape[-1] ** 2
    block = threads_for(out.size, _THREADS)
    arguments = (out, g, values, *map(np.int32, (out.size, size, times_value)))
    scaled = SCALE_REGULAR.call(ctx, out.dtype, -(-out.size // block), block, arguments)
    return as_one([*copies, *_inverted(ctx, inputs[1], MatrixPart.of(out).T), scaled])


@det_backward.compute("gpu", level="generated", prepares=True, accepts=accepts, temps=_factors_temps(1))
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _gradient(ctx, inputs, outputs[0], True)


@slogdet_backward.compute("gpu", level="generated", prepares=True, accepts=accepts, temps=_factors_temps(1))
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return _gradient(ctx, inputs, outputs[0], False)
