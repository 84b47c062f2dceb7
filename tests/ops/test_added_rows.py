"""Rows added up at positions that recur: by the kernel, by NumPy, one after the other, all with the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.compute import ArraySpec
from opbox_ops.index import added_rows
from opbox_ops.index.added_rows import add_rows, add_rows_temps
from tests.allocations import counted
from tests.machine import has_compiler
from tests.switches import set_c_kernels


@pytest.fixture(params=["0", "now"], ids=["numpy", "kernel"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "now" and not has_compiler():
        pytest.skip("no C compiler")
    set_c_kernels(monkeypatch, request.param)
    return str(request.param)


def _add(where: Any, rows: Any, total: Any, *, fresh: bool) -> list[int]:
    """Add the rows; the sizes of what was allocated meanwhile."""
    spec = [ArraySpec(array.shape, array.dtype) for array in (rows, total)]
    temps = [np.full(temp.shape, 77, temp.dtype) for temp in add_rows_temps("cpu", len(where), *spec)]
    with counted() as sizes:
        add_rows(np, where, rows, total, temps, fresh=fresh)
    return sizes


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("count", [50, 500])
def test_rows_add_up_as_numpy_does(way: str, dtype: str, fresh: bool, contiguous: bool, count: int) -> None:
    rng = np.random.default_rng(0)
    where = rng.integers(0, 7, count)
    rows = rng.integers(-3, 4, (count, 5)).astype(dtype) if dtype != "uint8" else rng.integers(0, 4, (count, 5), dtype)
    if not contiguous:
        rows = np.repeat(rows, 2, axis=1)[:, ::2]
    total = np.ones((9, 5), dtype)
    wanted = np.zeros((9, 5), dtype) if fresh else np.ones((9, 5), dtype)
    np.add.at(wanted, where, rows)
    _add(where, rows, total, fresh=fresh)
    np.testing.assert_array_equal(total, wanted)


@pytest.mark.parametrize("width", [1, 3, 4, 64, 511, 512, 700])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_bits_are_those_of_one_row_after_the_other_and_nothing_is_allocated(
    way: str, width: int, dtype: str
) -> None:
    rng = np.random.default_rng(1)
    where, rows = rng.integers(0, 9, 800), rng.standard_normal((800, width)).astype(dtype)
    rows[3] = -0.0
    total = rng.standard_normal((30, width)).astype(dtype)
    wanted = total.copy()
    for position, row in zip(where, rows, strict=True):
        wanted[position] += row
    assert not _add(where, rows, total, fresh=False)
    assert total.tobytes() == wanted.tobytes()


def test_many_rows_are_added_in_pieces_between_which_others_may_run(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []
    monkeypatch.setattr(added_rows, "AT_ONCE", 640)
    monkeypatch.setattr(added_rows, "INDEX_PIECE", 640)
    monkeypatch.setattr(added_rows, "pause", lambda: pauses.append(1))
    where, rows = np.arange(100) % 3, np.ones((100, 64), "float32")
    total = np.zeros((3, 64), "float32")
    _add(where, rows, total, fresh=True)
    assert total[:, 0].tolist() == [34, 33, 33]
    assert len(pauses) >= 4


def test_no_rows_at_all(way: str) -> None:
    total = np.ones((3, 2), "float32")
    _add(np.empty(0, "int64"), np.empty((0, 2), "float32"), total, fresh=False)
    assert (total == 1).all()
    _add(np.empty(0, "int64"), np.empty((0, 2), "float32"), total, fresh=True)
    assert (total == 0).all()
