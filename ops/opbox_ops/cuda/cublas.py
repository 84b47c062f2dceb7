"""cuBLAS by ctypes. CuPy's own calls of it are refused while a stream is captured; these are not.

A device has one handle, whatever the thread. Products that may run at the same time must not share a workspace: a
session's stream has its own, and all others, whose work is the default stream's, have one. Workspaces are ours because
what cuBLAS would take for itself may not be taken during capture.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import MXNetError, QuotaError

from .shared_libraries import load_library

if TYPE_CHECKING:
    from ..backend.base import Admit

__all__ = [
    "MIN_WORKSPACE_BYTES",
    "add_workspace",
    "batched_product",
    "drop_workspace",
    "lent_workspace",
    "workspace",
    "workspace_bytes",
]

_WORKSPACE_BYTES = {9: 32 << 20, 10: 32 << 20}
"""By the major compute capability, as cuBLAS itself takes them; 4 MiB before."""
MIN_WORKSPACE_BYTES = 4 << 20
"""Minimum size of a stream's workspace, in bytes."""
_WHOLE_SUMS = 16
"""CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: parts of a sum of half precision are added in single."""
_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_MATRIX = (_POINTER, _INT, _INT, _LONG)
_SIGNATURES = {
    "cublasCreate_v2": (_POINTER,),
    "cublasSetStream_v2": (_POINTER, _POINTER),
    "cublasSetWorkspace_v2": (_POINTER, _POINTER, ctypes.c_size_t),
    "cublasSetMathMode": (_POINTER, _INT),
    "cublasGemmStridedBatchedEx": (
        *(_POINTER, *[_INT] * 5, _POINTER, *_MATRIX, *_MATRIX),
        *(_POINTER, *_MATRIX, _INT, _INT, _INT),
    ),
}


@cache
def _library() -> Any:
    library = load_library("cublas")
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, _INT
    return library


class _Handle:
    """The handle of the current device.

    Attributes:
        workspace_bytes: of a workspace where no quota is short of them.
    """

    def __init__(self, xp: Any) -> None:
        self._library, self._lock = _library(), Lock()
        self._allocate = xp.cuda.alloc
        major = int(xp.cuda.Device().compute_capability[:-1])
        self.workspace_bytes = _WORKSPACE_BYTES.get(major, MIN_WORKSPACE_BYTES)
        self._workspaces: dict[int, Any] = {}
        handle = ctypes.c_void_p()
        _check("cublasCreate", self._library.cublasCreate_v2(ctypes.byref(handle)))
        _check("cublasSetMathMode", self._library.cublasSetMathMode(handle, _WHOLE_SUMS))
        self._handle = handle
        self._stream: int | None = None

    def product(self, stream: int, arguments: tuple[Any, ...]) -> None:
        """Queue cublasGemmStridedBatchedEx on a stream."""
        # Before the lock: a quota that is short may end another session, whose workspace goes.
        memory = self.workspace(stream)
        with self._lock:
            if stream != self._stream:
                self._stream = None
                _check("cublasSetStream", self._library.cublasSetStream_v2(self._handle, stream))
                # Another stream takes the workspace away.
                place, size = memory.ptr, memory.mem.size
                _check("cublasSetWorkspace", self._library.cublasSetWorkspace_v2(self._handle, place, size))
                self._stream = stream
            status = self._library.cublasGemmStridedBatchedEx(self._handle, *arguments)
        _check("cublasGemmStridedBatchedEx", status)

    def workspace(self, stream: int) -> Any:
        """The memory that products of a stream use; allocated when the first one asks."""
        admit = _apart.get(stream)
        owner = 0 if admit is None else stream
        memory = self._workspaces.get(owner)
        if memory is None:
            nbytes = self.workspace_bytes if admit is None else self._admitted(admit)
            try:
                memory = self._workspaces.setdefault(owner, self._allocate(nbytes))
            except BaseException:
                if admit is not None:
                    admit(-nbytes, True)
                raise
        return memory

    def _admitted(self, admit: Admit) -> int:
        """Bytes of a workspace that a session may have: fewer where its quota is short, at the price of speed."""
        try:
            admit(self.workspace_bytes, True)
        except QuotaError:
            admit(MIN_WORKSPACE_BYTES, True)
            return MIN_WORKSPACE_BYTES
        return self.workspace_bytes

    def lend(self, stream: int, memory: Any) -> None:
        """Have products of a stream use this memory, until it is dropped."""
        self._workspaces[stream] = memory

    def drop(self, stream: int) -> None:
        """Let go of a stream's workspace; the next one with its number is another stream."""
        with self._lock:
            self._workspaces.pop(stream, None)
            if self._stream == stream:
                self._stream = None


def _check(call: str, status: int) -> None:
    if status:
        raise MXNetError(f"cuBLAS refused a call: {call} answered {status}")


_handles: dict[int, _Handle] = {}
_apart: dict[int, Admit] = {}
_lock = Lock()


def add_workspace(stream: int, admit: Admit) -> None:
    """Products of this stream have a workspace of their own, once there is one and `admit` has been asked."""
    _apart[stream] = admit


def drop_workspace(stream: int) -> None:
    """The stream ends; what was queued on it has run."""
    _apart.pop(stream, None)
    for handle in list(_handles.values()):
        handle.drop(stream)


@contextlib.contextmanager
def lent_workspace(xp: Any, stream: int, memory: Any) -> Iterator[None]:
    """The block in which products of a stream, which is no session's, use this memory, and none of the process."""
    handle = _current(xp)
    _apart[stream] = lambda nbytes, allocates: None
    handle.lend(stream, memory)
    try:
        yield
    finally:
        drop_workspace(stream)


def batched_product(xp: Any, arguments: tuple[Any, ...]) -> None:
    """Queue cublasGemmStridedBatchedEx with these arguments behind the handle, on this thread's device and stream."""
    _current(xp).product(xp.cuda.get_current_stream().ptr, arguments)


def workspace(xp: Any, stream: int) -> Any:
    """The memory that products of a stream of this thread's device use, one after another."""
    return _current(xp).workspace(stream)


def workspace_bytes(xp: Any) -> int:
    """Bytes of a workspace on this thread's device; MIN_WORKSPACE_BYTES where a session's quota is short of them."""
    return _current(xp).workspace_bytes


def _current(xp: Any) -> _Handle:
    """The handle of this thread's device."""
    device = xp.cuda.runtime.getDevice()
    handle = _handles.get(device)
    if handle is None:
        with _lock:
            handle = _handles.get(device)
            if handle is None:
                handle = _handles[device] = _Handle(xp)
    return handle
