"""Triangular systems on a GPU: a kernel solves BLOCK rows, a thread a right side; a product takes them from the rest.

What is divided by 0 is infinite or no number there: to raise an error would stop the device's queue.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one, nothing
from ..compute import Array, Arrays, CallSpec, OpContext, Outputs, Temp
from ..linalg.triangular import TriangularParams, trsm, trsm_backward
from .kernel import KERNELS, KernelTemplate, Moved, contiguous, threads_for
from .matrix_parts import BLOCK, MatrixPart, accepts, at, multiply, place_of, zero_triangle

__all__ = ["solve"]

_THREADS = 128
_COUNT, _SIDES = 64, 512
_EXAMPLE_BYTES = 4 * _COUNT * (BLOCK * BLOCK + 2 * BLOCK * _SIDES)

SOLVE_BLOCK = KernelTemplate(
    "opbox_solve_block",
    f"{at('a', True)}, {at('x')}, int n, int columns, int lower, int unit",
    f"""  __shared__ A tile[{BLOCK}][{BLOCK + 1}];
  const int tiles = (columns + blockDim.x - 1) / blockDim.x, matrix = blockIdx.x / tiles;
  const T *from = a + a_first + matrix * a_matrix;
  // An upper triangle is a lower one from its last row on.
  for (int k = threadIdx.x; k < n * n; k += blockDim.x) {{
    const int i = k / n, j = k % n;
    if (j <= i) tile[i][j] = A(from[(lower ? i : n - 1 - i) * a_row + (lower ? j : n - 1 - j) * a_column]);
  }}
  __syncthreads();
  const int column = blockIdx.x % tiles * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  T *to = x + x_first + matrix * x_matrix + column * x_column;
  A solved[{BLOCK}];
#pragma unroll
  for (int i = 0; i < {BLOCK}; ++i) {{
    if (i < n) {{
      const int row = (lower ? i : n - 1 - i) * x_row;
      A value = A(to[row]);
#pragma unroll
      for (int j = 0; j < i; ++j) value -= tile[i][j] * solved[j];
      solved[i] = unit ? value : value / tile[i][i];
      to[row] = T(solved[i]);
    }}
  }}
""",
    (
        f"{_COUNT} systems of {BLOCK} rows, {_SIDES} right sides",
        lambda: Moved(_EXAMPLE_BYTES + 4 * _COUNT * (_SIDES // _THREADS - 1) * BLOCK * BLOCK, _EXAMPLE_BYTES),
    ),
    contracts=True,
)
KERNELS.append(SOLVE_BLOCK)


def _solve_block(ctx: OpContext, a: MatrixPart, x: MatrixPart, lower: bool, unit: bool) -> Callable[[], Any]:
    block = threads_for(x.columns, _THREADS)
    grid = len(x.array) * -(-x.columns // block)
    arguments = (*place_of(a), *place_of(x), *map(np.int32, (x.rows, x.columns, lower, unit)))
    return SOLVE_BLOCK.call(ctx, x.array.dtype, grid, block, arguments)


def solve(ctx: OpContext, a: MatrixPart, x: MatrixPart, lower: bool, unit: bool = False) -> list[Callable[[], Any]]:
    """Calls that write the y with a @ y = x over x.

    Args:
        a: square matrices, of which one triangle is read.
        x: the right sides.
        lower: which triangle of `a`, as it stands: of a part that is turned, that of the transposed.
        unit: the diagonal is 1, whatever is there.
    """
    calls = []
    starts = range(0, a.rows, BLOCK)
    for start in starts if lower else reversed(starts):
        here = slice(start, min(start + BLOCK, a.rows))
        calls.append(_solve_block(ctx, a.part(here, here), x.rows_at(here), lower, unit))
        rest = slice(here.stop, a.rows) if lower else slice(0, start)
        if rest.start < rest.stop:
            calls.append(multiply(ctx, a.part(rest, here), x.rows_at(here), x.rows_at(rest), add=True, factor=-1))
    return calls


def _solved(p: TriangularParams, ctx: OpContext, a: Array, x: Array, transpose: bool) -> list[Callable[[], Any]]:
    """Calls that write op(a)^-1 @ x over x, or x @ op(a)^-1."""
    matrices, sides = MatrixPart.of(a), MatrixPart.of(x)
    if p.rightside:
        sides, transpose = sides.T, not transpose
    return solve(ctx, matrices.T if transpose else matrices, sides, p.lower is not transpose)


@trsm.compute("gpu", level="generated", prepares=True, accepts=accepts)
def _(p: TriangularParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (a,), copies = contiguous(ctx, inputs[:1])
    scaled = partial(ctx.xp.multiply, inputs[1], p.alpha, out=outputs[0])
    return as_one([*copies, scaled, *_solved(p, ctx, a, outputs[0], p.transpose)])


def _temps(p: TriangularParams, call: CallSpec) -> list[Temp]:
    """The solved right sides, where B's gradient has no place for them."""
    return [] if call.wants(1) else [Temp(call.inputs[0].shape, call.inputs[0].dtype)]


@trsm_backward.compute("gpu", level="generated", prepares=True, accepts=accepts, temps=_temps)
def _(p: TriangularParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    g, (ga, gb) = inputs[0], outputs
    if ga is None and gb is None:
        return nothing
    (a, out), copies = contiguous(ctx, inputs[1:])
    solved = ctx.temp[0] if gb is None else gb
    calls: list[Callable[[], Any]] = [
        *copies,
        partial(ctx.xp.copyto, solved, g),
        *_solved(p, ctx, a, solved, not p.transpose),
    ]
    if ga is not None:
        left, right = (
            (MatrixPart.of(out).T, MatrixPart.of(solved))
            if p.rightside
            else (MatrixPart.of(solved), MatrixPart.of(out).T)
        )
        if p.transpose:
            left, right = right.T, left.T
        calls += [multiply(ctx, left, right, MatrixPart.of(ga), factor=-1), zero_triangle(ctx, ga, p.lower)]
    if gb is not None:
        calls.append(partial(ctx.xp.multiply, gb, p.alpha, out=gb))
    return as_one(calls)
