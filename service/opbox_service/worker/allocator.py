"""Sets glibc's allocator for a server: large blocks stay mapped, so that requests cause no page faults."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["tune_allocator"]

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
