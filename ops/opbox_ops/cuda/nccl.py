"""NCCL by ctypes: sums of arrays over GPUs of several processes and machines.

Nothing here waits. A communicator is begun with `blocking = 0` (NCCL 2.14), and who wants its end asks for it again and
again; so a call can be stopped, and a rank that has died is waited for no longer. `abort` ends a communicator at any
time: it does not wait for the other ranks, as ncclCommDestroy does.

The library is looked for when somebody asks for `offer_on`, and never without a GPU. Numbers and signatures are those
of `nccl.h`.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from opbox_protocol.errors import MXNetError

from ..compute import Array
from .shared_libraries import load_library

__all__ = [
    "ID_BYTES",
    "MIN_VERSION",
    "PLACE_BYTES",
    "TYPES",
    "Communicator",
    "NcclOffer",
    "attach",
    "offer_on",
    "unique_id",
]

MIN_VERSION = 21400
"""Of the first NCCL that begins without waiting."""
ID_BYTES = 128
PLACE_BYTES = 16
TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
}
"""ncclDataType_t by the name of a NumPy type."""
_SUM = 0
_SUCCESS, _IN_PROGRESS = 0, 7
_RESULTS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "remote error",
}
"""ncclResult_t."""
_MAGIC = 0xCAFEBEEF
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = [("internal", ctypes.c_uint8 * ID_BYTES)]


class CommConfig(ctypes.Structure):
    """ncclConfig_t as of 2.14; later versions take it for what its `version` says."""

    _fields_ = [("size", c_size_t), ("magic", c_uint), ("version", c_uint), ("blocking", c_int)]


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(UniqueId),),
    "ncclCommInitRankConfig": (POINTER(c_void_p), c_int, UniqueId, c_int, POINTER(CommConfig)),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclCommAbort": (c_void_p,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
}
"""The arguments of the functions; all answer an ncclResult_t."""


class _NcclState:
    """CuPy, once this process has a GPU."""

    cupy: Any = None


def attach(cupy: Any) -> None:
    """Set the CuPy of this process; before this call NCCL counts as absent."""
    _NcclState.cupy = cupy


@cache
def _library() -> tuple[Any, int]:
    """The library and its version; None and 0 where there is none that can be used, which the log says once."""
    try:
        library, version = load_library("nccl"), c_int()
        library.ncclGetVersion.argtypes = _SIGNATURES["ncclGetVersion"]
        _check("ncclGetVersion", library.ncclGetVersion(byref(version)))
        if version.value < MIN_VERSION:
            raise OSError(f"expected version {MIN_VERSION} or a later one, got {version.value}")
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
    except (OSError, AttributeError, MXNetError) as error:  # it is nowhere, too old, or lacks a function
        _log.warning("gpu: sums over workers go through the machine's memory, as there is no NCCL (%s)", error)
        return None, 0
    return library, version.value


def _check(name: str, status: int) -> None:
    if status not in (_SUCCESS, _IN_PROGRESS):
        raise MXNetError(
            f"NCCL: {name} answered {status} ({_RESULTS.get(status, 'unknown')}): NCCL_DEBUG=WARN in the server's "
            "environment says more in its log, OPBOX_GROUP_NCCL=0 does without NCCL"
        )


@dataclass(frozen=True)
class NcclOffer:
    """What a rank tells the others before they begin together.

    Attributes:
        version: of NCCL, as 22703.
        place: PLACE_BYTES that are those of no other GPU.
    """

    version: int
    place: bytes


def offer_on(backend: Any) -> NcclOffer | None:
    """What a GPU's rank offers; None where NCCL cannot be used.

    The parts of a split GPU are one place: NCCL takes them for one device, and refuses it twice.
    """
    cupy = _NcclState.cupy
    if cupy is None or _library()[0] is None:
        return None
    try:
        machine = _BOOT.read_text(encoding="ascii")
    except OSError:
        machine = platform.node()
    place = f"{machine.strip()} {cupy.cuda.runtime.deviceGetPCIBusId(backend.device.id)}"
    return NcclOffer(_library()[1], hashlib.sha256(place.encode()).digest()[:PLACE_BYTES])


def unique_id() -> bytes:
    """A new id of a communicator, which all its ranks need.

    Raises:
        MXNetError: NCCL found no network.
    """
    id = UniqueId()
    _check("ncclGetUniqueId", _library()[0].ncclGetUniqueId(byref(id)))
    return bytes(id.internal)


class Communicator:
    """A rank on the current device; begins to wait for the others, and comes back at once.

    Args:
        rank, size: its number, and that of all ranks.
        id: of `unique_id`, the same on all.

    Attributes:
        device: its number.

    Raises:
        MXNetError: NCCL refuses it.
    """

    def __init__(self, rank: int, size: int, id: bytes) -> None:
        self._library = _library()[0]
        self._lock = threading.Lock()
        self._handle: c_void_p | None = c_void_p()
        self.device = int(_NcclState.cupy.cuda.runtime.getDevice())
        config = CommConfig(ctypes.sizeof(CommConfig), _MAGIC, MIN_VERSION, 0)
        status = self._library.ncclCommInitRankConfig(
            byref(self._handle), size, UniqueId.from_buffer_copy(id), rank, byref(config)
        )
        try:
            _check("ncclCommInitRankConfig", status)
        except MXNetError:
            self.abort()
            raise

    def ready(self) -> bool:
        """Whether what was begun last has come so far that more may be begun.

        Raises:
            MXNetError: it has failed.
        """
        state = c_int()
        with self._lock:
            _check("ncclCommGetAsyncError", self._library.ncclCommGetAsyncError(self._own(), byref(state)))
        _check("the communicator", state.value)
        return state.value == _SUCCESS

    def begin(self, pairs: Sequence[tuple[Array, Array]]) -> None:
        """Begin sums on the current stream; all ranks must begin the same.

        Args:
            pairs: arrays and where their sums are to be, contiguous, of TYPES.

        Raises:
            MXNetError: NCCL refuses them.
        """
        stream = c_void_p(_NcclState.cupy.cuda.get_current_stream().ptr)
        with self._lock:
            handle = self._own()
            _check("ncclGroupStart", self._library.ncclGroupStart())
            statuses = [
                self._library.ncclAllReduce(
                    source.data.ptr, target.data.ptr, source.size, TYPES[source.dtype.name], _SUM, handle, stream
                )
                for source, target in pairs
                if source.size
            ]
            ended = self._library.ncclGroupEnd()
        for status in statuses:
            _check("ncclAllReduce", status)
        _check("ncclGroupEnd", ended)

    def come(self) -> Callable[[], bool]:
        """A function that says whether what the current stream does now has been done."""
        cuda = _NcclState.cupy.cuda
        event = cuda.Event(disable_timing=True)
        event.record(cuda.get_current_stream())
        return lambda: bool(event.done)

    def abort(self) -> None:
        """End it, with what it is doing; no other rank is waited for. Any thread may call this, and again."""
        with self._lock:
            handle, self._handle = self._handle, None
            if handle:
                self._library.ncclCommAbort(handle)

    def _own(self) -> c_void_p:
        if not self._handle:
            raise MXNetError("NCCL: expected a communicator at work, got one that has ended")
        return self._handle
