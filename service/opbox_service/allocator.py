"""Sets the allocator of an engine's process: large blocks stay mapped, and there may be a limit to all of them."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

__all__ = ["cap_memory", "tune_allocator"]

BEYOND = 2 << 30
"""Bytes beyond what is counted: threads' stacks, caches, what operators take in passing and freed blocks between."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def tune_allocator() -> None:
    """Keep freed blocks for reuse instead of unmapping them: glibc's habit costs page faults on every large call.

    Both thresholds together; either alone makes large requests slower. 32 MiB is the most that glibc takes for the
    first. What idles is given back by `session.sessions.return_memory`.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def cap_memory(nbytes: int) -> None:
    """Let this process take so many bytes more, and some: past that an allocation fails, for the call that makes it.

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
