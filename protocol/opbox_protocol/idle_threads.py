"""Sets the time that the threads of NumPy's BLAS wait for more work before they sleep.

OpenBLAS's threads look for work for some 30 ms after a product. Those of oneDNN, which shares the cores, and other
processes get half of a core as long: ResNet-50 took twice its time for the one small product at its end.
"""

from __future__ import annotations

import os
import sys

__all__ = ["IdleThreads", "let_blas_threads_sleep"]

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
TICKS = 16
"""2**16 ticks of the processor's clock, some 25 us; OpenBLAS's own choice is 2**26."""


class IdleThreads:
    """The result of `let_blas_threads_sleep`.

    Attributes:
        too_late: whether NumPy had been imported before it set the variable, which OpenBLAS reads at that moment.
    """

    too_late = False


def let_blas_threads_sleep() -> None:
    """Let OpenBLAS's threads sleep soon after their work; call it before NumPy is imported."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = str(TICKS)
        IdleThreads.too_late = "numpy" in sys.modules
