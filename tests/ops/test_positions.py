"""Positions given as data: sums at positions that recur, and positions that are not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opbox_ops.compute import ArraySpec
from opbox_ops.index.positions import add_rows, add_rows_temps, checked, positions
from opbox_protocol.errors import ShapeError


def _add(where: Any, rows: Any, total: Any, *, fresh: bool) -> None:
    spec = [ArraySpec(array.shape, array.dtype) for array in (rows, total)]
    temps = [np.full(temp.shape, 77, temp.dtype) for temp in add_rows_temps("cpu", len(where), *spec)]
    add_rows(np, where, rows, total, temps, fresh=fresh)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64", "uint8"])
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("contiguous", [True, False])
def test_rows_add_up_as_numpy_does(dtype: str, fresh: bool, contiguous: bool) -> None:
    rng = np.random.default_rng(0)
    where = rng.integers(0, 7, 50)
    rows = rng.integers(-3, 4, (50, 5)).astype(dtype) if dtype != "uint8" else rng.integers(0, 4, (50, 5), dtype)
    if not contiguous:
        rows = np.repeat(rows, 2, axis=1)[:, ::2]
    total = np.ones((9, 5), dtype)
    wanted = np.zeros((9, 5), dtype) if fresh else np.ones((9, 5), dtype)
    np.add.at(wanted, where, rows)
    _add(where, rows, total, fresh=fresh)
    np.testing.assert_array_equal(total, wanted)


def test_no_rows_at_all() -> None:
    total = np.ones((3, 2), "float32")
    _add(np.empty(0, "int64"), np.empty((0, 2), "float32"), total, fresh=False)
    assert (total == 1).all()
    _add(np.empty(0, "int64"), np.empty((0, 2), "float32"), total, fresh=True)
    assert (total == 0).all()


@pytest.mark.parametrize(
    ("mode", "wanted"), [("clip", [0, 0, 2, 4, 4]), ("wrap", [4, 0, 2, 4, 0])], ids=["clip", "wrap"]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_positions_out_of_range(mode: str, wanted: list[int], dtype: str) -> None:
    places = np.array([-1, 0, 2, 4, 5], dtype)
    assert positions(np, places, 5, mode, np.empty(5, "int64")).tolist() == wanted


def test_a_fraction_is_cut_off() -> None:
    assert positions(np, np.array([0.9, 1.5]), 5, "clip", np.empty(2, "int64")).tolist() == [0, 1]


def test_nan_is_a_position_like_any_other_that_is_not_there() -> None:
    places = np.array([np.nan, np.inf, -np.inf], "float32")
    assert positions(np, places, 5, "clip", np.empty(3, "int64"))[0] == 0


@pytest.mark.parametrize("value", [5, -1])
def test_mode_raise(value: int) -> None:
    with pytest.raises(ShapeError, match=f"indices: expected positions from 0 to 4, got {value}"):
        positions(np, np.array([0, value]), 5, "raise", np.empty(2, "int64"))


def test_negative_positions_count_from_the_end() -> None:
    checked(np, np.array([-5, 4]), -5, 5, "indices")
    with pytest.raises(ShapeError, match="indices: expected positions from -5 to 4, got -6"):
        checked(np, np.array([-6, 4]), -5, 5, "indices")
