"""Tolerances for comparing two results: the differences that rounding explains, by element type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = [
    "default_atols",
    "default_numeric_eps",
    "default_rtols",
    "effective_dtype",
    "get_atol",
    "get_etol",
    "get_rtol",
    "get_tolerance",
    "get_tols",
]

_EXACT = ("bool", "int8", "uint8", "int32", "uint32", "int64", "uint64")
_RELATIVE = {"float16": 1e-2, "float32": 1e-4, "float64": 1e-5}
_ABSOLUTE = {"float16": 1e-1, "float32": 1e-3, "float64": 1e-20}
# Powers of two: adding one to an input loses no bits.
_STEPS = {"float16": 2.0**-6, "float32": 2.0**-9, "float64": 2.0**-14}


def _by_dtype(table: Mapping[str, float]) -> dict[np.dtype[Any], float]:
    return {np.dtype(name): table.get(name, 0) for name in (*table, *(_EXACT if table is not _STEPS else ()))}


def default_rtols() -> dict[np.dtype[Any], float]:
    """Relative tolerances by element type."""
    return _by_dtype(_RELATIVE)


def default_atols() -> dict[np.dtype[Any], float]:
    """Absolute tolerances by element type."""
    return _by_dtype(_ABSOLUTE)


def default_numeric_eps() -> dict[np.dtype[Any], float]:
    """Steps of finite differences by element type."""
    return _by_dtype(_STEPS)


def effective_dtype(dat: Any) -> np.dtype[Any]:
    """The element type whose precision an array has; of plain numbers, numpy's."""
    dtype = getattr(dat, "dtype", None)
    return np.dtype(dtype) if dtype is not None else np.asarray(dat).dtype


def get_tolerance(dat: Any, tol: Any, default_tol: Mapping[np.dtype[Any], float]) -> float:
    """The tolerance for an array: `tol` if it is a number, else what it or the default says of the array's type."""
    if tol is not None and not isinstance(tol, Mapping):
        return float(tol)
    dtype = effective_dtype(dat)
    by_dtype = {np.dtype(key): value for key, value in (tol or {}).items()}
    return float(by_dtype.get(dtype, default_tol.get(dtype, 0.0)))


def get_tols(x: Any, y: Any, rtol: Any, atol: Any) -> tuple[float, float]:
    """(rtol, atol) for comparing two arrays: the looser of what their types ask for."""
    return (
        max(get_tolerance(one, rtol, default_rtols()) for one in (x, y)),
        max(get_tolerance(one, atol, default_atols()) for one in (x, y)),
    )


def get_rtol(rtol: float | None = None, dtype: Any = np.float64) -> float:
    """`rtol`, or the default of an element type."""
    return default_rtols()[np.dtype(dtype)] if rtol is None else rtol


def get_atol(atol: float | None = None, dtype: Any = np.float64) -> float:
    """`atol`, or the default of an element type."""
    return default_atols()[np.dtype(dtype)] if atol is None else atol


def get_etol(etol: float | None = None) -> float:
    """`etol`, the share of elements that may differ, or none."""
    return 0.0 if etol is None else etol
