"""Arrays cut out of one temporary, one behind the other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..compute import Array

__all__ = ["Space", "bytes_for"]

ALIGNED = 64
"""Bytes of a cache line, where arrays begin."""


def bytes_for(shape: tuple[int, ...], dtype: Any) -> int:
    """Return the bytes that an array takes of a space, its alignment included."""
    nbytes: int = math.prod(shape) * np.dtype(dtype).itemsize
    return -(-nbytes // ALIGNED) * ALIGNED


class Space:
    """See the module; `scratch` (bytes,) of uint8 is what it is cut from."""

    def __init__(self, scratch: Array) -> None:
        self._scratch = scratch
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """An uninitialised array."""
        at, nbytes = self._used, math.prod(shape) * np.dtype(dtype).itemsize
        self._used += bytes_for(shape, dtype)
        return self._scratch[at : at + nbytes].view(dtype).reshape(shape)
