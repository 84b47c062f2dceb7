"""Device memory as NumPy arrays."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

__all__ = ["array_at"]


def array_at(address: int, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    """The array at an address."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    if count == 0:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * (count * dtype.itemsize)).from_address(address), dtype).reshape(shape)
