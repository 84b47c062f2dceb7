"""cuDNN 9's C interface: the functions, structures and numbers that opbox uses, by ctypes.

The library is looked for once, when a process with a GPU first plans a convolution: the file that OPBOX_CUDNN names
(0: none), or the one that `load_library` finds. A device has one handle, whatever the thread, and a second one that
algorithms are measured with. Numbers and signatures are those of `cudnn_graph.h`, `cudnn_ops.h` and `cudnn_cnn.h`.
"""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import POINTER, c_double, c_float, c_int, c_size_t, c_void_p
from functools import cache
from threading import Lock
from typing import Any

from opbox_protocol.errors import MXNetError

from .. import switches
from ..backend.graphs import undisturbed
from ..cuda.shared_libraries import load_library

__all__ = [
    "DATA_TYPES",
    "SIGNATURES",
    "DeviceHandle",
    "Math",
    "Performance",
    "attach",
    "attached_cupy",
    "cudnn_version",
    "current_handle",
    "device",
    "device_bytes",
    "device_name",
    "driver_version",
    "further_handle",
]

OLDEST = 90000
"""The version as cudnnGetVersion counts: 9.0.0."""
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}
"""cudnnDataType_t by the name of a NumPy type."""


class Math:
    """cudnnMathType_t: with DEFAULT, single precision may be multiplied in TF32; with FMA it may not."""

    DEFAULT, TENSOR_OP, FMA = 0, 1, 3


class Performance(ctypes.Structure):
    """cudnnConvolutionFwdAlgoPerf_t; those of the gradients are laid out alike."""

    _fields_ = [
        ("algo", c_int),
        ("status", c_int),
        ("time", c_float),
        ("memory", c_size_t),
        ("determinism", c_int),
        ("mathType", c_int),
        ("reserved", c_int * 3),
    ]


_OBJECT, _NUMBERS, _SIZE = c_void_p, POINTER(c_int), c_size_t
_ANSWER = (c_int, POINTER(c_int), POINTER(Performance))
"""The last arguments of a heuristic: the number of results asked for, the number found, the results."""
_DESCRIBED = (_OBJECT, c_void_p)
"""A descriptor and the array that it describes."""
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cudnnCreate": (POINTER(c_void_p),),
    "cudnnSetStream": (c_void_p, c_void_p),
    "cudnnCreateTensorDescriptor": (POINTER(c_void_p),),
    "cudnnSetTensorNdDescriptor": (_OBJECT, c_int, c_int, _NUMBERS, _NUMBERS),
    "cudnnDestroyTensorDescriptor": (_OBJECT,),
    "cudnnCreateFilterDescriptor": (POINTER(c_void_p),),
    "cudnnSetFilterNdDescriptor": (_OBJECT, c_int, c_int, c_int, _NUMBERS),
    "cudnnDestroyFilterDescriptor": (_OBJECT,),
    "cudnnCreateConvolutionDescriptor": (POINTER(c_void_p),),
    "cudnnSetConvolutionNdDescriptor": (_OBJECT, c_int, *(_NUMBERS,) * 3, c_int, c_int),
    "cudnnSetConvolutionGroupCount": (_OBJECT, c_int),
    "cudnnSetConvolutionMathType": (_OBJECT, c_int),
    "cudnnDestroyConvolutionDescriptor": (_OBJECT,),
    "cudnnCreateActivationDescriptor": (POINTER(c_void_p),),
    "cudnnSetActivationDescriptor": (_OBJECT, c_int, c_int, c_double),
    "cudnnDestroyActivationDescriptor": (_OBJECT,),
    "cudnnConvolutionBiasActivationForward": (
        *(c_void_p, c_void_p, *_DESCRIBED, *_DESCRIBED, _OBJECT, c_int, c_void_p, _SIZE),
        *(c_void_p, *_DESCRIBED, *_DESCRIBED, _OBJECT, *_DESCRIBED),
    ),
}
"""The arguments of functions that answer a status."""
for _direction in ("Forward", "BackwardData", "BackwardFilter"):
    SIGNATURES |= {
        f"cudnnGetConvolution{_direction}Algorithm_v7": (c_void_p, *(_OBJECT,) * 4, *_ANSWER),
        f"cudnnGetConvolution{_direction}WorkspaceSize": (c_void_p, *(_OBJECT,) * 4, c_int, POINTER(_SIZE)),
        f"cudnnConvolution{_direction}": (
            *(c_void_p, c_void_p, *_DESCRIBED, *_DESCRIBED, _OBJECT),
            *(c_int, c_void_p, _SIZE, c_void_p, *_DESCRIBED),
        ),
    }
_log = logging.getLogger(__name__)


class _Absent(Exception):
    """Why there is no cuDNN here."""


class _State:
    """The process's cuDNN state: CuPy, once the process has a GPU, and the handles by device."""

    cupy: Any = None
    handles: dict[int, DeviceHandle | None] = {}
    lock = Lock()


def attach(cupy: Any) -> None:
    """Set the CuPy of this process; before this call cuDNN counts as absent."""
    _State.cupy = cupy


def attached_cupy() -> Any:
    """The CuPy of this process."""
    return _State.cupy


@cache
def _library() -> Any:
    """The library.

    Raises:
        _Absent: it is not there, or too old.
    """
    try:
        named = os.environ.get("OPBOX_CUDNN")
        library = ctypes.CDLL(named) if named else load_library("cudnn")
        version = library.cudnnGetVersion
        version.argtypes, version.restype = (), c_size_t
        if version() < OLDEST:
            raise _Absent(f"expected version 9.0 or a later one, got {version() // 1000}.{version() // 100 % 10}")
        for name, arguments in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
        library.cudnnGetErrorString.argtypes, library.cudnnGetErrorString.restype = (c_int,), ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise _Absent(str(error)) from None
    return library


def device() -> int:
    """The current device of this thread."""
    return int(_State.cupy.cuda.runtime.getDevice())


def device_bytes() -> int:
    """The memory of the current device."""
    return int(_State.cupy.cuda.runtime.memGetInfo()[1])


def current_handle() -> DeviceHandle | None:
    """The handle of the current device; None where there is no cuDNN, which the log says once."""
    if _State.cupy is None or switches.is_off("cudnn"):
        return None
    place = device()
    try:
        return _State.handles[place]
    except KeyError:
        pass
    # In this order, as while a plan is recorded. A new handle allocates, and may wait for the whole device.
    with undisturbed(), _State.lock:
        if place not in _State.handles:
            try:
                _State.handles[place] = DeviceHandle(_library(), _State.cupy)
            except (_Absent, MXNetError) as error:
                _State.handles[place] = None
                _log.warning(
                    "gpu:%d: convolutions run without cuDNN (%s): pip install 'opbox-service[cuda13]'", place, error
                )
        return _State.handles[place]


def further_handle() -> DeviceHandle:
    """Another handle of the current device, whose calls wait for none of the first one's.

    Raises:
        MXNetError: cuDNN refuses it.
    """
    with undisturbed():
        return DeviceHandle(_library(), _State.cupy)


def cudnn_version() -> int:
    """The library's version as cudnnGetVersion counts: 91900."""
    return int(_library().cudnnGetVersion())


def driver_version() -> int:
    """The version of CUDA that the driver has: 13000."""
    return int(_State.cupy.cuda.runtime.driverGetVersion())


def device_name(place: int) -> str:
    """The name of a device, as "NVIDIA H100 80GB HBM3"."""
    return bytes(_State.cupy.cuda.runtime.getDeviceProperties(place)["name"]).decode(errors="replace")


class DeviceHandle:
    """cuDNN on the current device: its calls go to the current stream, one at a time.

    Attributes:
        cupy: the module.
    """

    def __init__(self, library: Any, cupy: Any) -> None:
        self._library, self._lock, self.cupy = library, Lock(), cupy
        self._stream: int | None = None
        handle = c_void_p()
        self.check("cudnnCreate", library.cudnnCreate(ctypes.byref(handle)))
        self._handle = handle

    def status(self, name: str, *arguments: Any) -> int:
        """Call a function that takes the handle first."""
        function = getattr(self._library, name)
        with self._lock:
            stream = self.cupy.cuda.get_current_stream().ptr
            if stream != self._stream:
                self._stream = None
                self.check("cudnnSetStream", self._library.cudnnSetStream(self._handle, stream))
                self._stream = stream
            return int(function(self._handle, *arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """The same; MXNetError unless it succeeds."""
        self.check(name, self.status(name, *arguments))

    def describe(self, name: str, *arguments: Any) -> None:
        """Call a function of a descriptor alone; MXNetError unless it succeeds."""
        self.check(name, getattr(self._library, name)(*arguments))

    def check(self, name: str, status: int) -> None:
        """MXNetError for a status other than success."""
        if status:
            meaning = (self._library.cudnnGetErrorString(status) or b"").decode(errors="replace")
            raise MXNetError(f"cuDNN refused a call: {name} answered {status} ({meaning})")
