"""Gradients that add rows up at positions: on the device too in the rows' order, so that runs agree to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.compute import ArraySpec
from opbox_ops.cuda import rows as rows_kernel
from opbox_ops.cuda.rows import add_in_order, adding_temps, window_of
from opbox_ops.index.added_rows import add_rows, add_rows_temps


def added(cupy: Any, where: Any, rows: Any, total: Any) -> Any:
    """The sums that the device has, from scratch full of rubbish."""
    on_device = cupy.asarray(total)
    temps = adding_temps(*rows.shape, len(total), total.dtype)
    scratch = [cupy.full(temp.shape, 77, temp.dtype) for temp in temps]
    assert add_in_order(cupy, cupy.asarray(where), cupy.asarray(rows), on_device, scratch)
    return backend_for("gpu:0").get(on_device)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("count", "width", "size"), [(1, 1, 1), (300, 1, 7), (257, 130, 20), (40, 300, 500)])
def test_rows_are_added_in_their_order(gpu: Any, cupy: Any, dtype: str, count: int, width: int, size: int) -> None:
    rng = np.random.default_rng(0)
    where = rng.integers(0, size, count)
    rows, total = (rng.normal(size=(n, width)).astype(dtype) for n in (count, size))
    got = added(cupy, where, rows, total)
    assert np.bincount(where).max() <= window_of(count)
    for position, row in zip(where, rows, strict=True):
        total[position] += row
    np.testing.assert_array_equal(got, total)


POSITIONS = {
    "all at one": lambda rng, n: np.full(n, 3),
    "half at the first": lambda rng, n: np.where(np.arange(n) % 2, rng.integers(1, 50, n), 0),
    "half at the last": lambda rng, n: np.where(np.arange(n) % 2, rng.integers(0, 49, n), 49),
    "two, from the middle of a window": lambda rng, n: np.where(np.arange(n) < n // 2 + 17, 11, 12),
    "just a window each": lambda rng, n: np.arange(n) // 64 % 50,
    "one more than a window": lambda rng, n: np.arange(n) // 65 % 50,
}


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("count", [64, 65, 640, 2500])
def test_many_rows_of_one_position_are_added_in_pieces(gpu: Any, cupy: Any, name: str, count: int) -> None:
    rng = np.random.default_rng(0)
    where = POSITIONS[name](rng, count)
    rows, total = (rng.normal(size=(n, 5)) for n in (count, 50))
    first, second = (added(cupy, where, rows, total) for _ in range(2))
    np.testing.assert_array_equal(second, first)
    np.add.at(total, where, rows)
    # Sums of up to 2,500 numbers around 1, in another order.
    np.testing.assert_allclose(first, total, rtol=0, atol=1e-11)


def test_rows_that_are_columns_of_another_array(gpu: Any, cupy: Any) -> None:
    rows, where = np.arange(24.0).reshape(4, 6), np.array([1, 0, 1, 1, 0, 1])
    on_device = cupy.zeros((2, 4))
    temps = [cupy.zeros(temp.shape, temp.dtype) for temp in adding_temps(6, 4, 2, "float64")]
    assert add_in_order(cupy, cupy.asarray(where), cupy.asarray(rows).T, on_device, temps)
    np.testing.assert_array_equal(cupy.asnumpy(on_device), [rows.T[where == k].sum(0) for k in (0, 1)])


def test_nothing_is_added_to_nothing(gpu: Any, cupy: Any) -> None:
    assert add_in_order(cupy, cupy.zeros(0, "int64"), cupy.zeros((0, 3), "f"), cupy.zeros((4, 3), "f"), ())


def test_no_thread_goes_through_many_rows() -> None:
    for count in (1, 1 << 15, 1 << 20, 1 << 24):
        assert window_of(count) <= 4096
        assert -(-count // window_of(count)) <= 4096


def test_scratch_is_bounded() -> None:
    spec = [ArraySpec(shape, np.dtype("float32")) for shape in ((1 << 20, 512), (50_000, 512))]
    temps = add_rows_temps("gpu", 1 << 20, *spec, sorts=True)
    # Of a sort 16 bytes a row and counts, and a piece for each window.
    assert sum(np.prod(t.shape, dtype=int) * np.dtype(t.dtype).itemsize for t in temps) < (1 << 20) * (
        18 + 512 * 4 / 256
    )


def test_other_types_are_added_by_the_library(gpu: Any, cupy: Any) -> None:
    where, rows = np.arange(20) % 3, np.ones((20, 2), "f")
    total, spec = cupy.zeros((3, 2), "float16"), ArraySpec((20, 2), np.dtype("float16"))
    assert not rows_kernel.adding_temps(20, 2, 3, "float16")
    temps = add_rows_temps("gpu", 20, spec, ArraySpec((3, 2), np.dtype("float16")))
    scratch = [cupy.zeros(temp.shape, temp.dtype) for temp in temps]
    add_rows(cupy, cupy.asarray(where), cupy.asarray(rows.astype("float16")), total, scratch)
    np.testing.assert_array_equal(cupy.asnumpy(total), [[7, 7], [7, 7], [6, 6]])
