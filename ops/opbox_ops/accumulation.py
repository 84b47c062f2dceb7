"""The type that sums, products and means are added up in."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["accumulation_type"]


def accumulation_type(dtype: Any) -> np.dtype[Any]:
    """float32 for float16 and bfloat16, any other type itself: MXNet's rule.

    Example:
        >>> accumulation_type("float16")
        dtype('float32')
    """
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if dtype.kind not in "iub" and dtype.itemsize < 4 else dtype
