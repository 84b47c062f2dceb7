"""The type that sums, products and means are added up in, and arrays of it; the types of 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["NARROW", "accumulation_type", "is_narrow", "widened"]

NARROW = ("float16", "bfloat16")
"""The names of the floating types of 16 bits, whose numbers are computed and added up in float32."""


def is_narrow(dtype: Any) -> bool:
    """Return whether a NumPy dtype is one of NARROW."""
    return dtype.itemsize == 2 and dtype.name in NARROW


def accumulation_type(dtype: Any) -> np.dtype[Any]:
    """float32 for float16 and bfloat16, any other type itself: MXNet's rule.

    Example:
        >>> accumulation_type("float16")
        dtype('float32')
    """
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype.kind not in "iub" and dtype.itemsize < 4 else dtype


def widened(array: Any, wide: Any) -> Any:
    """The array, or `wide` with its values where the types differ: NumPy would convert it in memory of its own."""
    if array.dtype == wide.dtype:
        return array
    wide[...] = array
    return wide
