"""cuFFT by ctypes: transforms of complex64 rows in place, with a work area of the caller's.

A plan is made when opbox compiles its own, once for each device, length and number of rows, and runs in the work area
that a call says: CuPy's plans allocate theirs, and a recording refuses its calls. The library's tables of a plan go
with the last call that is bound to it. Numbers and signatures are those of `cufft.h`.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_int, c_size_t, c_void_p
from functools import cache, lru_cache
from threading import Lock
from typing import Any

from opbox_protocol.errors import MXNetError

from ..compute import Array
from .shared_libraries import load_library

__all__ = ["FORWARD", "INVERSE", "Transform", "attach", "planned"]

FORWARD, INVERSE = -1, 1
"""CUFFT_FORWARD and CUFFT_INVERSE, which has no factor."""
_C2C = 0x29
_PLANS = 64
_ALIGNMENT = 256
"""Bytes: that of memory which the library would allocate."""
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cufftCreate": (POINTER(c_int),),
    "cufftDestroy": (c_int,),
    "cufftSetAutoAllocation": (c_int, c_int),
    "cufftMakePlanMany": (
        *(c_int, c_int, POINTER(c_int), c_void_p, c_int, c_int, c_void_p, c_int, c_int),
        *(c_int, c_int, POINTER(c_size_t)),
    ),
    "cufftSetStream": (c_int, c_void_p),
    "cufftSetWorkArea": (c_int, c_void_p),
    "cufftExecC2C": (c_int, c_void_p, c_void_p, c_int),
}
"""The arguments of the functions; all answer a status."""
_log = logging.getLogger(__name__)


class _FFTState:
    """CuPy, once this process has a GPU."""

    cupy: Any = None


def attach(cupy: Any) -> None:
    """Set the CuPy of this process; before this call cuFFT counts as absent."""
    _FFTState.cupy = cupy


@cache
def _library() -> Any:
    """The library; None where there is none, which the log says once."""
    try:
        library = load_library("cufft")
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
    except (OSError, AttributeError) as error:  # it is nowhere, or lacks a function
        _log.warning("gpu: Fourier transforms are left to CuPy, as cuFFT was not found (%s)", error)
        return None
    return library


def _check(name: str, status: int) -> None:
    if status:
        raise MXNetError(f"cuFFT refused a call: {name} answered {status}")


class Transform:
    """A plan of the library's for rows of complex64 on the current device.

    Attributes:
        work_bytes: of the work area, and for it to begin at a multiple of _ALIGNMENT.
    """

    def __init__(self, library: Any, length: int, rows: int) -> None:
        self._library, self._lock = library, Lock()
        plan, size = c_int(), c_size_t()
        _check("cufftCreate", library.cufftCreate(byref(plan)))
        # At the process's end the library may be gone.
        weakref.finalize(self, library.cufftDestroy, plan).atexit = False
        _check("cufftSetAutoAllocation", library.cufftSetAutoAllocation(plan, 0))
        # Without the shapes that arrays were cut from, rows lie one behind the other.
        status = library.cufftMakePlanMany(
            *(plan, 1, byref(c_int(length)), None, 1, length, None, 1, length, _C2C, rows), byref(size)
        )
        _check("cufftMakePlanMany", status)
        self._plan, self.work_bytes = plan, size.value + _ALIGNMENT
        self._stream: int | None = None
        self._work: int | None = None

    def bind(self, numbers: Array, direction: int, work: Array) -> Callable[[], None]:
        """A call that transforms `numbers` in place, with `work` (bytes) as its work area."""
        place, area = numbers.data.ptr, -(-work.data.ptr // _ALIGNMENT) * _ALIGNMENT

        def run(keep: Any = (numbers, work)) -> None:
            stream = _FFTState.cupy.cuda.get_current_stream().ptr
            # A plan has one stream and one work area at a time, and its calls are queued with them.
            with self._lock:
                if stream != self._stream:
                    self._stream = None
                    _check("cufftSetStream", self._library.cufftSetStream(self._plan, stream))
                    self._stream = stream
                if area != self._work:
                    self._work = None
                    _check("cufftSetWorkArea", self._library.cufftSetWorkArea(self._plan, area))
                    self._work = area
                status = self._library.cufftExecC2C(self._plan, place, place, direction)
            _check("cufftExecC2C", status)

        return run


def planned(length: int, rows: int) -> Transform | None:
    """The transform of so many rows on the current device; None where there is no cuFFT, or it has no plan for them."""
    if _FFTState.cupy is None or _library() is None:
        return None
    return _planned(int(_FFTState.cupy.cuda.runtime.getDevice()), length, rows)


@lru_cache(maxsize=_PLANS)
def _planned(place: int, length: int, rows: int) -> Transform | None:
    try:
        return Transform(_library(), length, rows)
    except MXNetError as error:
        _log.warning("gpu:%d: Fourier transforms of %d rows of %d are left to CuPy: %s", place, rows, length, error)
        return None
