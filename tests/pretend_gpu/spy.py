"""What a run of a plan does to the device: launches, allocations, and what stream capture refuses."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Watch", "watched"]

CAPTURE_REFUSES = ("memcpy", "synchronize", "cublas", "thrust", "draw", "hostAlloc")
"""Kinds of calls that end a capture; `transfer` is a copy from or to the host."""


class Watch:
    """Counts of one block.

    Attributes:
        allocations: arrays that CuPy asked its pool for.
        calls: calls of the runtime by kind.
    """

    def __init__(self) -> None:
        self.allocations = 0
        self.calls: Any = {}

    @property
    def refused(self) -> dict[str, int]:
        """The calls that stream capture refuses."""
        return {kind: self.calls[kind] for kind in (*CAPTURE_REFUSES, "transfer") if self.calls[kind]}


@contextmanager
def watched() -> Iterator[Watch]:
    """Watch a block."""
    cupy: Any = importlib.import_module("cupy")
    device: Any = importlib.import_module("pretend_gpu.device")
    watch = Watch()

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc, name-defined]  # CuPy has no types
        name = "watch"

        def malloc_preprocess(self, **what: Any) -> None:
            watch.allocations += 1

    with device.recorded() as watch.calls, Hook():
        yield watch
