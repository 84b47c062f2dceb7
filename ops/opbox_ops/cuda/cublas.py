"""cuBLAS by ctypes. CuPy's own calls of it are refused while a stream is captured; these are not.

A device has one handle, whatever the thread, and one workspace: all its products follow one another on one stream. The
workspace is ours because what cuBLAS would take for itself may not be taken during capture.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from threading import Lock
from typing import Any

from opbox_protocol.errors import MXNetError

__all__ = ["batched_product"]

_WORKSPACE_BYTES = {9: 32 << 20, 10: 32 << 20}
"""By the major compute capability, as cuBLAS itself takes them; 4 MiB before."""
_LEAST_WORKSPACE = 4 << 20
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_MATRIX = (_POINTER, _INT, _INT, _LONG)
_SIGNATURES = {
    "cublasCreate_v2": (_POINTER,),
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasSetWorkspace_v2": (_POINTER, _POINTER, ctypes.c_size_t),
    "cublasGemmStridedBatchedEx": (
        *(_POINTER, *[_INT] * 5, _POINTER, *_MATRIX, *_MATRIX),
        *(_POINTER, *_MATRIX, _INT, _INT, _INT),
    ),
}


@cache
def _library() -> Any:
    pathfinder: Any = importlib.import_module("cuda.pathfinder")
    library = ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib("cublas").abs_path)
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _INT
    return library


class _Handle:
    """The handle of the current device."""

    def __init__(self, xp: Any) -> None:
        self._library, self._lock = _library(), Lock()
        major = int(xp.cuda.Device().compute_capability[:-1])
        self._workspace = xp.cuda.alloc(_WORKSPACE_BYTES.get(major, _LEAST_WORKSPACE))
        handle = ctypes.c_void_p()
        _check("cublasCreate", self._library.cublasCreate_v2(ctypes.byref(handle)))
        self._handle = handle
        self._stream: int | None = None

    def product(self, stream: int, arguments: tuple[Any, ...]) -> None:
        """Queue cublasGemmStridedBatchedEx on a stream."""
        with self._lock:
            if stream != self._stream:
                self._stream = None
                _check("cublasSetStream", self._library.cublasSetStream_v2(self._handle, stream))
                # Another stream takes the workspace away.
                place, size = self._workspace.ptr, self._workspace.mem.size
                _check("cublasSetWorkspace", self._library.cublasSetWorkspace_v2(self._handle, place, size))
                self._stream = stream
            status = self._library.cublasGemmStridedBatchedEx(self._handle, *arguments)
        _check("cublasGemmStridedBatchedEx", status)


def _check(call: str, status: int) -> None:
    if status:
        raise MXNetError(f"cuBLAS refused a call: {call} answered {status}")


_handles: dict[int, _Handle] = {}
_lock = Lock()


def batched_product(xp: Any, arguments: tuple[Any, ...]) -> None:
    """Queue cublasGemmStridedBatchedEx with these arguments behind the handle, on this thread's device and stream."""
    device = xp.cuda.runtime.getDevice()
    handle = _handles.get(device)
    if handle is None:
        with _lock:
            handle = _handles.get(device)
            if handle is None:
                handle = _handles[device] = _Handle(xp)
    handle.product(xp.cuda.get_current_stream().ptr, arguments)
