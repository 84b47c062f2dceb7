"""Products of many matrices in one call of cuBLAS, on arrays that lie as they do: nothing is copied or allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..bound_calls import as_one
from ..compute import Array
from ..cpu.algorithms.large_products import is_large, matmul_in_pieces
from .cublas import batched_product
from .precision import allow_tf32

__all__ = ["matmul", "product", "takes", "takes_narrow"]

_TYPES = {
    "f": (0, 68, np.float32),
    "d": (1, 70, np.float64),
    "e": (2, 68, np.float32),
    "E": (14, 68, np.float32),
}
"""CUDA's numbers of an element type and of a computation in it (CUBLAS_COMPUTE_32F: never TF32), and its scalars.

Half precision and bfloat16 (NumPy's E) are added up in single.
"""
_NARROW = "eE"
_FAST_TF32 = 77
"""CUBLAS_COMPUTE_32F_FAST_TF32."""
_DEFAULT = -1
"""CUBLAS_GEMM_DEFAULT."""


def product(
    xp: Any, a: Array, b: Array, out: Array, *, add: bool = False, factor: float = 1, tf32: bool = True
) -> Callable[[], Any]:
    """A call that writes factor * a @ b to `out`, or adds it there.

    Arrays are (samples, groups, rows, columns), of one type: the rows or the columns of each matrix lie side
    by side. A stride of 0 repeats a matrix. As many calls of cuBLAS are made as there are samples, or groups if those
    are fewer. Without `tf32` the matrices' numbers are never rounded to TF32.
    """
    if not hasattr(xp, "cuda"):
        return _by_numpy(a, b, out, add, factor)
    axis = 0 if out.shape[0] >= out.shape[1] else 1

    def part(i: int) -> Callable[[], Any]:
        return _batched(xp, _part(a, axis, i), _part(b, axis, i), _part(out, axis, i), add, factor, tf32)

    return as_one([part(i) for i in range(out.shape[1 - axis])])


def _by_numpy(a: Array, b: Array, out: Array, add: bool, factor: float) -> Callable[[], Any]:
    def run() -> None:
        result = np.matmul(a, b) if factor == 1 else factor * np.matmul(a, b)
        np.add(out, result, out=out) if add else np.copyto(out, result)

    return run


def _part(array: Array, axis: int, i: int) -> Array:
    return array[:, i] if axis == 0 else array[i]


def _matrix_layout(array: Array) -> tuple[int, int, int, int]:
    """Address, whether it is stored by columns, distance between its lines, and from matrix to matrix."""
    itemsize, (count, rows, columns) = array.itemsize, array.shape
    matrix, row, column = (stride // itemsize for stride in array.strides)
    transposed = columns > 1 and column != 1
    line, least = (column, rows) if transposed else (row, columns)
    return array.data.ptr, int(transposed), max(line, least, 1), matrix if count > 1 else 0


def _batched(
    xp: Any, a: Array, b: Array, out: Array, add: bool, factor: float = 1, tf32: bool = True
) -> Callable[[], Any]:
    """One call for (count, rows, columns) arrays. cuBLAS reads by columns: to it they are the transposed."""
    read, (kind, computed, scalar) = _TYPES[a.dtype.char][0], _TYPES[out.dtype.char]
    if a.dtype.char == "f" and tf32 and allow_tf32():
        computed = _FAST_TF32
    count, m, n = out.shape
    (pa, ta, la, sa), (pb, tb, lb, sb), (pc, _, lc, sc) = map(_matrix_layout, (a, b, out))
    factors = np.array([factor, add], scalar)
    one, other = factors.ctypes.data, factors.ctypes.data + factors.itemsize
    matrices = (one, pb, read, lb, sb, pa, read, la, sa, other, pc, kind, lc, sc, count, computed, _DEFAULT)
    arguments = (tb, ta, n, m, a.shape[2], *matrices)

    def run(keep: Any = (a, b, out, factors)) -> None:
        batched_product(xp, arguments)

    return run


def matmul(xp: Any, a: Array, b: Array, out: Array) -> None:
    """out = a @ b, as NumPy's matmul takes them; on a GPU by cuBLAS wherever it takes the arrays as they lie."""
    if xp is np and out.ndim > 1 and is_large(a, out):
        matmul_in_pieces(a, b, out)
    elif xp is np or not (hasattr(xp, "cuda") and takes(a, b, out)):
        xp.matmul(a, b, out=out)
    elif out.ndim <= 3:
        shape = (1, *out.shape)[-3:]
        _batched(xp, _repeated(xp, a, shape), _repeated(xp, b, shape), out.reshape(shape), False)()
    else:
        product(xp, _repeated(xp, a, out.shape), _repeated(xp, b, out.shape), out)()


def takes_narrow(xp: Any, a: Array, b: Array, out: Array) -> bool:
    """Return whether `matmul` of half precision or bfloat16 adds up in single as the arrays lie: by cuBLAS, on a GPU.

    `out` is then of their type, and rounded once, or float32.
    """
    return hasattr(xp, "cuda") and a.dtype.char in _NARROW and takes(a, b, out)


def takes(a: Array, b: Array, out: Array) -> bool:
    """True if cuBLAS takes matrices, along up to two axes, as they lie: of types that it knows, and none empty."""
    kind = a.dtype
    return bool(
        kind.char in _TYPES
        and b.dtype == kind
        and (out.dtype == kind or (kind.char in _NARROW and out.dtype.char == "f"))
        and min(a.ndim, b.ndim) >= 2
        and max(a.ndim, b.ndim) <= out.ndim <= 4
        and a.size
        and b.size
        and out.flags.c_contiguous
        and _is_strided_matrix(a)
        and _is_strided_matrix(b)
    )


def _is_strided_matrix(array: Array) -> bool:
    """Return whether the rows or the columns of each matrix lie side by side, and none over another."""
    (rows, columns), (row, column), size = array.shape[-2:], array.strides[-2:], array.itemsize
    by_rows = (columns == 1 or column == size) and (rows == 1 or row >= columns * size)
    by_columns = (rows == 1 or row == size) and (columns == 1 or column >= rows * size)
    return bool((by_rows or by_columns) and row % size == 0 == column % size)


def _repeated(xp: Any, array: Array, shape: tuple[int, ...]) -> Array:
    """The array with a matrix for each one of an array of this shape: the same one along axes where it has but one."""
    array = array.reshape((1,) * (len(shape) - array.ndim) + array.shape) if array.ndim < len(shape) else array
    return array if array.shape[:-2] == shape[:-2] else xp.broadcast_to(array, (*shape[:-2], *array.shape[-2:]))
