"""Gradients that add rows up at positions: on the device too in the rows' order, so that runs agree to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.cuda import rows as rows_kernel
from opbox_ops.cuda.rows import add_in_order
from opbox_ops.index.added_rows import add_rows


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("count", "width", "size"), [(1, 1, 1), (300, 1, 7), (257, 130, 20), (40, 300, 500)])
def test_rows_are_added_in_their_order(gpu: Any, cupy: Any, dtype: str, count: int, width: int, size: int) -> None:
    rng = np.random.default_rng(0)
    where = rng.integers(0, size, count)
    rows, total = (rng.normal(size=(n, width)).astype(dtype) for n in (count, size))
    on_device = cupy.asarray(total)
    assert add_in_order(cupy, cupy.asarray(where), cupy.asarray(rows), on_device)
    for position, row in zip(where, rows, strict=True):
        total[position] += row
    np.testing.assert_array_equal(cupy.asnumpy(on_device), total)


def test_nothing_is_added_to_nothing(gpu: Any, cupy: Any) -> None:
    assert add_in_order(cupy, cupy.zeros(0, "int64"), cupy.zeros((0, 3), "f"), cupy.zeros((4, 3), "f"))


def test_more_rows_are_added_by_atomics(gpu: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    where, rows = np.arange(20) % 3, np.ones((20, 2), "f")
    arrays = [cupy.asarray(array) for array in (where, rows)]
    nothing = [cupy.zeros(0, dtype) for dtype in ("int64", "int64", "f", "f")]
    backend = backend_for("gpu:0")
    totals = []
    for most in (rows_kernel.MAX_ROWS, 10):
        monkeypatch.setattr(rows_kernel, "MAX_ROWS", most)
        assert add_in_order(cupy, *arrays, cupy.zeros((3, 2), "f")) == (most > 10)
        total = cupy.zeros((3, 2), "f")
        add_rows(cupy, *arrays, total, nothing)
        totals.append(backend.get(total))
    np.testing.assert_array_equal(totals[0], [[7, 7], [7, 7], [6, 6]])
    np.testing.assert_array_equal(totals[1], totals[0])
