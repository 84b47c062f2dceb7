"""Products of many matrices in one call of cuBLAS, on arrays that lie as they do: nothing is copied or allocated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..compute import Array
from .kernel import bound

__all__ = ["product"]

_TYPES = {"f": (0, 68, np.float32), "d": (1, 70, np.float64)}
"""CUDA's numbers of an element type and of a computation in it (CUBLAS_COMPUTE_32F: never TF32), and its scalars."""
_DEFAULT = -1
"""CUBLAS_GEMM_DEFAULT."""


def product(xp: Any, a: Array, b: Array, out: Array, *, add: bool = False) -> Callable[[], Any]:
    """A call that writes a @ b to `out`, or adds it there.

    Arrays are (samples, groups, rows, columns), of float32 or float64: the rows or the columns of each matrix lie side
    by side. A stride of 0 repeats a matrix. As many calls of cuBLAS are made as there are samples, or groups if those
    are fewer.
    """
    if not hasattr(xp, "cuda"):
        return _by_numpy(a, b, out, add)
    axis = 0 if out.shape[0] >= out.shape[1] else 1
    parts = range(out.shape[1 - axis])
    return bound([_batched(xp, _part(a, axis, i), _part(b, axis, i), _part(out, axis, i), add) for i in parts])


def _by_numpy(a: Array, b: Array, out: Array, add: bool) -> Callable[[], Any]:
    def run() -> None:
        np.add(out, np.matmul(a, b), out=out) if add else np.matmul(a, b, out=out)

    return run


def _part(array: Array, axis: int, i: int) -> Array:
    return array[:, i] if axis == 0 else array[i]


def _lies(array: Array) -> tuple[int, int, int, int]:
    """Address, whether it is stored by columns, distance between its lines, and from matrix to matrix."""
    itemsize, (count, rows, columns) = array.itemsize, array.shape
    matrix, row, column = (stride // itemsize for stride in array.strides)
    turned = columns > 1 and column != 1
    line, least = (column, rows) if turned else (row, columns)
    return array.data.ptr, int(turned), max(line, least, 1), matrix if count > 1 else 0


def _batched(xp: Any, a: Array, b: Array, out: Array, add: bool) -> Callable[[], Any]:
    """One call for (count, rows, columns) arrays. cuBLAS reads by columns: to it they are the transposed."""
    kind, computed, scalar = _TYPES[out.dtype.char]
    count, m, n = out.shape
    (pa, ta, la, sa), (pb, tb, lb, sb), (pc, _, lc, sc) = map(_lies, (a, b, out))
    factors = np.array([1, add], scalar)
    one, other = factors.ctypes.data, factors.ctypes.data + factors.itemsize
    matrices = (one, pb, kind, lb, sb, pa, kind, la, sa, other, pc, kind, lc, sc, count, computed, _DEFAULT)
    arguments = (tb, ta, n, m, a.shape[2], *matrices)
    call, handle = xp.cuda.cublas.gemmStridedBatchedEx, xp.cuda.device.get_cublas_handle

    def run(keep: Any = (a, b, out, factors)) -> None:
        call(handle(), *arguments)

    return run
