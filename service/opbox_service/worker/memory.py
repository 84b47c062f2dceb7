"""Tuning and reading a process's memory."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

__all__ = ["resident_bytes", "tune_allocator"]

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


def resident_bytes(pid: int | None = None) -> int:
    """The resident memory of a process, shared pages included; 0 where that cannot be read."""
    try:
        pages = Path(f"/proc/{pid or os.getpid()}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
