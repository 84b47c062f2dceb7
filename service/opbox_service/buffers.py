"""Transfer buffers: where a request's body is received and an answer is laid out, reused from call to call.

Fresh memory costs page faults (a quarter of the time of a large request), so buffers are kept for a while. With worker
processes they are anonymous shared memory (memfd): no name in /dev/shm that a crash could leave behind, no limit of
a container's /dev/shm, gone with the last process that maps them.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import mmap
import os
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from opbox_protocol.errors import NotReadyError

from .sealed_files import SIZE_SEALS, check_sealed

__all__ = ["INLINE", "Lease", "Pool", "Segment", "map_shared", "unmap"]

SMALLEST = 1 << 16
INLINE = 1 << 15
"""Bodies up to this many bytes travel inside a message, without a buffer."""
LARGE = 4 << 20
"""Buffers of at least this many bytes are unmapped by a thread."""
KEEP_S = 30.0
"""Seconds after which an unused buffer is freed."""

_numbers = itertools.count(1)


def size_class(nbytes: int) -> int:
    """The size of the buffer for `nbytes`: four steps to each power of two, so that little is wasted."""
    if nbytes <= SMALLEST:
        return SMALLEST
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


class Segment:
    """A buffer; `fd` is None if it is private to this process."""

    __slots__ = ("fd", "idle_since", "memory", "number", "sent", "size")

    def __init__(self, size: int, shared: bool) -> None:
        self.number = next(_numbers)
        self.size = size
        self.idle_since = 0.0
        self.sent = False
        self.fd: int | None = None
        if shared:
            self.fd = os.memfd_create(f"opbox-{self.number}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, size)
            # Cut short by the other side, it would end whoever reads on.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SIZE_SEALS | fcntl.F_SEAL_SEAL)
            self.memory = mmap.mmap(self.fd, size)
        else:
            self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if size >= 1 << 22 and hasattr(mmap, "MADV_HUGEPAGE"):
                self.memory.madvise(mmap.MADV_HUGEPAGE)

    def discard(self) -> None:
        """Free the memory: at once, or when the last view of it goes."""
        fd, self.fd = self.fd, None
        _free(self.memory, fd)


class Lease:
    """A buffer of at least the size asked for, until `release`."""

    __slots__ = ("_pool", "segment", "view")

    def __init__(self, pool: Pool, segment: Segment, nbytes: int) -> None:
        self._pool: Pool | None = pool
        self.segment = segment
        self.view = memoryview(segment.memory)[:nbytes]

    def release(self) -> None:
        """Return the buffer to its pool. Calling it twice is safe."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with contextlib.suppress(BufferError):
                self.view.release()
            pool.put_back(self.segment)


class Pool:
    """Buffers, the last used taken first.

    Args:
        shared: whether other processes will map them.
        limit: the most bytes lent at a time; NotReadyError past that.
        keep: the most bytes kept idle.
        keep_s: seconds that they are kept unused.
    """

    def __init__(self, *, shared: bool, limit: int, keep: int, keep_s: float = KEEP_S) -> None:
        self._shared = shared
        self._limit = limit
        self._keep = keep
        self._keep_s = keep_s
        self._idle: dict[int, list[Segment]] = {}
        self._idle_bytes = 0
        self._dropped: list[int] = []
        self._lock = Lock()
        self._closed = False
        self.lent_bytes = 0

    def lease(self, nbytes: int) -> Lease:
        """A buffer of `nbytes`, its contents undefined."""
        size = size_class(nbytes)
        with self._lock:
            if self.lent_bytes + size > self._limit:
                raise NotReadyError(
                    f"transfer buffers: expected at most {self._limit} bytes in use, got {self.lent_bytes} and "
                    f"{nbytes} more: try again in a moment"
                )
            self.lent_bytes += size
            free = self._idle.get(size)
            segment = free.pop() if free else None
            if segment is not None:
                self._idle_bytes -= size
        if segment is None:
            try:
                segment = Segment(size, self._shared)
            except OSError as error:
                with self._lock:
                    self.lent_bytes -= size
                raise NotReadyError(
                    f"transfer buffers: the system has no room ({error.strerror}): try again later"
                ) from None
        return Lease(self, segment, nbytes)

    def put_back(self, segment: Segment) -> None:
        """Take a buffer back (see Lease.release)."""
        segment.idle_since = time.monotonic()
        with self._lock:
            self.lent_bytes -= segment.size
            if self._closed or segment.size > self._keep:
                self._drop(segment)
                return
            self._idle.setdefault(segment.size, []).append(segment)
            self._idle_bytes += segment.size
            if self._idle_bytes > self._keep:
                self._trim_to(self._keep)

    def sweep(self) -> list[int]:
        """Drop what has long been idle; the numbers of all buffers dropped since the last time, for who maps them."""
        horizon = time.monotonic() - self._keep_s
        with self._lock:
            for size, free in list(self._idle.items()):
                while free and free[0].idle_since < horizon:
                    self._idle_bytes -= size
                    self._drop(free.pop(0))
            dropped, self._dropped = self._dropped, []
            return dropped

    def close(self) -> None:
        """Drop all that is idle, and what is lent as it comes back."""
        with self._lock:
            self._closed = True
            self._trim_to(0)

    def _trim_to(self, nbytes: int) -> None:
        oldest_first = sorted((s for free in self._idle.values() for s in free), key=lambda s: s.idle_since)
        for segment in oldest_first:
            if self._idle_bytes <= nbytes:
                break
            self._idle[segment.size].remove(segment)
            self._idle_bytes -= segment.size
            self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        self._dropped.append(segment.number)
        segment.discard()


def unmap(view: memoryview) -> None:
    """Unmap what `map_shared` mapped: at once, or when the last view of it goes."""
    memory = view.obj
    with contextlib.suppress(BufferError):
        view.release()
    if isinstance(memory, mmap.mmap):
        _free(memory, None)


def _free(memory: mmap.mmap, fd: int | None) -> None:
    """Unmap, by a thread where that takes long: a tenth of a second for a GiB."""

    def work() -> None:
        if fd is not None:
            os.close(fd)
        with contextlib.suppress(BufferError):
            memory.close()

    if len(memory) < LARGE:
        work()
        return
    with contextlib.suppress(RuntimeError):  # the program ends, and all memory with it
        _freeing().submit(work)


@functools.cache
def _freeing() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "opbox-unmap")


def map_shared(fd: int) -> memoryview:
    """Map another process's buffer; `fd` is closed.

    Raises:
        OSError: the system has no room.
        ValueError: it is no shared memory, or could be cut short while it is read.
    """
    try:
        if not check_sealed(fd, SIZE_SEALS):
            raise ValueError("a shared buffer: expected bytes in it, got none")
        return memoryview(mmap.mmap(fd, 0))
    finally:
        os.close(fd)
