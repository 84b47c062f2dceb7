"""Sizes and allocation of the executor's own arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opbox_ops.backend import Backend
from opbox_ops.compute import Array
from opbox_ops.infer import show_shape
from opbox_protocol.errors import LimitError

__all__ = ["allocate", "bytes_of"]


def bytes_of(shape: tuple[int, ...], dtype: Any) -> int:
    """The bytes of an array, as an exact integer."""
    nbytes: int = math.prod(shape) * np.dtype(dtype).itemsize
    return nbytes


def allocate(backend: Backend, shape: tuple[int, ...], dtype: Any, *, overwritten: bool = False) -> Array:
    """An array of zeros.

    Args:
        backend: the device.
        shape, dtype: of the array.
        overwritten: whether the caller writes all of it, or drops it, before anybody can fetch, save or move it: then
            it is uninitialised, and may contain another owner's values until it is written.

    Raises:
        LimitError: the device has not enough memory.
    """
    try:
        return backend.empty(shape, dtype) if overwritten else backend.zeros(shape, dtype)
    except (MemoryError, ValueError, OverflowError):  # NumPy tells sizes past its limits by the latter two
        needed = bytes_of(shape, dtype)
        if not needed:
            raise LimitError(
                f"shape {show_shape(shape)}: expected sizes whose product, zeros left out, is below 2**63, got more"
            ) from None
        raise LimitError(f"{needed:,} bytes do not fit into the device's memory") from None
