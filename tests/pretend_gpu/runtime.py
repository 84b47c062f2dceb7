"""CUDA's runtime and driver calls as CuPy names them, on the pretend devices."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias

from . import device
from .compiler import runtime_library, tag
from .device import CudaError, allocate, next_id, note, queue, refuse, state

__all__ = ["driver_functions", "runtime_functions"]

_ATTRIBUTES = {75: 9, 76: 0, 16: 132, 1: 1024, 10: 32, 81: 233472, 97: 232448, 8: 49152, 115: 1, 2: 1024, 39: 2048}
"""By CUDA's numbers: compute capability 9.0, 132 multiprocessors, and an H100's sizes."""
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3
_NON_BLOCKING, _NOT_READY = 1, 600


Functions: TypeAlias = dict[str, Callable[..., Any]]


def _calls(error: Callable[[int], Exception], functions: Functions) -> Functions:
    """Each function with what every call does first, and its errors as CuPy's."""

    def call(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def run(*args: Any) -> Any:
            try:
                device.enter(name)
                return function(*args)
            except CudaError as failed:
                raise error(failed.status) from None

        return run

    return {name: call(name, function) for name, function in functions.items()}


# -- memory -----------------------------------------------------------------------------------------------------------


def _malloc(size: int) -> int:
    note("malloc", size)
    if any(state.modes[stream][0] != device.RELAXED for stream in device.concerned()):
        refuse("malloc")
    return allocate(size)


def _free(address: int) -> None:
    note("free")
    device.spoil("free")
    device.settle()
    device.free(address)


def _host_alloc(size: int, flags: int = 0) -> int:
    note("hostAlloc", size)
    refuse("hostAlloc")
    return _pinned(size)


def _pinned(size: int) -> int:
    buffer = ctypes.create_string_buffer(max(size, 1))
    ctypes.memset(buffer, device.PATTERN, size)
    address = ctypes.addressof(buffer)
    _host[address] = buffer
    return address


def _free_host(address: int) -> None:
    note("freeHost")
    device.spoil("freeHost")
    device.settle()
    _host.pop(address, None)


def _is_pinned(address: int) -> bool:
    return any(start <= address < start + len(buffer) for start, buffer in list(_host.items()))


_host: dict[int, Any] = {}


def _memcpy(to: int, source: int, size: int, kind: int) -> None:
    note("memcpy", size)
    refuse("memcpy")
    ctypes.memmove(to, source, size)


def _memcpy_async(to: int, source: int, size: int, kind: int, stream: int) -> None:
    from_device, to_device = device.device_of(source) is not None, device.device_of(to) is not None
    on_device = from_device and to_device
    note("copy" if on_device else "transfer", size)
    pageable = not on_device and not (_is_pinned(to) or _is_pinned(source))
    if pageable and stream in state.capturing:
        refuse("a copy of pageable memory")
    if device.ONLY_LAUNCHES and not on_device:
        ctypes.memmove(to, source, size)
        return
    # CUDA promises no more: a device that reads the host's memory by itself may copy pageable memory when the stream
    # comes to it, as it does page-locked memory.
    queue(stream, lambda: ctypes.memmove(to, source, size) and None)
    if pageable and not to_device and state.streams is not None:
        state.streams.finish(stream)


def _memset(address: int, value: int, size: int) -> None:
    note("memset", size)
    queue(0, lambda: ctypes.memset(address, value, size) and None)


def _memset_async(address: int, value: int, size: int, stream: int) -> None:
    note("memset", size)
    queue(stream, lambda: ctypes.memset(address, value, size) and None)


# -- devices, streams, events -----------------------------------------------------------------------------------------


def _set_device(number: int) -> None:
    if not 0 <= number < device.DEVICES:
        raise CudaError(101)
    state.current = number


def _waits(kind: str) -> Callable[..., None]:
    def wait(*args: int) -> None:
        note("synchronize", kind)
        if kind == "deviceSynchronize":
            device.refuse_everywhere(kind)
        if kind != "streamSynchronize" or args[0] in state.capturing or args[0] == 0:
            refuse(kind)
        for number in args:
            device.wait_for(number)
        if state.streams is None:
            return
        if kind == "eventSynchronize":
            state.streams.reach(args[0])
        else:
            state.streams.finish(*args)

    return wait


def _new(*args: int) -> int:
    return next_id()


def _nothing(*args: Any) -> None:
    return None


def _new_stream(flags: int, *priority: int) -> int:
    stream = next_id()
    if flags & _NON_BLOCKING:
        state.non_blocking.add(stream)
    return stream


def _begin(stream: int, mode: int = device.RELAXED) -> None:
    device.begin_capture(stream, mode)


def _instantiate(graph: int) -> int:
    instance = next_id()
    state.graphs[instance] = state.graphs[graph]
    return instance


def _graph_launch(graph: int, stream: int) -> None:
    note("graphLaunch", len(state.graphs[graph]))
    queue(stream, lambda: device.replay(graph))


def _drop_graph(graph: int) -> None:
    state.graphs.pop(graph, None)


def _event_query(event: int) -> int:
    refuse("eventQuery")
    if not device.has_come(event):
        return _NOT_READY
    return 0 if state.streams is None or state.streams.come(event) else _NOT_READY


def _event_record(event: int, stream: int) -> None:
    note("eventRecord", stream)
    device.record(event, stream)
    if state.streams is not None:
        state.streams.record(event, stream)


def _stream_wait(stream: int, event: int, flags: int = 0) -> None:
    note("streamWaitEvent", stream)
    if state.streams is None:
        return
    if stream in state.non_blocking:
        state.streams.wait(stream, event)
    else:
        state.streams.reach(event)


_RUNTIME: Functions = {
    "driverGetVersion": lambda: 13000,
    "runtimeGetVersion": lambda: 13000,
    "_getCUDAMajorVersion": lambda: 13,
    "getDevice": lambda: state.current,
    "setDevice": _set_device,
    "getDeviceCount": lambda: device.DEVICES,
    "deviceGetAttribute": lambda attribute, number: _ATTRIBUTES.get(attribute, 0),
    "getDeviceProperties": lambda number: {
        "name": b"pretend",
        "major": 9,
        "minor": 0,
        "warpSize": 32,
        "multiProcessorCount": 132,
        "totalGlobalMem": device.BYTES,
        "sharedMemPerBlock": 49152,
        "maxThreadsPerBlock": 1024,
    },
    "deviceGetPCIBusId": lambda number: f"0000:{number:02x}:00.0",
    "deviceCanAccessPeer": lambda one, other: 0,
    "deviceSynchronize": _waits("deviceSynchronize"),
    "_ensure_context": _nothing,
    "malloc": _malloc,
    "mallocAsync": lambda size, stream: _malloc(size),
    "free": _free,
    "freeAsync": lambda address, stream: _free(address),
    "hostAlloc": _host_alloc,
    "freeHost": _free_host,
    "memGetInfo": lambda: (device.BYTES - state.used[state.current], device.BYTES),
    "memcpy": _memcpy,
    "memcpyAsync": _memcpy_async,
    "memcpyPeer": lambda to, to_device, source, from_device, size: _memcpy(to, source, size, _ON_DEVICE),
    "memcpyPeerAsync": lambda to, to_device, source, from_device, size, stream: _memcpy_async(
        to, source, size, _ON_DEVICE, stream
    ),
    "memset": _memset,
    "memsetAsync": _memset_async,
    "pointerGetMemoryType": lambda address: 2 if device.device_of(address) is not None else 0,
    "streamCreate": _new,
    "streamCreateWithFlags": _new_stream,
    "streamCreateWithPriority": _new_stream,
    "streamDestroy": _nothing,
    "streamSynchronize": _waits("streamSynchronize"),
    "streamIsCapturing": lambda stream: int(stream in state.capturing),
    "streamQuery": _nothing,
    "streamWaitEvent": _stream_wait,
    "streamBeginCapture": _begin,
    "streamEndCapture": lambda stream: device.end_capture(stream),
    "graphInstantiate": _instantiate,
    "graphLaunch": _graph_launch,
    "graphUpload": _nothing,
    "graphDestroy": _drop_graph,
    "graphExecDestroy": _drop_graph,
    "eventCreate": _new,
    "eventCreateWithFlags": _new,
    "eventDestroy": _nothing,
    "eventRecord": _event_record,
    "eventQuery": _event_query,
    "eventSynchronize": _waits("eventSynchronize"),
    "eventElapsedTime": lambda start, end: state.times[end] - state.times[start],
    "profilerStart": _nothing,
    "profilerStop": _nothing,
}


# -- modules and kernels ----------------------------------------------------------------------------------------------


class _Kernel:
    """A kernel of a loaded library."""

    def __init__(self, library: ctypes.CDLL, name: str) -> None:
        part = tag(name)
        try:
            self.address = ctypes.c_void_p.in_dll(library, f"launch_{part}")
        except ValueError:
            raise CudaError(500) from None
        self.name = name
        self.most_shared = DEFAULT_SHARED
        self.waits = ctypes.c_int.in_dll(library, f"waits_{part}").value
        sizes = (ctypes.c_int * 256)()
        self.sizes = list(sizes[: getattr(library, f"sizes_{part}")(sizes)])


class _Text:
    """A kernel that is not compiled: its name and its parameters, as its text declares them."""

    def __init__(self, source: str, name: str) -> None:
        self.name = name
        head = re.search(rf"\b{re.escape(name.partition('<')[0])}\s*\(", source)
        self.parameters = [] if head is None else _split(source[head.end() :])


def _split(text: str) -> list[str]:
    """The parameters in a text that begins behind the opening bracket."""
    depth, parts = 0, [""]
    for character in text:
        depth += (character in "(<[") - (character in ")>]")
        if depth < 0:
            break
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


_modules: dict[int, Any] = {}
_kernels: dict[int, Any] = {}
_device_library: list[Any] = []


def _launcher() -> Any:
    """`pretend_launch`; kernels find what they share with it among the process's global names."""
    if not _device_library:
        library = ctypes.PyDLL(str(runtime_library()), ctypes.RTLD_GLOBAL)
        library.pretend_launch.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
        _device_library.append(library.pretend_launch)
    return _device_library[0]


def _load_data(data: bytes) -> int:
    number = next_id()
    if device.ONLY_LAUNCHES:
        _modules[number] = bytes(data).decode()
        return number
    _launcher()
    try:
        _modules[number] = ctypes.PyDLL(bytes(data).decode())
    except (OSError, UnicodeDecodeError):
        device.fail(device.INVALID_IMAGE)
    return number


def _get_function(module: int, name: str) -> int:
    number = next_id()
    _kernels[number] = (_Text if device.ONLY_LAUNCHES else _Kernel)(_modules[module], name)
    return number


def _get_global(module: int, name: str) -> int:
    return ctypes.addressof(ctypes.c_char.in_dll(_modules[module], name))


DEFAULT_SHARED = 48 << 10
"""Bytes of dynamic shared memory of a kernel that has asked for no more."""
_THREADS_OF_BLOCK, _SHARED_BYTES, _REGISTERS, _DYNAMIC_BYTES = 0, 1, 4, 8
"""CUfunction_attribute."""


def _most_threads(kernel: _Kernel) -> int:
    """Threads of a block for which there are registers: 64 K of them, as on an H100."""
    return min(1024, (65536 // device.registers_of(kernel.name)) // 32 * 32)


def _attribute(attribute: int, function: int) -> int:
    kernel = _kernels[function]
    values = {
        _THREADS_OF_BLOCK: _most_threads(kernel),
        _SHARED_BYTES: 0,
        _REGISTERS: device.registers_of(kernel.name),
        _DYNAMIC_BYTES: kernel.most_shared,
    }
    return values.get(attribute, 0)


def _set_attribute(function: int, attribute: int, value: int) -> None:
    if attribute == _DYNAMIC_BYTES:
        if not 0 <= value <= _ATTRIBUTES[97]:
            raise CudaError(device.INVALID_VALUE)
        _kernels[function].most_shared = value


def _launch(function: int, *rest: int) -> None:
    *sizes, stream, params, _extra = rest
    kernel = _kernels[function]
    note("launch", kernel.name)
    if device.ONLY_LAUNCHES:
        if state.launched is not None:
            places = (ctypes.c_void_p * len(kernel.parameters)).from_address(params) if kernel.parameters else ()
            state.launched(kernel.name, sizes, list(zip(kernel.parameters, places, strict=True)))
        return
    if sizes[3] * sizes[4] * sizes[5] > _most_threads(kernel):
        raise CudaError(device.OUT_OF_RESOURCES)
    if sizes[6] > kernel.most_shared:
        raise CudaError(device.INVALID_VALUE)
    if device.FAULT and device.FAULT in kernel.name:
        if device.FAULT_STATUS:
            raise CudaError(int(device.FAULT_STATUS))
        device.fail(device.ILLEGAL_ADDRESS)
    pointers = (ctypes.c_void_p * len(kernel.sizes)).from_address(params) if kernel.sizes else ()
    # Arguments are copied, as a launch copies them: a replay passes what they were when the graph was captured.
    values = [ctypes.string_at(place, size) for place, size in zip(pointers, kernel.sizes, strict=True)]
    for value in values:
        if len(value) >= 8:
            place = device.device_of(int.from_bytes(value[:8], "little"))
            if place is not None and place != state.current:
                device.fail(device.ILLEGAL_ADDRESS)
    size_array = (ctypes.c_uint * 7)(*sizes)

    def run() -> None:
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        passed = (ctypes.c_void_p * (len(buffers) + 1))(*[ctypes.addressof(buffer) for buffer in buffers])
        status = _launcher()(kernel.address, kernel.waits, size_array, passed)
        if status:
            device.fail(status)

    queue(stream, run)


_DRIVER: Functions = {
    "get_build_version": lambda: 13000,
    "ctxGetCurrent": lambda: state.current + 1,
    "ctxSetCurrent": _nothing,
    "ctxGetDevice": lambda: state.current,
    "devicePrimaryCtxRelease": _nothing,
    "moduleLoadData": _load_data,
    "moduleUnload": _nothing,
    "moduleGetFunction": _get_function,
    "moduleGetGlobal": _get_global,
    "launchKernel": _launch,
    "funcGetAttribute": _attribute,
    "funcSetAttribute": _set_attribute,
    "occupancyMaxActiveBlocksPerMultiprocessor": lambda function, block, shared: 2,
    "occupancyMaxPotentialBlockSize": lambda function, shared, limit: (132, 256),
}


def runtime_functions(error: Callable[[int], Exception]) -> Functions:
    """The runtime's calls; `error` makes CuPy's error of a status."""
    return _calls(error, _RUNTIME)


def driver_functions(error: Callable[[int], Exception]) -> Functions:
    """The driver's calls."""
    return _calls(error, _DRIVER)
