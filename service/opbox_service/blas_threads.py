"""The threads of NumPy's BLAS in a process that imported NumPy before opbox, as most scripts do."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np

from opbox_protocol.idle_threads import IdleThreads

__all__ = ["restart_blas_threads"]


def restart_blas_threads() -> bool:
    """Make OpenBLAS read its waiting time again and restart its threads; return whether it does.

    It reads the variable when it is loaded. What is called here is what OpenBLAS itself calls around a fork: it is left
    alone where other threads of Python's may be in the middle of a product, and where NumPy has another library.
    """
    if not IdleThreads.too_late or threading.active_count() > 1:
        return False
    for path in Path(np.__file__).parents[1].glob("numpy.libs/*openblas*"):
        try:
            library = ctypes.CDLL(str(path))
            read, stop = library.openblas_read_env, library.blas_thread_shutdown_
        except (OSError, AttributeError):
            continue
        read()
        stop()
        IdleThreads.too_late = False
        return True
    return False
