"""What every device backend offers."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

__all__ = ["ALIGNMENT", "Backend", "RandomSource"]

ALIGNMENT = 64
"""Bytes: the arena's start and every array in it are aligned to this (a cache line, a vector register)."""


class RandomSource(Protocol):
    """Seeded random numbers, written into given arrays; the Philox generator on every device."""

    def seed(self, seed: int) -> None: ...

    def state(self) -> Any:
        """Where it is: what `restore` takes it back to."""

    def restore(self, state: Any) -> None:
        """Draw the same numbers again as after `state` was asked for; UnsupportedError where the library cannot."""

    def uniform(self, out: Any, low: Any = 0.0, high: Any = 1.0) -> None:
        """Fill `out` from [low, high)."""

    def normal(self, out: Any, loc: Any = 0.0, scale: Any = 1.0) -> None:
        """Fill `out` from the normal distribution."""

    @property
    def generator(self) -> Any:
        """The library's Generator, for other distributions."""


class Backend(Protocol):
    """A device: its array module and its memory."""

    device_type: str
    """"cpu" or "gpu": the key of FCompute."""
    xp: Any
    special: Any
    sparse: Any
    """scipy.sparse or its twin on the device."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An uninitialised contiguous array; aligned, unless it is small."""

    def view(self, arena: Any, offset: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of `shape` and `dtype` inside `arena` (one-dimensional uint8), `offset` bytes in."""

    def put(self, host: np.ndarray[Any, Any]) -> Any:
        """A device copy of a host array."""

    def write(self, target: Any, host: np.ndarray[Any, Any]) -> None:
        """Copy a host array into a device array of the same shape, casting if need be."""

    def get(self, array: Any) -> np.ndarray[Any, Any]:
        """A contiguous host copy (on the CPU the array itself when it is contiguous)."""

    def random(self, seed: int) -> RandomSource: ...

    def synchronize(self) -> None:
        """Wait for everything that was queued on this device."""
