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
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["SCALAR", "counted"]

SCALAR = 16
"""Bytes of the largest number."""

_SET_HANDLER, _GET_HANDLER = 304, 305
"""The places of PyDataMem_SetHandler and GetHandler in NumPy's table of C functions (numpy/__multiarray_api.h)."""

_SIZES: dict[str, tuple[Any, ...]] = {
    "malloc": (ctypes.c_size_t,),
    "calloc": (ctypes.c_size_t, ctypes.c_size_t),
    "realloc": (ctypes.c_void_p, ctypes.c_size_t),
}
"""The functions that allocate, and their arguments behind the context."""


class _Allocator(ctypes.Structure):
    _fields_ = (
        ("ctx", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in ("malloc", "calloc", "realloc", "free")),
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


def _noting(name: str, arguments: tuple[Any, ...]) -> Any:
    """A C function that notes what it is asked for and calls NumPy's own (which wants the GIL held)."""
    own = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, *arguments)(getattr(_own, name))

    def note(ctx: Any, *asked: int) -> Any:
        _sizes.append(math.prod(asked) if name == "calloc" else asked[-1])
        return own(ctx, *asked)

    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, *arguments)(note)


# Arrays made with it may outlive everything here: it never goes, and what frees them is NumPy's own.
_noted = {name: _noting(name, arguments) for name, arguments in _SIZES.items()}
_pointers = [ctypes.cast(function, ctypes.c_void_p) for function in _noted.values()]
_allocator = _Allocator(_own.ctx, *_pointers, _own.free)
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
