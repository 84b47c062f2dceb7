"""Positions given as data: fractions, NaN, and positions that are not there."""

from __future__ import annotations

import numpy as np
import pytest

from opbox_ops.index.positions import checked, positions
from opbox_protocol.errors import ShapeError


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
