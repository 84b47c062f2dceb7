"""libcublasLt as a library of C functions: products with a bias, and strict about descriptions, alignment and memory.

Its one algorithm wants workspace in proportion to the result, and refuses with less. What a caller may forget is asked
for: the type that parts of sums are added in, the alignment of the arrays, a bias's address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from ..device import device_of, enter, next_id, note, queue, state
from .cublas_library import callback_library, status_of
from .memory import array_at

__all__ = ["library_file"]

_INVALID, _UNSUPPORTED = 7, 15
"""CUBLAS_STATUS_INVALID_VALUE and _NOT_SUPPORTED."""
_TYPES: dict[int, Any] = {0: np.float32, 2: np.float16, 14: ml_dtypes.bfloat16}
"""cudaDataType."""
_COMPUTED = {68: set(_TYPES), 77: {0}}
"""By cublasComputeType_t: the types of the matrices."""
_FAST_TF32 = 77
_BIAS = 4
"""CUBLASLT_EPILOGUE_BIAS."""
_COMPUTE_TYPE_SCHEME = 2
"""The reduction schemes that round no part of a sum of half precision: COMPUTE_TYPE."""
_TRANSA, _EPILOGUE, _BIAS_POINTER = 3, 7, 8
_MAX_WORKSPACE, _SCHEMES, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)
_DESC_SIZES = {_TRANSA: 4, _EPILOGUE: 4, _BIAS_POINTER: 8}
_PREFERENCE_SIZES = {_MAX_WORKSPACE: 8, _SCHEMES: 4, **dict.fromkeys(_ALIGNMENTS, 4)}
_ALGORITHM = 0x4C74
"""Behind it come the device and the bytes of workspace."""
_SIGNATURES = {
    "cublasLtCreate": "p",
    "cublasLtMatmulDescCreate": "pii",
    "cublasLtMatmulDescSetAttribute": "pipq",
    "cublasLtMatmulDescDestroy": "p",
    "cublasLtMatrixLayoutCreate": "piqqq",
    "cublasLtMatrixLayoutDestroy": "p",
    "cublasLtMatmulPreferenceCreate": "p",
    "cublasLtMatmulPreferenceSetAttribute": "pipq",
    "cublasLtMatmulPreferenceDestroy": "p",
    "cublasLtMatmulAlgoGetHeuristic": "pppppppipp",
    "cublasLtMatmul": "ppppppppppppppqp",
}


@dataclass
class _LtObject:
    """A description: its kind, what it was made with, and what was set."""

    kind: str
    numbers: tuple[int, ...]
    attributes: dict[int, int] = field(default_factory=dict)


_objects: dict[int, _LtObject] = {}
_handles: dict[int, int] = {}
"""The device of each."""


def _create(place: int) -> int:
    enter("cublasLtCreate")
    number = next_id()
    _handles[number] = state.current
    array_at(place, np.uintp, 1)[0] = number
    return 0


def _created(kind: str) -> Callable[..., int]:
    def call(place: int, *numbers: int) -> int:
        if kind == "desc" and (numbers[0] not in _COMPUTED or numbers[1] != 0):
            return _INVALID
        if kind == "layout" and (numbers[0] not in _TYPES or min(numbers[1:]) <= 0 or numbers[3] < numbers[1]):
            return _INVALID
        number = next_id()
        _objects[number] = _LtObject(kind, numbers)
        array_at(place, np.uintp, 1)[0] = number
        return 0

    return call


def _set(kind: str, sizes: dict[int, int]) -> Callable[..., int]:
    def call(number: int, attribute: int, value: int, size: int) -> int:
        description = _objects.get(number)
        if description is None or description.kind != kind or sizes.get(attribute) != size:
            return _INVALID
        description.attributes[attribute] = int.from_bytes(ctypes.string_at(value, size), "little")
        return 0

    return call


def _destroyed(kind: str) -> Callable[..., int]:
    def call(number: int) -> int:
        description = _objects.pop(number, None)
        return 0 if description is not None and description.kind == kind else _INVALID

    return call


def _described(product: int, *layouts: int) -> tuple[_LtObject, list[_LtObject]] | None:
    """The descriptions of a product whose sizes and types go together."""
    desc, matrices = _objects.get(product), [_objects.get(number) for number in layouts]
    if desc is None or desc.kind != "desc":
        return None
    known = [matrix for matrix in matrices if matrix is not None and matrix.kind == "layout"]
    if len(known) != 4:
        return None
    (_, ar, ac, _), (_, br, bc, _), c, d = (matrix.numbers for matrix in known)
    if desc.attributes.get(_TRANSA, 0):
        ar, ac = ac, ar
    return (desc, known) if ac == br and c == d and d[1:3] == (ar, bc) else None


def _supported(desc: _LtObject, matrices: list[_LtObject]) -> bool:
    kinds = {matrix.numbers[0] for matrix in matrices}
    bias = desc.attributes.get(_BIAS_POINTER, 0)
    epilogue = desc.attributes.get(_EPILOGUE, 1)
    return bool(
        len(kinds) == 1 and kinds <= _COMPUTED[desc.numbers[0]] and epilogue == _BIAS and bias and not bias % 16
    )


def _workspace_of(matrices: list[_LtObject]) -> int:
    return 64 + int(np.prod(matrices[3].numbers[1:3])) * 4


def _heuristic(
    handle: int, product: int, a: int, b: int, c: int, d: int, preference: int, wanted: int, results: int, count: int
) -> int:
    enter("cublasLtMatmulAlgoGetHeuristic")
    described, limits = _described(product, a, b, c, d), _objects.get(preference)
    if _handles.get(handle) != state.current or described is None or limits is None or limits.kind != "preference":
        return _INVALID
    if wanted < 1 or not results or not count:
        return _INVALID
    note("lt heuristic")
    asked = limits.attributes
    aligned = all(asked.get(name, 256) <= 16 for name in _ALIGNMENTS)
    if not _supported(*described) or not aligned or asked.get(_SCHEMES, 7) != _COMPUTE_TYPE_SCHEME:
        return _UNSUPPORTED
    most = asked.get(_MAX_WORKSPACE, 0)
    need = min(_workspace_of(described[1]), max(most, 64))
    array_at(count, np.int32, 1)[0] = int(need <= most)
    if need <= most:
        array_at(results, np.uint64, 8)[:3] = _ALGORITHM, state.current, need
        array_at(results + 64, np.uint64, 1)[0] = need
        array_at(results + 72, np.int32, 1)[0] = 0
    return 0


def _matmul(
    handle: int, product: int, alpha: int, a: int, al: int, b: int, bl: int, beta: int, c: int, cl: int, d: int,
    dl: int, algorithm: int, workspace: int, size: int, stream: int,
) -> int:  # fmt: skip
    enter("cublasLtMatmul")
    described = _described(product, al, bl, cl, dl)
    if _handles.get(handle) != state.current or described is None:
        return _INVALID
    desc, matrices = described
    if not _supported(*described) or any(place % 16 for place in (a, b, c, d)):
        return _UNSUPPORTED
    magic, device, need = (int(number) for number in array_at(algorithm, np.uint64, 8)[:3])
    if magic != _ALGORITHM or device != state.current or size < need or not workspace or workspace % 16:
        return _INVALID
    kind = np.dtype(_TYPES[matrices[0].numbers[0]])
    sizes = [matrix.numbers[2] * matrix.numbers[3] * kind.itemsize for matrix in matrices]
    bias = desc.attributes[_BIAS_POINTER]
    ranges = [*zip((a, b, c, d), sizes, strict=True), (bias, matrices[3].numbers[1] * kind.itemsize), (workspace, need)]
    if any(device_of(place) != device or device_of(place + length - 1) != device for place, length in ranges):
        return _INVALID
    factors = [float(array_at(place, np.float32, 1)[0]) for place in (alpha, beta)]
    if factors != [1.0, 0.0]:
        return _UNSUPPORTED
    transposed, tf32 = bool(desc.attributes.get(_TRANSA, 0)), desc.numbers[0] == _FAST_TF32

    def factor(place: int, matrix: _LtObject) -> Any:
        _, rows, columns, line = matrix.numbers
        stored = array_at(place, kind, columns, line)[:, :rows].T.astype(np.float32)
        return (stored.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) if tf32 else stored

    def run() -> None:
        array_at(workspace, np.uint8, need)[...] = 0xCD
        one, other = factor(a, matrices[0]), factor(b, matrices[1])
        _, rows, columns, line = matrices[3].numbers
        plus = array_at(bias, kind, rows).astype(np.float32)
        result = (one.T if transposed else one) @ other + plus[:, None]
        array_at(d, kind, columns, line)[:, :rows] = result.T.astype(kind)

    note("product")
    note("lt product")
    queue(stream, run)
    return 0


_FUNCTIONS = (
    _create,
    _created("desc"),
    _set("desc", _DESC_SIZES),
    _destroyed("desc"),
    _created("layout"),
    _destroyed("layout"),
    _created("preference"),
    _set("preference", _PREFERENCE_SIZES),
    _destroyed("preference"),
    _heuristic,
    _matmul,
)


def library_file() -> str:
    """The file to load in the place of libcublasLt."""
    return callback_library(_SIGNATURES, [status_of(function) for function in _FUNCTIONS])
