"""Copies between the host's arrays and a session's on a GPU: by page-locked memory, beside what the device computes.

An array of the host that is sent is first copied to page-locked memory, so that whoever sends it need not wait. A large
one goes on from there to device memory by a stream of its own, while the session's stream still computes, and that one
then copies it to its place, in its turn. Memory for this is used in a circle, and again when the event behind its last
use has come.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import Any

import numpy as np

from opbox_protocol.errors import QuotaError

from .base import Admit, admit_all

__all__ = ["Staging"]

COPY_BYTES = 4 << 20
"""Bytes of a piece of a large array: the host copies one while the device copies the one before."""
SMALL_RING, UPLOAD_RING, DOWNLOAD_RING = 1 << 20, 4 * COPY_BYTES, 2 * COPY_BYTES
"""Bytes of page-locked memory: of sessions whose arrays are small, and of the others."""
DIRECT_BYTES = 1 << 16
"""Up to this size an array goes straight to its place: the calls for more would take longer than the copy."""
ALIGNMENT = 256
_MEMORY_ALLOCATION = 2
"""CUDA's number of the error that there is no page-locked memory."""


class _Ring:
    """Page-locked memory in a circle, each piece in use until its event has come.

    Args:
        cupy: the module.
        nbytes: how much.

    Attributes:
        events: those that nobody waits for.
    """

    def __init__(self, cupy: Any, nbytes: int) -> None:
        self.size = nbytes
        self._cupy = cupy
        self._memory = cupy.cuda.PinnedMemory(nbytes)
        self.address = int(self._memory.ptr)
        self.host: np.ndarray[Any, Any] = np.frombuffer(
            cupy.cuda.PinnedMemoryPointer(self._memory, 0), np.uint8, nbytes
        )
        self._next = 0
        self._used: deque[tuple[int, int, Any]] = deque()
        self.events: list[Any] = []

    def take(self, nbytes: int) -> int:
        """Reserve the next `nbytes` of the ring and return their offset; waits until no copy uses them."""
        if self._next + nbytes > self.size:
            while self._used and self._used[0][0] >= self._next:
                self._wait()  # what is left of the last round behind this place
            self._next = 0
        begin = self._next
        self._next += -(-nbytes // ALIGNMENT) * ALIGNMENT
        while self._used and self._used[0][0] < self._next and self._used[0][1] > begin:
            self._wait()
        return begin

    def event(self) -> Any:
        """An event to record, and to hand to `use`."""
        return self.events.pop() if self.events else self._cupy.cuda.Event(disable_timing=True)

    def use(self, begin: int, nbytes: int, event: Any) -> None:
        """These bytes are in use until an event has come."""
        self._used.append((begin, begin + nbytes, event))

    def settle(self) -> None:
        """Wait until nothing is in use."""
        while self._used:
            self._wait()

    def _wait(self) -> None:
        _, _, event = self._used[0]
        event.synchronize()
        self._used.popleft()
        self.events.append(event)


class Staging:
    """Copies to and from the arrays of one stream.

    Args:
        cupy: the module.
        stream: where the arrays are computed.
        admit: asked before memory is allocated; what it refuses is done without.
    """

    def __init__(self, cupy: Any, stream: Any, admit: Admit = admit_all) -> None:
        self._cupy, self._runtime = cupy, cupy.cuda.runtime
        self._stream = stream
        self._admit = admit
        self._uploads: _Ring | None = None
        self._downloads: _Ring | None = None
        self._apart: tuple[Any, Any] | None = None
        self._lock = Lock()

    def upload(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        """Copy a contiguous host array to a contiguous one of the same size; the former may change at once."""
        source, place = host.reshape(-1).view(np.uint8), int(target.data.ptr)
        with self._lock:
            ring = self._ring(self._uploads, source.size, UPLOAD_RING)
            self._uploads = ring or self._uploads
            if ring is None:
                # The device may read memory that is not page-locked after the call has returned, some do so directly.
                self._copy(place, host.ctypes.data, source.size, self._runtime.memcpyHostToDevice)
                self._stream.synchronize()
            elif source.size <= DIRECT_BYTES:
                self._upload_in_turn(ring, self._fill(ring, source), place, source.size)
            else:
                for start in range(0, source.size, COPY_BYTES):
                    self._upload_apart(ring, place + start, source[start : start + COPY_BYTES])

    def _upload_in_turn(self, ring: _Ring, begin: int, place: int, nbytes: int) -> None:
        self._copy(place, ring.address + begin, nbytes, self._runtime.memcpyHostToDevice)
        event = ring.event()
        event.record(self._stream)
        ring.use(begin, nbytes, event)

    def _upload_apart(self, ring: _Ring, place: int, source: np.ndarray[Any, Any]) -> None:
        apart = self._memory_apart(ring.size)
        begin = self._fill(ring, source)
        if apart is None:
            self._upload_in_turn(ring, begin, place, source.size)
            return
        memory, stream = apart
        staged, event = int(memory.ptr) + begin, ring.event()
        to_device = self._runtime.memcpyHostToDevice
        self._runtime.memcpyAsync(staged, ring.address + begin, source.size, to_device, stream.ptr)
        event.record(stream)
        self._stream.wait_event(event)
        self._copy(place, staged, source.size, self._runtime.memcpyDeviceToDevice)
        # Recorded again: the stream waits for what the event was.
        event.record(self._stream)
        ring.use(begin, source.size, event)

    def download(self, array: Any) -> np.ndarray[Any, Any]:
        """The host's copy of a contiguous array."""
        host: np.ndarray[Any, Any] = np.empty(array.shape, array.dtype)
        target, place = host.reshape(-1).view(np.uint8), int(array.data.ptr)
        to_host = self._runtime.memcpyDeviceToHost
        with self._lock:
            ring = self._ring(self._downloads, target.size, DOWNLOAD_RING)
            self._downloads = ring or self._downloads
            if ring is None:
                self._copy(host.ctypes.data, place, target.size, to_host)
                self._stream.synchronize()
                return host
            coming: deque[tuple[int, int, int, Any]] = deque()

            def arrive() -> None:
                start, begin, nbytes, event = coming.popleft()
                event.synchronize()
                target[start : start + nbytes] = ring.host[begin : begin + nbytes]
                ring.events.append(event)

            for k, start in enumerate(range(0, target.size, COPY_BYTES)):
                if len(coming) == 2:
                    arrive()
                begin, nbytes = k % 2 * COPY_BYTES, min(COPY_BYTES, target.size - start)
                self._copy(ring.address + begin, place + start, nbytes, to_host)
                event = ring.event()
                event.record(self._stream)
                coming.append((start, begin, nbytes, event))
            while coming:
                arrive()
        return host

    def close(self) -> None:
        """Wait for what is on its way, and let go of the memory."""
        with self._lock:
            try:
                if self._apart is not None:
                    self._apart[1].synchronize()
            finally:
                self._uploads = self._downloads = self._apart = None

    def _copy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        if nbytes:
            self._runtime.memcpyAsync(target, source, nbytes, kind, self._stream.ptr)

    def _fill(self, ring: _Ring, source: np.ndarray[Any, Any]) -> int:
        begin = ring.take(source.size)
        ring.host[begin : begin + source.size] = source
        return begin

    def _ring(self, ring: _Ring | None, nbytes: int, large: int) -> _Ring | None:
        """The ring for an array of a size, in place of a smaller one; None where there may be none as large."""
        wanted = SMALL_RING if nbytes <= DIRECT_BYTES else large
        if ring is not None and ring.size >= wanted:
            return ring
        if ring is not None:
            ring.settle()
        more = wanted - (0 if ring is None else ring.size)
        if not self._admits(more, on_device=False):
            return None
        try:
            return _Ring(self._cupy, wanted)
        except self._runtime.CUDARuntimeError as error:
            self._admit(-more, False)
            if error.status != _MEMORY_ALLOCATION:
                raise
            return None

    def _admits(self, nbytes: int, *, on_device: bool) -> bool:
        try:
            self._admit(nbytes, on_device)
        except QuotaError:
            return False
        return True

    def _memory_apart(self, nbytes: int) -> tuple[Any, Any] | None:
        """Device memory as large as the ring, and the stream that fills it; None where there may be none."""
        if self._apart is None:
            if not self._admits(nbytes, on_device=True):
                return None
            try:
                memory, stream = self._cupy.cuda.alloc(nbytes), self._cupy.cuda.Stream(non_blocking=True)
            except BaseException:
                self._admit(-nbytes, True)
                raise
            # The session's stream may still use an array that had this memory before.
            stream.wait_event(self._stream.record())
            self._apart = memory, stream
        return self._apart
