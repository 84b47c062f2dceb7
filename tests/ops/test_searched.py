"""Searching rows of ascending numbers: NumPy's searchsorted, row by row, without an allocation."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.index.searched import search_rows, search_rows_temps
from tests.allocations import counted


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 100])
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8"])
def test_places_are_those_of_searchsorted(size: int, dtype: str) -> None:
    rng = np.random.default_rng(size)
    numbers = np.sort(rng.integers(0, 50, (3, size)), axis=1).astype(dtype)
    values = rng.integers(0, 52, (3, 40)).astype(dtype)
    places = np.empty(values.shape, "int64")
    temps = [np.empty(temp.shape, temp.dtype) for temp in search_rows_temps((3, 40), dtype)]
    with counted() as sizes:
        search_rows(np, numbers, values, places, temps)
    assert not sizes
    for row, wanted, got in zip(numbers, values, places, strict=True):
        assert got.tolist() == np.searchsorted(row, wanted, side="right").tolist()


def test_infinite_numbers_and_nan() -> None:
    numbers = np.array([[-np.inf, 0, np.inf]])
    values = np.array([[-np.inf, 1, np.inf, np.nan]])
    places = np.empty(values.shape, "int64")
    search_rows(np, numbers, values, places, [np.empty(t.shape, t.dtype) for t in search_rows_temps((1, 4), "float64")])
    assert places.tolist() == [[1, 2, 3, 0]]
