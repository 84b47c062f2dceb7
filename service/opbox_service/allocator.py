"""The allocator of an engine's process: large blocks stay mapped, what is freed goes back to the system after a while,
and there may be a limit to all of them."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from opbox_protocol.collector import collect

__all__ = ["FreedMemory", "cap_memory", "return_memory", "tune_allocator"]

BEYOND = 2 << 30
"""Bytes allowed beyond counted memory: stacks, caches, temporaries of operators, freed blocks."""

RETURN_S = 1.0
"""Seconds between two searches for freed memory. A search holds the interpreter's lock."""
RETURN_BYTES = 64 << 20
"""Freed bytes from which on a search starts at once."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def tune_allocator() -> None:
    """Keep freed blocks for reuse instead of unmapping them: glibc's habit costs page faults on every large call.

    Both thresholds together; either alone makes large requests slower. 32 MiB is the most that glibc takes for the
    first. What idles is given back by `return_memory`, which does not reach the end of a thread's own heap: all threads
    share one. They allocate with the interpreter's lock, mostly, and so do not wait for each other's.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)
        mallopt(_M_ARENA_MAX, 1)


def return_memory() -> None:
    """Give freed memory back to the system; glibc keeps it for reuse otherwise."""
    collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


class FreedMemory:
    """Memory that has been freed, until it is returned to the system. Safe to use from many threads."""

    def __init__(self) -> None:
        self._returned = float("-inf")
        self._nbytes: int | None = None
        self._awaited: list[tuple[int, weakref.ref[Any]]] = []
        self._lock = threading.Lock()

    def add(self, nbytes: int) -> None:
        """Count `nbytes` as freed."""
        with self._lock:
            self._nbytes = (self._nbytes or 0) + nbytes

    def add_with(self, nbytes: int, holder: Any) -> None:
        """Count `nbytes` as freed once `holder`, which keeps them, is collected."""
        with self._lock:
            self._awaited.append((nbytes, weakref.ref(holder)))

    def return_in_time(self) -> None:
        """Return it, if there is any: at once where it is much, or none has been returned in the last second."""
        self._note_gone()
        if self._nbytes is None:
            return
        if self._nbytes >= RETURN_BYTES or time.monotonic() - self._returned >= RETURN_S:
            self.return_all()

    def return_all(self) -> None:
        """Return freed memory to the system, if there is any."""
        self._note_gone()
        with self._lock:
            nbytes, self._nbytes = self._nbytes, None
        if nbytes is None:
            return
        return_memory()
        self._returned = time.monotonic()

    def _note_gone(self) -> None:
        """Count what collected holders have freed since the last call."""
        if not self._awaited:
            return
        with self._lock:
            gone = sum(nbytes for nbytes, holder in self._awaited if holder() is None)
            self._awaited = [entry for entry in self._awaited if entry[1]() is not None]
            if gone:
                self._nbytes = (self._nbytes or 0) + gone


def cap_memory(nbytes: int) -> None:
    """Limit this process to `nbytes` more, plus a reserve; allocations beyond that fail.

    The ledger refuses first; this is for what no ledger sees, such as a library's own temporaries. Without it the
    system would end the process, and with it everybody's sessions. Shared buffers are not in it.

    Args:
        nbytes: that arrays, plans and answers may take together.
    """
    if sys.platform != "linux":
        return
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = data + nbytes + max(BEYOND, nbytes // 8)
    if hard == resource.RLIM_INFINITY or most < hard:
        with contextlib.suppress(OSError, ValueError):  # a kernel without it
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
