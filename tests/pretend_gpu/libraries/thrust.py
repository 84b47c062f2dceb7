"""Thrust: sorting by the last axis, of the types that CuPy's module takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..device import note, refuse, settle
from .memory import array_at

__all__ = ["functions"]

_TYPES = "bBhHiIlLqQefdFD?"


def _start(name: str, dtype: Any) -> None:
    if np.dtype(dtype).char not in _TYPES:
        raise NotImplementedError(f"Sorting arrays with dtype '{np.dtype(dtype)}' is not supported")
    note("thrust", name)
    refuse("Thrust")
    settle()


def _sort(dtype: Any, data: int, keys: int, shape: Sequence[int]) -> None:
    _start("sort", dtype)
    array_at(data, dtype, *shape).sort(axis=-1, kind="stable")


def _argsort(dtype: Any, index: int, data: int, keys: int, shape: Sequence[int]) -> None:
    _start("argsort", dtype)
    order = np.argsort(array_at(data, dtype, *shape), axis=-1, kind="stable")
    array_at(index, np.intp, *shape)[...] = order


def _lexsort(dtype: Any, index: int, keys: int, k: int, n: int) -> None:
    _start("lexsort", dtype)
    array_at(index, np.intp, n)[...] = np.lexsort(array_at(keys, dtype, k, n))


def functions() -> dict[str, Any]:
    """The names of CuPy's module."""
    return {
        "available": True,
        "get_build_version": lambda: 1,
        "sort": _sort,
        "argsort": _argsort,
        "lexsort": _lexsort,
    }
