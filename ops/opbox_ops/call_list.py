"""Calls that a kernel is bound to, with the copies before them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .compute import Array
from .pausing import pause

__all__ = ["CallList"]


class CallList:
    """Calls, made one after the other."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def copy(self, target: Array, source: Array) -> None:
        """Append a copy."""
        self.calls.append(lambda: np.copyto(target, source))

    def contiguous(self, array: Array) -> Array:
        """The array, or a contiguous one that it is copied to before they run."""
        if array.flags.c_contiguous:
            return array
        copy = np.empty(array.shape, array.dtype)
        self.copy(copy, array)
        return copy

    def __call__(self) -> None:
        for number, call in enumerate(self.calls):
            if number:  # before the first the plan has looked itself
                pause()
            call()
