"""Sorting whole numbers on the device: rows of one block and of many, equal numbers in their order, unsigned ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda import radix_sort as radix
from opbox_ops.cuda.radix_sort import bits_for, radix_sort, radix_temps


def sorted_rows(cupy: Any, keys: Any, bits: int) -> tuple[Any, Any]:
    """The rows sorted, and the order, from scratch full of rubbish."""
    backend = backend_for("gpu:0")
    temps = [cupy.full(temp.shape, 77, temp.dtype) for temp in radix_temps(*keys.shape, bits)]
    temps[0][...] = cupy.asarray(keys.view(np.int32))
    calls, moved, order = radix_sort(cupy, temps, bits)
    for call in calls:
        call()
    return backend.get(moved).view(np.uint32), backend.get(order)


@pytest.mark.parametrize("largest", [0, 1, 300, 2**17 + 3, 2**32 - 1])
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (3, 700), (1, 2048), (1, 2049), (2, 5000)])
def test_rows_are_sorted_and_equal_numbers_keep_their_order(
    gpu: Any, cupy: Any, rows: int, n: int, largest: int
) -> None:
    keys = np.random.default_rng(0).integers(0, largest, (rows, n), np.uint32, endpoint=True)
    keys[:, n // 2 :] = largest  # half of them alike
    moved, order = sorted_rows(cupy, keys, bits_for(largest))
    expected = np.argsort(keys, axis=1, kind="stable")
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(moved, np.take_along_axis(keys, expected, 1))


def test_counts_of_more_tiles_than_a_block_has_threads(gpu: Any, cupy: Any) -> None:
    n = radix._TILE * (radix._THREADS + 2)
    keys = (np.arange(n, dtype=np.uint32) * 7919 % 5)[None]
    moved, order = sorted_rows(cupy, keys, 3)
    np.testing.assert_array_equal(order, np.argsort(keys, axis=1, kind="stable"))
    np.testing.assert_array_equal(moved, np.sort(keys, axis=1))


def test_many_short_rows_are_not_ranked_by_too_many_comparisons() -> None:
    assert radix._ranked(1, 2048)
    assert not radix._ranked(1, 2049)
    assert not radix._ranked(1 << 12, 2048)


def test_scratch_is_a_small_multiple_of_the_numbers() -> None:
    for rows, n in ((1, 100), (1, 1 << 20), (64, 3000), (1 << 12, 2048)):
        sizes = [np.prod(temp.shape, dtype=int) * np.dtype(temp.dtype).itemsize for temp in radix_temps(rows, n, 32)]
        # Twice the numbers and twice their order, and 256 counts for each 2,048, of which the last may be few.
        assert sum(sizes) <= rows * n * 16 + rows * 4 * 256 * (n // 2048 + 2)
