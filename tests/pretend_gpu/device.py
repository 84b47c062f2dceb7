"""The pretend devices: memory, streams, captures, errors to come, and a record of what was called.

    with device.recorded() as calls:
        executor.forward()
    assert calls["malloc"] == 0

Memory is filled with PATTERN, so that nothing is zero by luck; around each allocation lie guards, looked at when it is
freed and by `check_guards`. What stream capture refuses raises the error that CUDA raises. While a stream captures, its
launches, copies and fills are noted and not run; `replay` runs them, as a graph's launch does.

A call of cuDNN takes as long as `costs` says, by the clock that events are compared with. While a gate in `gates` is
closed, events behind such a call do not come: the device is still at work on it.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import os
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from .streams import Streams

__all__ = [
    "CudaError",
    "Recorder",
    "allocate",
    "check_guards",
    "costs",
    "deferred",
    "fail_next",
    "free",
    "gates",
    "next_id",
    "note",
    "reset",
    "recorded",
    "registers",
    "registers_of",
    "settle",
]

DEVICES = int(os.environ.get("PRETEND_GPU_DEVICES", "2"))
BYTES = int(os.environ.get("PRETEND_GPU_BYTES", str(4 << 30)))
"""The memory of each device."""
FAULT, _, FAULT_STATUS = os.environ.get("PRETEND_GPU_FAULT", "").partition("=")
"""Part of the name of kernels whose launches fail with ILLEGAL_ADDRESS, which stays, or are refused with this status.

For processes that a test cannot reach into.
"""
ONLY_LAUNCHES = bool(os.environ.get("PRETEND_GPU_ONLY_LAUNCHES"))
"""Whether kernels are neither compiled nor run, and launches only noted: memory stays 0 (launches.py)."""
PATTERN, FREED, GUARD, GUARD_BYTES = 0xAB, 0xCD, 0xEF, 512
QUARANTINE = 64 << 20
"""Bytes of freed memory that are kept, full of FREED, so that a stale pointer shows."""

OUT_OF_MEMORY, INVALID_VALUE, INVALID_IMAGE, ILLEGAL_ADDRESS, LAUNCH_FAILURE, ASSERT = 2, 1, 200, 700, 719, 710
OUT_OF_RESOURCES = 701
THREAD_LOCAL, RELAXED = 1, 2
"""Modes of capture."""
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901
STICKY = {ILLEGAL_ADDRESS, LAUNCH_FAILURE, ASSERT, 214, 220, 226, 702, 714, 715, 716, 717, 718, 721, 810, 911}
"""Errors after which every call of the process fails with the same one."""

_ENDINGS = ("free", "freeHost", "freeAsync", "graphDestroy", "graphExecDestroy", "streamDestroy")
"""What CuPy calls when its objects end, where nobody could hear of an error."""

_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = [ctypes.c_size_t] * 2
_libc.free.argtypes = [ctypes.c_void_p]

costs: dict[tuple[str, int], float] = {}
"""Milliseconds of a library's call, by its name and its algorithm."""
gates: dict[tuple[str, int], threading.Event] = {}
"""A library's calls that do not end before an event, by name and algorithm."""
SECONDS_OF_A_GATE = 120
"""That somebody who waits for the device waits for a gate at most."""

_memory_lock = threading.RLock()
_ids = itertools.count(3)  # streams 1 and 2 are CUDA's default ones


class CudaError(Exception):
    """A status that a call answers; `runtime` makes CuPy's own error of it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA status {status}")
        self.status = status


class Recorder(Counter[str]):
    """Calls by kind, and their order with details in `events`."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, object]] = []


class _Thread(threading.local):
    """What each thread has of its own."""

    device = 0


_thread = _Thread()


@dataclass
class _State:
    live: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Size and device by address."""
    starts: list[int] = field(default_factory=list)
    used: Counter[int] = field(default_factory=Counter)
    freed: deque[tuple[int, int]] = field(default_factory=deque)
    freed_bytes: int = 0
    recorders: list[Recorder] = field(default_factory=list)
    capturing: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    modes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The mode and the thread of each capture."""
    non_blocking: set[int] = field(default_factory=set)
    """Streams that do not wait for the default one."""
    streams: Streams | None = None
    """What streams have still to do, while they are late."""
    broken: set[int] = field(default_factory=set)
    graphs: dict[int, list[Callable[[], None]]] = field(default_factory=dict)
    sticky: int = 0
    planned: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By the name of a call: how many of it still succeed, and the status of the one after."""
    damage: list[str] = field(default_factory=list)
    launched: Callable[[str, Sequence[int], list[tuple[str, int]]], None] | None = None
    """Asked with ONLY_LAUNCHES: a kernel's name, its grid and block, and its parameters as C declares them with where
    they stand."""
    clock: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Milliseconds of each stream."""
    times: dict[int, float] = field(default_factory=dict)
    """The stream's clock when each event was recorded."""
    closed: dict[int, threading.Event] = field(default_factory=dict)
    """The gate that a stream, or an event, has come to last."""

    @property
    def current(self) -> int:
        """This thread's current device."""
        return _thread.device

    @current.setter
    def current(self, number: int) -> None:
        _thread.device = number


state = _State()
registers: dict[str, int] = {}
"""Registers of a thread by a kernel's name, where a test says that it takes many."""


def registers_of(kernel: str) -> int:
    """Registers of a thread of a kernel."""
    return registers.get(kernel, 32)


def next_id() -> int:
    """A number for a stream, an event, a module or a graph."""
    return next(_ids)


def note(kind: str, detail: object = None) -> None:
    """Record a call."""
    for recorder in state.recorders:
        recorder[kind] += 1
        recorder.events.append((kind, detail))


@contextmanager
def recorded() -> Iterator[Recorder]:
    """The calls made inside."""
    recorder = Recorder()
    state.recorders.append(recorder)
    try:
        yield recorder
    finally:
        state.recorders.remove(recorder)


def enter(name: str) -> None:
    """What every call does first: fail as planned, or with the sticky error that came before."""
    if state.sticky and name not in _ENDINGS:
        raise CudaError(state.sticky)
    if name in state.planned:
        left, status = state.planned[name]
        if left:
            state.planned[name] = (left - 1, status)
            return
        del state.planned[name]
        fail(status)


def fail(status: int) -> None:
    """Raise a status; from then on a sticky one is every call's."""
    if status in STICKY:
        state.sticky = status
    if status == CAPTURE_INVALIDATED:
        state.broken.update(concerned())
    raise CudaError(status)


def fail_next(name: str, status: int, after: int = 0) -> None:
    """Let a coming call fail.

    Args:
        name: of the call, as CuPy has it: "malloc", "launchKernel".
        status: CUDA's number.
        after: how many of these calls succeed before.
    """
    state.planned[name] = (after, status)


def reset() -> None:
    """Forget injected errors and captures; memory stays."""
    state.sticky = 0
    state.planned.clear()
    state.capturing.clear()
    state.modes.clear()
    state.broken.clear()
    state.damage.clear()
    state.streams = None
    registers.clear()
    for gate in gates.values():
        gate.set()
    gates.clear()
    costs.clear()
    state.closed.clear()


# -- memory -----------------------------------------------------------------------------------------------------------


def _locked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have one thread at a time in the functions that know where memory lies."""

    @wraps(function)
    def run(*args: Any) -> Any:
        with _memory_lock:
            return function(*args)

    return run


@_locked
def allocate(size: int) -> int:
    """Memory on the current device; OUT_OF_MEMORY when there is not enough."""
    if state.used[state.current] + size > BYTES:
        raise CudaError(OUT_OF_MEMORY)
    nbytes = -(-max(size, 1) // 512) * 512 + 2 * GUARD_BYTES
    base = _libc.aligned_alloc(512, nbytes)
    if not base:
        raise CudaError(OUT_OF_MEMORY)
    address = int(base) + GUARD_BYTES
    ctypes.memset(base, GUARD, nbytes)
    ctypes.memset(address, 0 if ONLY_LAUNCHES else PATTERN, size)
    state.live[address] = (size, state.current)
    bisect.insort(state.starts, address)
    state.used[state.current] += size
    return address


@_locked
def free(address: int) -> None:
    """Give memory back; a guard that was written to is noted."""
    if not address or address not in state.live:
        return
    _look_at(address)
    size, device = state.live.pop(address)
    del state.starts[bisect.bisect_left(state.starts, address)]
    state.used[device] -= size
    ctypes.memset(address, FREED, size)
    state.freed.append((address, size))
    state.freed_bytes += size
    while state.freed_bytes > QUARANTINE:
        oldest, freed = state.freed.popleft()
        state.freed_bytes -= freed
        _libc.free(oldest - GUARD_BYTES)


def _look_at(address: int) -> None:
    size, device = state.live[address]
    guard = bytes([GUARD]) * GUARD_BYTES
    if ctypes.string_at(address - GUARD_BYTES, GUARD_BYTES) != guard:
        state.damage.append(f"something wrote before an allocation of {size} bytes on device {device}")
    if ctypes.string_at(address + size, GUARD_BYTES) != guard:
        state.damage.append(f"something wrote behind an allocation of {size} bytes on device {device}")


@_locked
def check_guards() -> None:
    """Fail when something was written outside an allocation."""
    for address in list(state.live):
        _look_at(address)
    damage, state.damage = state.damage, []
    assert not damage, f"{len(damage)} allocations: {damage[0]}"


@_locked
def device_of(address: int) -> int | None:
    """The device whose memory an address lies in; None for what is no device's."""
    k = bisect.bisect_right(state.starts, address) - 1
    if k < 0:
        return None
    size, device = state.live[state.starts[k]]
    return device if address < state.starts[k] + max(size, 1) else None


# -- streams and capture ----------------------------------------------------------------------------------------------


def queue(stream: int, work: Callable[[], None]) -> None:
    """Run work at once, note it where its stream captures, or leave it to streams that are late."""
    if ONLY_LAUNCHES:
        return
    if stream in state.capturing:
        state.capturing[stream].append(work)
        return
    if stream == 0 and any(s not in state.non_blocking for s in state.capturing):
        refuse("the default stream")
    if state.streams is not None and stream in state.non_blocking:
        state.streams.queue(stream, work)
        return
    work()


def settle() -> None:
    """Let late streams come to their end: before what a pretend library does on the host."""
    if state.streams is not None:
        state.streams.finish()


@contextmanager
def deferred() -> Iterator[Streams]:
    """Inside, streams that wait for no other run what was queued as late as they may: when somebody waits for it."""
    state.streams = streams = Streams()
    try:
        yield streams
        streams.finish()
    finally:
        state.streams = None


def concerned() -> list[int]:
    """The captures that what this thread calls may end: not those of other threads in the mode THREAD_LOCAL."""
    own = threading.get_ident()
    return [stream for stream, (mode, thread) in state.modes.items() if mode != THREAD_LOCAL or thread == own]


def spend(name: str, algorithm: int, stream: int) -> None:
    """Let a library's call take its time on a stream: whenever it is replayed, if the stream captures."""

    def take() -> None:
        state.clock[stream] += costs.get((name, algorithm), 0.0)
        if (name, algorithm) in gates:
            state.closed[stream] = gates[name, algorithm]

    if stream in state.capturing:
        state.capturing[stream].append(take)
    else:
        take()


def record(event: int, stream: int) -> None:
    """Note the time of an event, and the gate that it lies behind."""
    state.times[event] = state.clock[stream]
    gate = state.closed.get(stream)
    if gate is None:
        state.closed.pop(event, None)
    else:
        state.closed[event] = gate


def has_come(number: int) -> bool:
    """Return whether an event, or all work of a stream, lies behind no closed gate."""
    return number not in state.closed or state.closed[number].is_set()


def wait_for(number: int) -> None:
    """Wait for the gate that an event, or a stream's work, lies behind."""
    if number in state.closed:
        assert state.closed[number].wait(SECONDS_OF_A_GATE)


def spoil(what: str) -> None:
    """What ends the captures of this thread, and answers no error: destructors would have nobody to tell."""
    streams = concerned()
    if streams:
        note("refused", what)
        state.broken.update(streams)


def refuse_everywhere(what: str) -> None:
    """What waits for the whole device: it ends the captures of all threads, and fails."""
    if state.capturing:
        note("refused", what)
        state.broken.update(state.capturing)
        raise CudaError(CAPTURE_UNSUPPORTED)


def refuse(what: str) -> None:
    """What may not be called while a stream captures: the capture is over."""
    streams = concerned()
    if streams:
        note("refused", what)
        state.broken.update(streams)
        raise CudaError(CAPTURE_UNSUPPORTED)


def begin_capture(stream: int, mode: int) -> None:
    """From now on what is queued on the stream is noted."""
    if stream == 0 or stream in state.capturing:
        raise CudaError(CAPTURE_UNSUPPORTED)
    state.capturing[stream] = []
    state.modes[stream] = mode, threading.get_ident()


def end_capture(stream: int) -> int:
    """The graph of what was noted."""
    work = state.capturing.pop(stream)
    del state.modes[stream]
    if stream in state.broken:
        state.broken.discard(stream)
        raise CudaError(CAPTURE_INVALIDATED)
    graph = next_id()
    state.graphs[graph] = work
    return graph


def replay(graph: int) -> None:
    """Run a graph."""
    for work in state.graphs[graph]:
        work()
