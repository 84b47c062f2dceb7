"""The interface of a device backend: memory, kernels, random numbers and memory reports of one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

import numpy as np

from .random import RandomSource

__all__ = ["ALIGNMENT", "Admit", "Backend", "RecordedCalls", "admit_all"]

Admit: TypeAlias = Callable[[int, bool], None]
"""Counts bytes that are about to be allocated, on the device or page-locked on the host; QuotaError when too many.

Fewer than none were not allocated in the end.
"""


def admit_all(nbytes: int, on_device: bool) -> None:
    """Nobody counts."""


ALIGNMENT = 64
"""Bytes: the arena's start and every array in it are aligned to this (a cache line, a vector register)."""


class RecordedCalls(Protocol):
    """Calls that a device has recorded, as one that replays their work."""

    def __call__(self) -> None: ...

    @property
    def is_stale(self) -> bool:
        """True if the calls would do their work in another way now."""


class Backend(Protocol):
    """A device: its array module and its memory."""

    device_type: str
    """"cpu" or "gpu": the key of FCompute."""
    xp: Any
    special: Any
    """scipy.special's functions, or what stands for them beside `xp`."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised contiguous array; aligned, unless it is small.

        It may contain what another owner's array had: the caller overwrites it before anybody else can read it.
        """

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """A contiguous array of zeros, aligned as those of `empty`."""

    def view(
        self, arena: Any, offset: int, shape: tuple[int, ...], dtype: Any, strides: tuple[int, ...] | None = None
    ) -> Any:
        """An array of `shape` and `dtype` inside `arena` (one-dimensional uint8), `offset` bytes in.

        With `strides`, in bytes, `arena` may be any contiguous array.
        """

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        """A device copy of a host array."""

    def write(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        """Copy a host array into a device array of the same shape, casting if need be."""

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        """A contiguous host copy (on the CPU the array itself when it is contiguous)."""

    def random(self, seed: int) -> RandomSource:
        """Random numbers on this device."""

    def memory(self) -> tuple[int, int]:
        """Bytes of the device's memory that all programs have, and bytes that there are."""

    def synchronize(self) -> None:
        """Wait for everything that was queued on this device."""

    def scope(self) -> AbstractContextManager[None]:
        """The block in which this is the device that arrays are made on and kernels run on."""

    def capture(self, calls: Sequence[Callable[[], Any]]) -> RecordedCalls | None:
        """Record the device work of `calls` as one call that replays it; None where the device cannot record it.

        Recording runs nothing. Every call has run before, and must do the same work in the same memory each time.
        """

    def give_back(self) -> None:
        """Return memory that this process keeps to spare to the device, for other processes."""

    def for_session(self, admit: Admit = admit_all) -> Backend:
        """Return a backend of this device with a queue of its own, so that a session waits for no other session's work.

        Its arrays are used in its scope alone, until `close`.

        Args:
            admit: asked before the backend allocates memory that no array has; it keeps that until `close`.
        """

    def close(self) -> None:
        """Wait for what a session's queue has still to do, and return the memory that it kept to spare."""
