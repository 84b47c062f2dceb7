"""Code of the matrix operators: element types, square matrices, factorisations that can fail, triangular systems.

A matrix operator works on an array's last two axes; the axes before them are a batch of matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from opbox_protocol.errors import BadRequestError, ShapeError

from ..compute import Array, Arrays, ArraySpec, Temp
from ..cpu.algorithms.large_products import matmul_in_pieces
from ..index.counting import count_up
from ..index.zero_weights import lost_to_zero_weights
from ..infer import Shape, ShapeList, TypeList, all_same_type, show_shape
from ..pausing import in_one_piece, pause
from .dot import first_known

__all__ = [
    "ALLOCATES",
    "any_batch",
    "batch_shape",
    "by_batches",
    "mirrored",
    "real_types",
    "same_squares",
    "solvable",
    "solve_triangular",
    "square",
    "triangle",
    "triangle_temps",
    "transposed",
    "write_triangle",
]

MAX_WORK = 1 << 22
"""Maximum of elements times rows of the matrices of a batch that are computed at a time: 155,000 of 3 x 3, some 0.1
s."""
BLOCK = 256
"""Rows of a triangular system that are solved at a time: SciPy's call keeps the interpreter's lock for 5 ms of them."""
COLUMNS = 1024
"""Right sides that are solved for at a time."""
ALLOCATES = "the library's factorisations and solvers make their results themselves"


def real_types(p: Any, ins: TypeList, outs: TypeList) -> None:
    """One type for all, float32 or float64: LAPACK has no other real ones, and MXNet takes no other."""
    all_same_type(p, ins, outs)
    for slots in (ins, outs):
        for i in range(len(slots)):
            slots.only(i, "float32", "float64")


def any_batch(shapes: ShapeList, index: int) -> Shape:
    """The shape in slot `index`, which has at least two dimensions when it is known."""
    shape = shapes[index]
    if shape is not None and len(shape) < 2:
        raise ShapeError(f"expected at least 2 dimensions, got {show_shape(shape)}", side=shapes.side, index=index)
    return shape


def square(shapes: ShapeList, index: int) -> Shape:
    """The shape in slot `index` as a batch of square matrices, the one side taken from the other."""
    shape = any_batch(shapes, index)
    if shape is None:
        return None
    side = first_known(*shape[-2:])
    if shape[-1] not in (-1, side) or shape[-2] not in (-1, side):
        raise ShapeError(f"expected square matrices, got {show_shape(shape)}", side=shapes.side, index=index)
    return shapes.merge(index, (*shape[:-2], side, side))


def same_squares(p: Any, ins: ShapeList, outs: ShapeList) -> None:
    """FInferShape of square matrices in, as many of the same size out."""
    outs.merge(0, square(ins, 0))
    ins.merge(0, square(outs, 0))


def batch_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one number for each matrix; of a single matrix (1,)."""
    return shape[:-2] or (1,)


def transposed(array: Array) -> Array:
    """Each matrix transposed, as a view."""
    return array.swapaxes(-1, -2)


def triangle(xp: Any, array: Array, lower: bool = True) -> Array:
    """A copy with zeros above the diagonal, or below it."""
    return xp.tril(array) if lower else xp.triu(array)


def triangle_temps(matrices: ArraySpec) -> list[Temp]:
    """Temporary arrays for `write_triangle`: positions along a side, and a mask of one matrix."""
    n = matrices.shape[-1]
    return [Temp((n,), "int64"), Temp((n, n), "bool")]


def write_triangle(xp: Any, matrices: Array, lower: bool, scratch: Arrays, out: Array) -> Array:
    """Write one triangle of the matrices to `out`, and zeros beside it."""
    numbers, inside = scratch
    count_up(xp, numbers)
    (xp.greater_equal if lower else xp.less_equal)(numbers[:, None], numbers, out=inside)
    out.fill(0)
    xp.copyto(out, matrices, where=inside)
    return out


def mirrored(xp: Any, array: Array) -> Array:
    """The symmetric matrices that have the lower triangles of `array`."""
    return xp.tril(array) + transposed(xp.tril(array, -1))


def by_batches(xp: Any, function: Callable[..., Any], *arrays: Array, work: int = 4) -> Sequence[Array]:
    """Apply a function to batches of matrices, on the CPU in pieces, so that the call may be stopped between them.

    Args:
        xp: the array library.
        function: of `arrays`.
        arrays: the batches.
        work: its multiplications for each element of a matrix and row, or column where these are fewer.
    """
    first = arrays[0]
    if xp is not np:
        return _as_tuple(function(*arrays))
    if first.ndim < 3 or first.size * min(first.shape[-2:]) <= MAX_WORK:
        with in_one_piece(work * first.size * min(first.shape[-2:])):
            return _as_tuple(function(*arrays))
    batch = first.shape[:-2]
    flat = [array.reshape(-1, *array.shape[-2:]) for array in arrays]
    step = max(1, MAX_WORK // max(first.shape[-2] * first.shape[-1] * min(first.shape[-2:]), 1))
    parts = []
    for start in range(0, len(flat[0]), step):
        pieces = [array[start : start + step] for array in flat]
        with in_one_piece(work * pieces[0].size * min(first.shape[-2:])):
            parts.append(_as_tuple(function(*pieces)))
    return [np.concatenate(pieces).reshape(*batch, *pieces[0].shape[1:]) for pieces in zip(*parts, strict=True)]


def _as_tuple(result: Any) -> Sequence[Array]:
    return result if isinstance(result, tuple) else (result,)


@contextmanager
def solvable(expected: str) -> Iterator[None]:
    """A factorisation that can fail: "A: expected {expected}" if it does.

    Raises:
        BadRequestError: from the library's LinAlgError. (A GPU gives NaN instead: to know would stop its queue.)
    """
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise BadRequestError(f"A: expected {expected}, got one that is not") from error


def solve_triangular(ctx: Any, a: Array, b: Array, lower: bool, transpose: bool = False) -> Array:
    """The x with a @ x = b, or a.T @ x = b; of `a` one triangle is read.

    A batch of small systems is solved by the general solver, which takes many matrices in one call; a single system,
    and large ones, by LAPACK's triangular one on the CPU, a block of rows at a time.

    Raises:
        BadRequestError: a number on the diagonal is 0.
    """
    if not b.size:
        return b.copy()
    with solvable("triangular matrices without 0 on the diagonal"):
        if ctx.xp is not np or (a.ndim > 2 and a.shape[-1] <= BLOCK and b.shape[-1] <= COLUMNS):
            part = triangle(ctx.xp, a, lower)
            solved = by_batches(ctx.xp, ctx.xp.linalg.solve, transposed(part) if transpose else part, b)[0]
            # The general solver exchanges rows: zeros beside the triangle meet what is infinite.
            if not lost_to_zero_weights(ctx.xp, solved):
                return solved
        x = np.empty(b.shape, b.dtype)
        for at in np.ndindex(a.shape[:-2]):
            _solve_in_blocks(transposed(a[at]) if transpose else a[at], b[at], lower is not transpose, x[at])
        return x


def _solve_in_blocks(a: Array, b: Array, lower: bool, x: Array) -> None:
    """Write the x with a @ x = b for one triangle of a matrix."""
    import scipy.linalg  # when a system is to be solved: it takes half as long to load as NumPy

    starts = range(0, len(a), BLOCK)
    for start in starts if lower else reversed(starts):
        at = slice(start, start + BLOCK)
        known = slice(0, start) if lower else slice(start + BLOCK, None)
        right = b[at]
        if a[at, known].size:
            product = np.empty(right.shape, right.dtype)
            matmul_in_pieces(a[at, known], x[known], product)
            right = np.subtract(right, product, out=product)
        for first in range(0, right.shape[1], COLUMNS):
            pause()
            columns = slice(first, first + COLUMNS)
            x[at, columns] = scipy.linalg.solve_triangular(
                a[at, at], right[:, columns], lower=lower, check_finite=False
            )
