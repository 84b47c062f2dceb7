"""cuBLAS: matrices are column-major; stream capture refuses every call, as CuPy does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ..device import note, refuse, settle
from .memory import array_at

__all__ = ["functions", "product_of"]

_TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
"""cudaDataType."""
_FAST_TF32 = 77


def _matrix(address: int, dtype: Any, transposed: int, rows: int, columns: int, leading: int) -> np.ndarray[Any, Any]:
    """The matrix (rows, columns), or what is its transpose in memory."""
    r, c = (columns, rows) if transposed else (rows, columns)
    if not r * c:
        return np.empty((rows, columns), dtype)
    memory = array_at(address, dtype, leading * (c - 1) + r)
    matrix = np.lib.stride_tricks.as_strided(memory, (r, c), (memory.itemsize, memory.itemsize * leading))
    return matrix.T if transposed else matrix


def _start(name: str) -> None:
    note("cublas", name)
    refuse("cuBLAS")
    settle()


def _accumulator(dtype: Any) -> Any:
    return np.float32 if np.dtype(dtype).itemsize == 2 else dtype


def _product(a: Any, b: Any, out: Any, alpha: float, beta: float) -> None:
    kind = _accumulator(out.dtype)
    result = alpha * (a.astype(kind) @ b.astype(kind))
    out[...] = (result if beta == 0 else result + beta * out.astype(kind)).astype(out.dtype)


def _scalar(address: int, dtype: Any) -> float:
    return float(array_at(address, dtype, 1)[0])


def _scale_type(compute: int) -> Any:
    return np.float64 if compute in (1, 70, 71) else np.float16 if compute in (64, 65) else np.float32


def _gemm_ex(
    handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, at: int, lda: int, b: int, bt: int,
    ldb: int, beta: int, c: int, ct: int, ldc: int, compute: int, algorithm: int,
) -> None:  # fmt: skip
    _start("gemmEx")
    scale = _scale_type(compute)
    x, y = _matrix(a, _TYPES[at], ta, m, k, lda), _matrix(b, _TYPES[bt], tb, k, n, ldb)
    _product(x, y, _matrix(c, _TYPES[ct], 0, m, n, ldc), _scalar(alpha, scale), _scalar(beta, scale))


def _as_it_is(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return matrix


def _tf32(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """With 10 of the 23 bits after the point, cut off."""
    return (np.ascontiguousarray(matrix).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def product_of(
    ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, at: int, lda: int, sa: int, b: int,
    bt: int, ldb: int, sb: int, beta: int, c: int, ct: int, ldc: int, sc: int, count: int, compute: int, algorithm: int,
) -> Callable[[], None]:  # fmt: skip
    """What gemmStridedBatchedEx queues; the scalars are read at once."""
    scale, rounded = _scale_type(compute), _tf32 if compute == _FAST_TF32 else _as_it_is
    factors = _scalar(alpha, scale), _scalar(beta, scale)
    sizes = [np.dtype(_TYPES[kind]).itemsize for kind in (at, bt, ct)]

    def run() -> None:
        for g in range(count):
            x = _matrix(a + g * sa * sizes[0], _TYPES[at], ta, m, k, lda)
            y = _matrix(b + g * sb * sizes[1], _TYPES[bt], tb, k, n, ldb)
            _product(rounded(x), rounded(y), _matrix(c + g * sc * sizes[2], _TYPES[ct], 0, m, n, ldc), *factors)

    return run


def _gemm_strided(handle: int, *arguments: int) -> None:
    _start("gemmStridedBatchedEx")
    product_of(*arguments)()


def _gemm(dtype: Any) -> Callable[..., None]:
    def call(
        handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, lda: int, b: int, ldb: int,
        beta: int, c: int, ldc: int,
    ) -> None:  # fmt: skip
        _start("gemm")
        x, y = _matrix(a, dtype, ta, m, k, lda), _matrix(b, dtype, tb, k, n, ldb)
        _product(x, y, _matrix(c, dtype, 0, m, n, ldc), _scalar(alpha, dtype), _scalar(beta, dtype))

    return call


def _gemm_batched(dtype: Any) -> Callable[..., None]:
    def call(
        handle: int, ta: int, tb: int, m: int, n: int, k: int, alpha: int, a: int, lda: int, b: int, ldb: int,
        beta: int, c: int, ldc: int, count: int,
    ) -> None:  # fmt: skip
        _start("gemmBatched")
        pointers = [array_at(place, np.uintp, count) for place in (a, b, c)]
        for pa, pb, pc in zip(*pointers, strict=True):
            x, y = _matrix(int(pa), dtype, ta, m, k, lda), _matrix(int(pb), dtype, tb, k, n, ldb)
            _product(x, y, _matrix(int(pc), dtype, 0, m, n, ldc), _scalar(alpha, dtype), _scalar(beta, dtype))

    return call


def _geam(dtype: Any) -> Callable[..., None]:
    def call(
        handle: int, ta: int, tb: int, m: int, n: int, alpha: int, a: int, lda: int, beta: int, b: int, ldb: int,
        c: int, ldc: int,
    ) -> None:  # fmt: skip
        _start("geam")
        result = _matrix(a, dtype, ta, m, n, lda) * _scalar(alpha, dtype)
        if _scalar(beta, dtype):
            result = result + _matrix(b, dtype, tb, m, n, ldb) * _scalar(beta, dtype)
        _matrix(c, dtype, 0, m, n, ldc)[...] = result

    return call


def _trsm(dtype: Any) -> Callable[..., None]:
    def call(
        handle: int, side: int, lower_upper: int, trans: int, unit: int, m: int, n: int, alpha: int, a: int, lda: int,
        b: int, ldb: int,
    ) -> None:  # fmt: skip
        import scipy.linalg

        _start("trsm")
        order = n if side else m
        x, out = _matrix(a, dtype, 0, order, order, lda), _matrix(b, dtype, 0, m, n, ldb)
        lower = lower_upper == 0
        right = out.T if side else out
        solved = scipy.linalg.solve_triangular(
            x, right * _scalar(alpha, dtype), trans=(1 - int(bool(trans))) if side else int(bool(trans)), lower=lower,
            unit_diagonal=bool(unit),
        )  # fmt: skip
        out[...] = solved.T if side else solved

    return call


def _vector(name: str, dtype: Any) -> Callable[..., None]:
    def call(handle: int, n: int, x: int, incx: int, y: int, incy: int, result: int) -> None:
        _start(name)
        a = array_at(x, dtype, (n - 1) * incx + 1)[::incx] if n else np.zeros(0, dtype)
        b = array_at(y, dtype, (n - 1) * incy + 1)[::incy] if n else np.zeros(0, dtype)
        array_at(result, dtype, 1)[0] = a @ b

    return call


def functions() -> dict[str, Any]:
    """The names of CuPy's module."""
    names: dict[str, Any] = {
        "create": lambda: 1,
        "destroy": lambda handle: None,
        "getPointerMode": lambda handle: 0,
        "getMathMode": lambda handle: 0,
        "getStream": lambda handle: 0,
        "gemmEx": _gemm_ex,
        "gemmStridedBatchedEx": _gemm_strided,
        **dict.fromkeys(("setMathMode", "setStream", "setPointerMode"), _ignored),
        **_CONSTANTS,
    }
    for letter, dtype in (("s", np.float32), ("d", np.float64)):
        names[f"{letter}gemm"] = _gemm(dtype)
        names[f"{letter}gemmBatched"] = _gemm_batched(dtype)
        names[f"{letter}geam"] = _geam(dtype)
        names[f"{letter}trsm"] = _trsm(dtype)
        names[f"{letter}dot"] = _vector("dot", dtype)
    names["__getattr__"] = _missing
    return names


def _ignored(*args: Any) -> None:
    return None


_CONSTANTS = {
    "CUBLAS_OP_N": 0, "CUBLAS_OP_T": 1, "CUBLAS_OP_C": 2, "CUBLAS_POINTER_MODE_HOST": 0,
    "CUBLAS_POINTER_MODE_DEVICE": 1,
    "CUBLAS_SIDE_LEFT": 0, "CUBLAS_SIDE_RIGHT": 1, "CUBLAS_FILL_MODE_LOWER": 0, "CUBLAS_FILL_MODE_UPPER": 1,
    "CUBLAS_DIAG_NON_UNIT": 0, "CUBLAS_DIAG_UNIT": 1, "CUBLAS_DEFAULT_MATH": 0, "CUBLAS_TENSOR_OP_MATH": 1,
    "CUBLAS_TF32_TENSOR_OP_MATH": 3, "CUBLAS_GEMM_DEFAULT": -1, "CUBLAS_GEMM_DEFAULT_TENSOR_OP": 99,
    "CUBLAS_COMPUTE_16F": 64, "CUBLAS_COMPUTE_32F": 68, "CUBLAS_COMPUTE_32F_PEDANTIC": 69, "CUBLAS_COMPUTE_64F": 70,
    "CUBLAS_COMPUTE_32F_FAST_TF32": 77,
}  # fmt: skip


def _missing(name: str) -> Any:
    """A function that nobody has needed yet is refused when it is called, not when CuPy's modules name it."""
    if name.startswith("__"):
        raise AttributeError(name)
    if name.startswith("CUBLAS_"):
        raise AttributeError(f"the pretend cuBLAS lacks the constant {name}: add it")

    def call(*args: Any) -> None:
        raise NotImplementedError(f"the pretend cuBLAS lacks {name}: add it")

    return call
