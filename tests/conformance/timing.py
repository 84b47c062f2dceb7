"""How long a call takes, on a machine that does other things as well. Imported by MXNet's Python too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["least_time"]

SLICE = 1e-3
"""Seconds that a process mostly runs without interruption."""


def least_time(run: Callable[[], Any], seconds: float) -> float:
    """The least seconds of a call that is repeated for about `seconds`, and once before.

    By the clock where that is less than SLICE, which waiting for another thread counts for; by the processor's time of
    the whole process otherwise, for a longer call is interrupted by what else the machine does.
    """
    run()
    by_clock = by_processor = float("inf")
    end = time.perf_counter() + seconds
    while True:
        start, used = time.perf_counter(), time.process_time()
        run()
        stop = time.perf_counter()
        by_processor = min(by_processor, time.process_time() - used)
        by_clock = min(by_clock, stop - start)
        if stop > end:
            return by_clock if by_clock < SLICE else by_processor
