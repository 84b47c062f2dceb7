"""Counting the arrays that NumPy allocates: an allocator of our own, set for the while.

    with counted() as sizes:
        executor.forward()
    assert not sizes

NumPy takes the memory of every array's elements from a handler that may be exchanged (NEP 49). The one here notes the
size and asks NumPy's own. Numbers that meet arrays become arrays of one element for a moment: up to SCALAR bytes are
not counted.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["SCALAR", "counted"]

SCALAR = 16
"""Bytes of the largest number."""

_SET_HANDLER, _GET_HANDLER = 304, 305
"""The places of PyDataMem_SetHandler and GetHandler in NumPy's table of C functions (numpy/__multiarray_api.h)."""

_MALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_CALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
_REALLOC = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class _Allocator(ctypes.Structure):
    _fields_ = (
        ("ctx", ctypes.c_void_p),
        ("malloc", _MALLOC),
        ("calloc", _CALLOC),
        ("realloc", _REALLOC),
        ("free", ctypes.c_void_p),
    )


class _Handler(ctypes.Structure):
    """PyDataMem_Handler."""

    _fields_ = (("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator))


_NAME = b"mem_handler"  # a capsule keeps the pointer
_api: Any = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_functions = ctypes.cast(
    _api.PyCapsule_GetPointer(np._core._multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p)
)
_set_handler = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(_functions[_SET_HANDLER])
_get_handler = ctypes.PYFUNCTYPE(ctypes.py_object)(_functions[_GET_HANDLER])
_own: Any = _Handler.from_address(_api.PyCapsule_GetPointer(_get_handler(), _NAME)).allocator

_sizes: list[int] = []


def _malloc(ctx: Any, size: int) -> Any:
    _sizes.append(size)
    return _own.malloc(_own.ctx, size)


def _calloc(ctx: Any, count: int, size: int) -> Any:
    _sizes.append(count * size)
    return _own.calloc(_own.ctx, count, size)


def _realloc(ctx: Any, place: Any, size: int) -> Any:
    _sizes.append(size)
    return _own.realloc(_own.ctx, place, size)


# Arrays made with it may outlive everything here: it never goes, and what frees them is NumPy's own.
_allocator = _Allocator(_own.ctx, _MALLOC(_malloc), _CALLOC(_calloc), _REALLOC(_realloc), _own.free)
_handler = _Handler(b"opbox_counting", 1, _allocator)
_capsule = _api.PyCapsule_New(ctypes.addressof(_handler), _NAME, None)


@contextmanager
def counted() -> Iterator[list[int]]:
    """The sizes, in bytes, of the arrays that this thread allocates inside; filled at the end."""
    before = _set_handler(_capsule)
    start = len(_sizes)
    sizes: list[int] = []
    try:
        yield sizes
    finally:
        _set_handler(before)
        sizes += [size for size in _sizes[start:] if size > SCALAR]
        del _sizes[start:]
