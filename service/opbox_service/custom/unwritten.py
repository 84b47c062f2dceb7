"""Finds outputs that a user's operator has not written to.

Before a call an output is filled (`fill_value`), so that no old memory is taken for a result. Then a few elements get a
pattern that no arithmetic makes, and after the call those that still have it are put back. An output whose marks are
all left was not written.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from opbox_ops.compute import Array

__all__ = ["Mark", "fill_value", "mark_of"]

MARKS = 64
"""Maximum number of marked elements: all of a small array, both ends of a larger one."""
PATTERNS = {
    "float16": 0x7DA5,
    "bfloat16": 0x7FA5,
    "float32": 0x7FA5A5A5,
    "float64": 0x7FF5A5A5A5A5A5A5,
    "int32": 0xA5A5A5A5,
    "int64": 0xA5A5A5A5A5A5A5A5,
}
"""Marker bits by element type: a NaN with a payload, or an improbable integer."""


def fill_value(dtype: Any) -> float:
    """Value of unwritten outputs: 0, or NaN with OPBOX_UNWRITTEN=nan for types that have it."""
    shows = os.environ.get("OPBOX_UNWRITTEN") == "nan"
    return float("nan") if shows and np.dtype(dtype).name in ("float16", "bfloat16", "float32", "float64") else 0.0


class Mark:
    """The marks in one output.

    Args:
        array: the output, contiguous, of a type in `PATTERNS`.
    """

    __slots__ = ("_array", "_before", "_bits", "_pattern", "_places")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array
        self._pattern = PATTERNS[array.dtype.name]
        self._bits = array.reshape(-1).view(f"u{array.itemsize}")
        self._places = np.unique(np.linspace(0, array.size - 1, min(MARKS, array.size)).astype(np.intp))
        self._before = self._bits[self._places]

    def put(self) -> None:
        """Mark the output; to be called before the user's code."""
        self._before = self._bits[self._places]
        self._bits[self._places] = self._pattern

    def take(self) -> bool:
        """Remove the marks, after the user's code; True if that wrote nothing."""
        left = self._bits[self._places] == self._pattern
        if left.any():
            self._bits[self._places[left]] = self._before[left]
        return bool(left.all())


def mark_of(array: Array) -> Mark | None:
    """The marks for an output; None where it can have none."""
    if not isinstance(array, np.ndarray) or array.dtype.name not in PATTERNS:
        return None
    return Mark(array) if array.size and array.flags.c_contiguous else None
