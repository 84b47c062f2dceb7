"""_linalg_gelqf and its gradient on a GPU: Householder's reflections, BLOCK rows at a time.

A kernel reflects the rows of a block, a block of threads a matrix, and writes the matrix T that makes one product of
its reflections, I - V.T @ T @ V; products of cuBLAS apply it to the rows below, and backwards to the identity for Q
(Schreiber and Van Loan 1989). Signs are LAPACK's.

`linalg/factors` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Arrays, CallSpec, OpContext, Outputs, Temp
from ..linalg.factors import gelqf, gelqf_backward
from ..params import NoParams
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, threads_for
from .matrix_parts import (
    BLOCK,
    EXAMPLE,
    EXAMPLE_BYTES,
    MatrixPart,
    accepts,
    at,
    identity,
    mirror,
    multiply,
    place_of,
    zero_triangle,
)
from .triangular import solve

_THREADS = 256

REFLECT_ROWS = KernelTemplate(
    "opbox_reflect_rows",
    f"{at('x')}, {at('v')}, {at('t')}, int width, int columns",
    f"""  __shared__ A scratch[{_THREADS}];
  __shared__ A products[{BLOCK}];
  __shared__ A tile[{BLOCK}][{BLOCK + 1}];
  T *panel = x + x_first + blockIdx.x * x_matrix;
  T *reflectors = v + v_first + blockIdx.x * v_matrix;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int k = 0; k < width; ++k) {{
    T *row = panel + k * x_row, *reflector = reflectors + k * v_row;
    // Squares of tiny or large numbers would leave the type's range.
    A most = 0;
    for (int j = k + threadIdx.x; j < columns; j += blockDim.x) {{
      const A size = fabs(A(row[j]));
      if (size > most) most = size;
    }}
    scratch[threadIdx.x] = most;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {{
      if (threadIdx.x < half && scratch[threadIdx.x + half] > scratch[threadIdx.x])
        scratch[threadIdx.x] = scratch[threadIdx.x + half];
      __syncthreads();
    }}
    const A unit = scratch[0] == 0 ? A(1) : scratch[0], first = A(row[k]);
    __syncthreads();
    A squares = 0;
    for (int j = k + 1 + threadIdx.x; j < columns; j += blockDim.x) {{
      const A value = A(row[j]) / unit;
      squares += value * value;
    }}
    squares = block_sum(squares, scratch);
    const A scaled = first / unit, length = unit * sqrt(scaled * scaled + squares);
    const A left = squares == 0 ? first : first < 0 ? length : -length;
    const A factor = squares == 0 ? A(0) : (left - first) / left;
    for (int j = threadIdx.x; j < columns; j += blockDim.x)
      reflector[j] = j < k ? T(0) : j == k ? T(1) : squares == 0 ? T(0) : T(A(row[j]) / (first - left));
    __syncthreads();
    if (threadIdx.x == 0) row[k] = T(left);
    for (int i = warp; i < width; i += warps) {{
      if (i == k) continue;
      T *other = i > k ? panel + i * x_row : reflectors + i * v_row;
      A product = 0;
      for (int j = k + lane; j < columns; j += 32) product += A(other[j]) * A(reflector[j]);
      for (int apart = 16; apart > 0; apart /= 2) product += __shfl_xor_sync(0xffffffffu, product, apart);
      if (i < k) {{
        if (lane == 0) products[i] = product;
      }} else {{
        for (int j = k + lane; j < columns; j += 32) other[j] = T(A(other[j]) - factor * product * A(reflector[j]));
      }}
    }}
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += blockDim.x) {{
      A sum = 0;
      for (int j = i; j < k; ++j) sum += tile[i][j] * products[j];
      tile[i][k] = i < k ? -factor * sum : i == k ? factor : A(0);
    }}
    __syncthreads();
  }}
  for (int number = threadIdx.x; number < width * width; number += blockDim.x) {{
    const int i = number / width, j = number % width;
    t[t_first + blockIdx.x * t_matrix + i * t_row + j * t_column] = T(tile[i][j]);
  }}
""",
    # Each reflection reads the tails of all rows beside it, and writes those below.
    (EXAMPLE, lambda: Moved(EXAMPLE_BYTES * (BLOCK - 1) * 5 // 6, 3 * EXAMPLE_BYTES)),
    contracts=True,
)
KERNELS.append(REFLECT_ROWS)


def _temps(p: NoParams, call: CallSpec) -> list[Temp]:
    """A copy of A, the reflections, the matrices T, and two for products with these."""
    a = call.inputs[0]
    narrow = (*a.shape[:-1], BLOCK)
    return [Temp(shape, a.dtype) for shape in (a.shape, a.shape, narrow, narrow, narrow)]


class _Reflections:
    """Calls that reflect BLOCK rows of matrices, and that apply the product of these reflections to others."""

    def __init__(self, ctx: OpContext) -> None:
        self._ctx = ctx
        self._rows, self._v, self._t, self._one, self._other = map(MatrixPart.of, ctx.temp)
        self.starts = range(0, self._rows.rows, BLOCK)

    def _here(self, start: int) -> slice:
        return slice(start, min(start + BLOCK, self._rows.rows))

    def _parts(self, start: int) -> tuple[MatrixPart, MatrixPart]:
        """The reflections that begin at a row, and their T."""
        here = self._here(start)
        rows = slice(0, here.stop - start)
        return self._v.part(here, slice(start, self._v.columns)), self._t.rows_at(here).part(rows, rows)

    def reflect(self, start: int) -> list[Callable[[], Any]]:
        """Reflect the rows of a block, and apply that to the rows below."""
        ctx, here, whole = self._ctx, self._here(start), self._rows
        columns = slice(start, whole.columns)
        panel, (v, t) = whole.part(here, columns), self._parts(start)
        block = threads_for(panel.columns, _THREADS)
        arguments = (*place_of(panel), *place_of(v), *place_of(t), np.int32(panel.rows), np.int32(panel.columns))
        call = REFLECT_ROWS.call(ctx, whole.array.dtype, len(whole.array), block, arguments)
        if here.stop == whole.rows:
            return [call]
        return [call, *self._applied(start, whole.part(slice(here.stop, whole.rows), columns), False)]

    def apply_backwards(self, start: int, q: MatrixPart) -> list[Callable[[], Any]]:
        """Apply a block's reflections in reverse order to the rows of `q` that they change."""
        return self._applied(start, q.part(slice(start, q.rows), slice(start, q.columns)), True)

    def _applied(self, start: int, x: MatrixPart, backwards: bool) -> list[Callable[[], Any]]:
        """x - x @ V.T @ T @ V, with T transposed for the reverse order."""
        v, t = self._parts(start)
        one, other = (part.part(slice(0, x.rows), slice(0, v.rows)) for part in (self._one, self._other))
        return [
            multiply(self._ctx, x, v.T, one),
            multiply(self._ctx, one, t.T if backwards else t, other),
            multiply(self._ctx, other, v, x, add=True, factor=-1),
        ]


@gelqf.compute("gpu", level="generated", prepares=True, accepts=accepts, temps=_temps)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (q, lower), rows = outputs, ctx.temp[0]
    reflections = _Reflections(ctx)
    calls: list[Callable[[], Any]] = [partial(ctx.xp.copyto, rows, inputs[0])]
    for start in reflections.starts:
        calls += reflections.reflect(start)
    if lower is not None:
        calls += [partial(ctx.xp.copyto, lower, rows[..., : lower.shape[-1]]), zero_triangle(ctx, lower)]
    if q is not None:
        calls += identity(q)
        for start in reversed(reflections.starts):
            calls += reflections.apply_backwards(start, MatrixPart.of(q))
    return as_one(calls)


@gelqf_backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=accepts,
    temps=lambda p, call: [Temp(call.inputs[1].shape, call.inputs[1].dtype)],
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    arrays, copies = contiguous(ctx, inputs)
    gq, gl, q, lower = map(MatrixPart.of, arrays)
    middle, out = (MatrixPart.of(array) for array in (ctx.temp[0], outputs[0]))
    return as_one(
        [
            *copies,
            multiply(ctx, lower.T, gl, middle),
            multiply(ctx, gq, q.T, middle, add=True, factor=-1),
            mirror(ctx, ctx.temp[0]),
            partial(ctx.xp.copyto, outputs[0], inputs[0]),
            multiply(ctx, middle, q, out, add=True),
            *solve(ctx, lower.T, out, False),
        ]
    )
