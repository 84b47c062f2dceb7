"""libcublas as a library of C functions, for who calls it by ctypes; in capture, with a workspace of the caller's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..compiler import shared_library
from ..device import CudaError, next_id, note, queue, refuse, state
from .cublas import product_of
from .memory import array_at

__all__ = ["callback_library", "library_file", "status_of"]

_INVALID, _INTERNAL = 7, 14
"""CUBLAS_STATUS_INVALID_VALUE and _INTERNAL_ERROR."""
_UNSUPPORTED = 15
"""CUBLAS_STATUS_NOT_SUPPORTED."""
_SUPPORTED = {
    68: {(0, 0), (2, 2), (2, 0), (14, 14), (14, 0)},
    70: {(1, 1)},
    77: {(0, 0)},
}
"""By cublasComputeType_t: the types (cudaDataType) of both factors, which are one, and of the result."""
_MATRIX = "piiq"
_SIGNATURES = {
    "cublasCreate_v2": "p",
    "cublasSetStream_v2": "pp",
    "cublasSetWorkspace_v2": "ppq",
    "cublasSetMathMode": "pi",
    "cublasGemmStridedBatchedEx": f"piiiiip{_MATRIX}{_MATRIX}p{_MATRIX}iii",
}
_C = {"p": "void *", "i": "int ", "q": "long long ", "u": "Bytes128 "}
_PASSED = {"i": "", "u": "(long long)&"}
_HEAD = """
#include <cstdint>
struct Bytes128 { char bytes[128]; };
extern "C" {
struct PyObject;
int PyGILState_Ensure();
void PyGILState_Release(int);
PyObject *PyObject_CallFunction(PyObject *, const char *, ...);
long PyLong_AsLong(PyObject *);
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
static PyObject *targets[16];
void pretend_set(int place, PyObject *function) { Py_IncRef(function); targets[place] = function; }
"""
_alive: list[Any] = []
_streams: dict[int, int] = {}
_workspaces: dict[int, int] = {}


def _text(signatures: dict[str, str]) -> str:
    parts = [_HEAD]
    for place, (name, kinds) in enumerate(signatures.items()):
        declared = ", ".join(f"{_C[kind]}a{k}" for k, kind in enumerate(kinds))
        form = "".join("i" if kind == "i" else "L" for kind in kinds)
        passed = "".join(f", {_PASSED.get(kind, '(long long)')}a{k}" for k, kind in enumerate(kinds))
        parts.append(
            f"int {name}({declared}) {{\n  int state = PyGILState_Ensure();\n"
            f'  PyObject *r = PyObject_CallFunction(targets[{place}], "({form})"{passed});\n'
            f"  int status = r ? (int)PyLong_AsLong(r) : {_INTERNAL};\n  if (r) Py_DecRef(r);\n"
            "  PyGILState_Release(state);\n  return status;\n}\n"
        )
    return "".join(parts) + "}\n"


def status_of(function: Callable[..., int | None]) -> Callable[..., int]:
    """A function with its errors as statuses."""

    def call(*arguments: int) -> int:
        try:
            return function(*arguments) or 0
        except CudaError:
            return _INTERNAL

    return call


def _create(place: int) -> None:
    refuse("cublasCreate")
    array_at(place, np.uintp, 1)[0] = handle = next_id()
    _streams[int(handle)] = 0


def _set_stream(handle: int, stream: int) -> None:
    _streams[handle] = stream
    _workspaces.pop(handle, None)


def _set_workspace(handle: int, place: int, size: int) -> None:
    _workspaces[handle] = size


def _set_math_mode(handle: int, mode: int) -> int | None:
    if handle not in _streams or mode & 15 > 3 or mode & ~31:
        return _INVALID
    note("math mode", mode)
    return None


def _gemm(handle: int, *arguments: int) -> int | None:
    if handle not in _streams:
        return _INVALID
    ta, tb, m, n, k, _, _, at, lda, _, _, bt, ldb, _, _, _, ct, ldc, _, count, compute, _ = arguments
    leading = ((lda, k if ta else m), (ldb, n if tb else k), (ldc, m))
    if min(m, n, k, count) < 0 or any(line < max(1, rows) for line, rows in leading):
        return _INVALID
    if at != bt or (at, ct) not in _SUPPORTED.get(compute, ()):
        return _UNSUPPORTED
    note("product")
    stream = _streams[handle]
    if stream in state.capturing and not _workspaces.get(handle):
        refuse("cuBLAS without a workspace")
    queue(stream, product_of(*arguments))
    return None


_FUNCTIONS = (_create, _set_stream, _set_workspace, _set_math_mode, _gemm)


def library_file() -> str:
    """The file to load in the place of libcublas."""
    return callback_library(_SIGNATURES, [status_of(function) for function in _FUNCTIONS])


def callback_library(signatures: dict[str, str], functions: Sequence[Callable[..., int]]) -> str:
    """The file of a library whose functions call these; its signatures by name: p a pointer, i an int, q 64 bits, u
    128 bytes, of which it gets the address."""
    path = str(shared_library(_text(signatures), ("-O1",)))
    library = ctypes.PyDLL(path)
    library.pretend_set.argtypes = [ctypes.c_int, ctypes.py_object]
    for place, function in enumerate(functions):
        library.pretend_set(place, function)
    _alive.append(library)
    return path
