"""Parts of matrices on a GPU: rectangles of each matrix of a batch, their products, and their triangles.

Factorisations and solvers work on BLOCK columns or rows at a time: a kernel of our own computes within the block, one
product of cuBLAS brings all others up to date (Golub and Van Loan, Matrix Computations, 3.2.11).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..compute import Array, CallSpec, OpContext
from ..infer import size_of
from .kernel import KERNELS, KernelTemplate, Moved, fits, threads_for
from .product import product

__all__ = [
    "BLOCK",
    "EXAMPLE",
    "EXAMPLE_BYTES",
    "MatrixPart",
    "accepts",
    "at",
    "identity",
    "mirror",
    "multiply",
    "place_of",
    "zero_triangle",
]

BLOCK = 32
"""Rows and columns of the blocks that kernels of our own compute: a double's finds room in shared memory twice."""
_COUNT, _SIDE = 256, 32
EXAMPLE = f"{_COUNT} matrices of {_SIDE} x {_SIDE}"
"""What the kernels' figures are for."""
EXAMPLE_BYTES = 4 * _COUNT * _SIDE * _SIDE

TRIANGLE = KernelTemplate(
    "opbox_triangle",
    "T *x, int elements, int n, int lower, int mirrored",
    """  const int number = blockIdx.x * blockDim.x + threadIdx.x;
  if (number >= elements) return;
  const int j = number % n, i = number / n % n;
  if (lower ? j > i : j < i) x[number] = mirrored ? x[number - i * n - j + j * n + i] : T(0);
""",
    (EXAMPLE, lambda: Moved(EXAMPLE_BYTES, EXAMPLE_BYTES)),
)
KERNELS.append(TRIANGLE)


@dataclass(frozen=True)
class MatrixPart:
    """A rectangle of each matrix of a batch, or of each matrix transposed.

    Attributes:
        array: contiguous, (count, rows, columns).
        top, left: where it begins in each.
        shape: rows and columns of the rectangle, as it lies in the array.
        transposed: whether it stands for the transposed.
    """

    array: Array
    top: int
    left: int
    shape: tuple[int, int]
    transposed: bool = False

    @classmethod
    def of(cls, array: Array) -> MatrixPart:
        """All of the matrices on the last two axes of a contiguous array."""
        rows, columns = array.shape[-2:]
        return cls(array.reshape(-1, rows, columns), 0, 0, (rows, columns))

    @property
    def rows(self) -> int:
        return self.shape[self.transposed]

    @property
    def columns(self) -> int:
        return self.shape[not self.transposed]

    @property
    def T(self) -> MatrixPart:
        """The transposed."""
        return MatrixPart(self.array, self.top, self.left, self.shape, not self.transposed)

    def part(self, rows: slice, columns: slice) -> MatrixPart:
        """The rows from `rows.start` to `rows.stop`, and such columns."""
        if self.transposed:
            rows, columns = columns, rows
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        return MatrixPart(self.array, self.top + rows.start, self.left + columns.start, shape, self.transposed)

    def rows_at(self, rows: slice) -> MatrixPart:
        """These rows, whole."""
        return self.part(rows, slice(0, self.columns))

    @property
    def view(self) -> Array:
        """It as an array (count, rows, columns)."""
        rows, columns = self.shape
        array = self.array[:, self.top : self.top + rows, self.left : self.left + columns]
        return array.swapaxes(1, 2) if self.transposed else array


def place_of(part: MatrixPart) -> list[Any]:
    """A part as arguments of a kernel, which `at` names: the array, its first element, and the distances between
    rows, columns and matrices."""
    _, rows, columns = part.array.shape
    row, column = (1, columns) if part.transposed else (columns, 1)
    return [part.array, *map(np.int32, (part.top * columns + part.left, row, column, rows * columns))]


def at(name: str, constant: bool = False) -> str:
    """The parameters of a kernel for a part; element (i, j) of a matrix is
    `x[x_first + matrix * x_matrix + i * x_row + j * x_column]`."""
    pointer = f"{'const ' if constant else ''}T *{name}"
    return f"{pointer}, int {name}_first, int {name}_row, int {name}_column, int {name}_matrix"


def accepts(p: Any, call: CallSpec) -> bool:
    """Return whether kernels take a call all of whose arrays have one element type."""
    return fits(call, *call.inputs, *call.outputs)


def multiply(
    ctx: OpContext, a: MatrixPart, b: MatrixPart, out: MatrixPart, *, add: bool = False, factor: float = 1
) -> Callable[[], Any]:
    """A call that writes factor * a @ b to `out`, or adds it there."""
    if out.transposed:
        a, b, out = b.T, a.T, out.T
    return product(ctx.xp, a.view[None], b.view[None], out.view[None], add=add, factor=factor, tf32=False)


def _triangle(ctx: OpContext, matrices: Array, lower: bool, mirrored: bool) -> Callable[[], Any]:
    n, elements = matrices.shape[-1], size_of(matrices.shape)
    block = threads_for(elements)
    arguments = (matrices, *map(np.int32, (elements, n, lower, mirrored)))
    return TRIANGLE.call(ctx, matrices.dtype, -(-elements // block), block, arguments)


def zero_triangle(ctx: OpContext, matrices: Array, lower: bool = True) -> Callable[[], Any]:
    """A call that leaves one triangle of square matrices, and zeros beside it."""
    return _triangle(ctx, matrices, lower, False)


def mirror(ctx: OpContext, matrices: Array) -> Callable[[], Any]:
    """A call that makes square matrices symmetric, by their lower triangle."""
    return _triangle(ctx, matrices, True, True)


def identity(matrices: Array) -> list[Callable[[], Any]]:
    """Calls that write 1 on the diagonal of matrices, of no more rows than columns, and 0 beside it."""
    rows, columns = matrices.shape[-2:]
    diagonals = matrices.reshape(-1, rows * columns)[:, :: columns + 1]
    return [partial(matrices.fill, 0), partial(diagonals.fill, 1)]
