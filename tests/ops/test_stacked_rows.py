"""Rows of several arrays below one another, and their sums: by NumPy and by the C kernel, to the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.cpu.algorithms import stacked_rows as module
from opbox_ops.cpu.algorithms.stacked_rows import new_kernel, stacked_rows
from opbox_ops.nn.shared_product import stacked_by
from tests.switches import set_c_kernels

from .thread_counts import assert_same_bits


@pytest.mark.parametrize("adds", [False, True], ids=["sums", "adds"])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [([1], 1), ([3, 0, 2], 5), ([32] * 8, 1024), ([7, 9], 700), ([1, 600], 256), ([0], 4), ([5, 5], 257)],
    ids=str,
)
def test_rows_and_sums(monkeypatch: pytest.MonkeyPatch, rows: list[int], columns: int, adds: bool) -> None:
    numbers = np.random.default_rng(0)
    arrays = [numbers.standard_normal((count, columns), dtype=np.float32) for count in rows]
    if rows[0] > 1:
        arrays[0][1, 0] = np.nan
    before, expected = numbers.standard_normal(columns, dtype=np.float32), np.concatenate(arrays)
    results = []
    for mode in ("0", "now", "reference"):
        set_c_kernels(monkeypatch, "now" if mode == "now" else "0")
        monkeypatch.setattr(module, "_KERNEL", new_kernel())
        target = np.full_like(expected, np.nan)
        sums, part = before.copy(), np.empty_like(before) if adds else None
        function = stacked_by(np) if mode == "reference" else stacked_rows
        function(target, arrays, sums, part)()
        np.testing.assert_array_equal(target, expected)
        results.append(sums)
        target[:] = np.nan
        function(target, arrays, None, None)()
        np.testing.assert_array_equal(target, expected)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    truth = expected.sum(axis=0, dtype=np.float64) + (before if adds else 0)
    np.testing.assert_allclose(results[0], truth, rtol=1e-4, atol=1e-3)  # sums of float32, one after the other


def test_other_shapes() -> None:
    """Arrays of more axes are rows of all their numbers."""
    arrays = [np.arange(24, dtype=np.float32).reshape(2, 3, 4), np.ones((1, 3, 4), np.float32)]
    target = np.empty((3, 12), np.float32)
    stacked_rows(target, arrays)()
    np.testing.assert_array_equal(target, np.concatenate(arrays).reshape(3, 12))


BITS = """
import numpy as np
from opbox_ops.cpu.algorithms.stacked_rows import stacked_rows
arrays = [np.random.default_rng(i).standard_normal((40, 1000), dtype=np.float32) for i in range(5)]
target, sums = np.zeros((200, 1000), np.float32), np.zeros(1000, np.float32)
stacked_rows(target, arrays, sums)()
print(target.tobytes().hex() + sums.tobytes().hex())
"""


def test_bits_do_not_depend_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    set_c_kernels(monkeypatch, "now")
    assert assert_same_bits(BITS).strip()
