"""libcudnn for the pretend devices: cudnn.cpp, with its calls recorded, captured and checked against the memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from ..compiler import shared_library
from ..device import CudaError, device_of, enter, note, queue, refuse_everywhere, spend, state

__all__ = ["library_file"]

_EXECUTION_FAILED, _BAD_PARAM = 5000, 2000
_FLAGS = ("-O2", "-fvisibility=default")
_DEVICE = ctypes.CFUNCTYPE(ctypes.c_int)
_QUEUE = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)),
    ctypes.c_int,
)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
_PLACES = 6
"""Arrays of a job: data, weight, out, workspace, bias, what is added."""
_alive: list[Any] = []


def source() -> str:
    """The library's text."""
    folder = Path(__file__).parent
    types = (folder / "cudnn_types.h").read_text("utf-8")
    return (folder / "cudnn.cpp").read_text("utf-8").replace('#include "cudnn_types.h"', types)


class _Job:
    """A call that was queued: its memory goes with the last graph that has it."""

    def __init__(self, library: Any, address: int) -> None:
        self._library, self._address = library, address

    def __call__(self) -> None:
        self._library.pretend_cudnn_run(self._address)

    def __del__(self) -> None:
        self._library.pretend_cudnn_drop(self._address)


def _status(function: Callable[[], int]) -> int:
    try:
        return function()
    except CudaError:
        return _EXECUTION_FAILED


def _arrays_of(job: int) -> list[int]:
    """The addresses in a job: behind what cudnn.cpp has before them."""
    longs = 3 * 5 + 3 * 5 + 3 * 3
    return list((ctypes.c_void_p * _PLACES).from_address(job + 16 + 8 * longs))


@cache
def library_file() -> str:
    """The file to load in the place of libcudnn.so.9."""
    path = str(shared_library(source(), _FLAGS))
    library = ctypes.CDLL(path)
    library.pretend_cudnn_run.argtypes = library.pretend_cudnn_drop.argtypes = [ctypes.c_void_p]

    def queue_job(name: bytes, device: int, stream: int | None, address: int, sizes: Any, number: int) -> int:
        def call() -> int:
            enter(name.decode())
            job = _Job(library, address)
            for place, size in zip(_arrays_of(address), sizes[:_PLACES], strict=True):
                if place and not (device_of(place) == device == device_of(place + size - 1) == state.current):
                    return _BAD_PARAM
            note("cudnn", name.decode())
            spend(name.decode(), number, stream or 0)
            queue(stream or 0, job)
            return 0

        return _status(call)

    def wait(name: bytes) -> int:
        def call() -> int:
            enter(name.decode())
            note("synchronize", name.decode())
            refuse_everywhere(name.decode())
            return 0

        return _status(call)

    callbacks = _DEVICE(lambda: state.current), _QUEUE(queue_job), _WAIT(wait)
    library.pretend_cudnn_set(*callbacks)
    _alive.extend((library, callbacks))
    return path
