"""_linalg_potrf, _linalg_potri and their gradients on a GPU.

A kernel factors a block on the diagonal, a thread a row; the rows under it are a triangular system, and what is right
of them a product. The factor of a matrix that is not positive definite has NaN from the column on where it fails.

`linalg/cholesky` has the formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Array, Arrays, OpContext, Outputs, Temp
from ..linalg.cholesky import potrf, potrf_backward, potri, potri_backward
from ..linalg.matrix import transposed
from ..params import NoParams
from .kernel import KERNELS, KernelTemplate, Moved, contiguous
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

CHOLESKY_BLOCK = KernelTemplate(
    "opbox_cholesky_block",
    f"{at('x')}, int n",
    f"""  __shared__ A tile[{BLOCK}][{BLOCK + 1}];
  T *matrix = x + x_first + blockIdx.x * x_matrix;
  const int i = threadIdx.x;
  for (int row = 0; row < n; ++row)
    if (i <= row) tile[row][i] = A(matrix[row * x_row + i * x_column]);
  __syncthreads();
  for (int k = 0; k < n; ++k) {{
    if (i == k) tile[k][k] = sqrt(tile[k][k]);
    __syncthreads();
    if (i > k && i < n) tile[i][k] /= tile[k][k];
    __syncthreads();
    if (i > k && i < n)
      for (int j = k + 1; j <= i; ++j) tile[i][j] -= tile[i][k] * tile[j][k];
    __syncthreads();
  }}
  for (int row = 0; row < n; ++row)
    if (i <= row) matrix[row * x_row + i * x_column] = T(tile[row][i]);
""",
    (EXAMPLE, lambda: Moved(EXAMPLE_BYTES, EXAMPLE_BYTES)),
    contracts=True,
)
KERNELS.append(CHOLESKY_BLOCK)


def _factored(ctx: OpContext, matrices: Array) -> list[Callable[[], Any]]:
    """Calls that write the lower factors over symmetric matrices, of which the lower triangle is read."""
    calls, whole = [], MatrixPart.of(matrices)
    n = whole.rows
    for start in range(0, n, BLOCK):
        here = slice(start, min(start + BLOCK, n))
        corner = whole.part(here, here)
        arguments = (*place_of(corner), np.int32(corner.rows))
        calls.append(CHOLESKY_BLOCK.call(ctx, matrices.dtype, len(whole.array), BLOCK, arguments))
        rest = slice(here.stop, n)
        if here.stop < n:
            below = whole.part(rest, here)
            calls += solve(ctx, corner, below.T, True)
            calls.append(multiply(ctx, below, below.T, whole.part(rest, rest), add=True, factor=-1))
    return [*calls, zero_triangle(ctx, matrices)]


@potrf.compute("gpu", level="generated", prepares=True, accepts=accepts)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    return as_one([partial(ctx.xp.copyto, outputs[0], inputs[0]), *_factored(ctx, outputs[0])])


@potrf_backward.compute("gpu", level="generated", prepares=True, accepts=accepts)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (g, factor), copies = contiguous(ctx, inputs)
    out, lower = outputs[0], MatrixPart.of(factor)
    return as_one(
        [
            *copies,
            multiply(ctx, lower.T, MatrixPart.of(g), MatrixPart.of(out)),
            mirror(ctx, out),
            *solve(ctx, lower.T, MatrixPart.of(out), False),
            *solve(ctx, lower.T, MatrixPart.of(out).T, False),
            partial(ctx.xp.multiply, out, 0.5, out=out),
        ]
    )


@potri.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=accepts,
    temps=lambda p, call: [Temp(call.inputs[0].shape, call.inputs[0].dtype)],
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (factor,), copies = contiguous(ctx, inputs)
    inverse = MatrixPart.of(ctx.temp[0])
    return as_one(
        [
            *copies,
            *identity(ctx.temp[0]),
            *solve(ctx, MatrixPart.of(factor), inverse, True),
            multiply(ctx, inverse.T, inverse, MatrixPart.of(outputs[0])),
        ]
    )


@potri_backward.compute(
    "gpu",
    level="generated",
    prepares=True,
    accepts=accepts,
    temps=lambda p, call: [Temp(call.inputs[0].shape, call.inputs[0].dtype)],
)
def _(p: NoParams, ctx: OpContext, inputs: Arrays, outputs: Outputs) -> Callable[[], Any]:
    (factor, inverse), copies = contiguous(ctx, inputs[1:])
    g, out, (both,) = inputs[0], outputs[0], ctx.temp
    return as_one(
        [
            *copies,
            partial(ctx.xp.add, g, transposed(g), out=both),
            multiply(ctx, MatrixPart.of(inverse), MatrixPart.of(both), MatrixPart.of(out), factor=-1),
            *solve(ctx, MatrixPart.of(factor), MatrixPart.of(out).T, True),
            zero_triangle(ctx, out),
        ]
    )
