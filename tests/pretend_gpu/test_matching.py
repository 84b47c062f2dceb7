"""Matching of many rows and columns on the device: by sorted pairs, as one block matches few, and as the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from opbox_ops.backend import backend_for
from opbox_ops.compute import OpContext
from opbox_ops.cuda.vision import bipartite_matching, sorted_matching
from opbox_ops.cuda.vision.matching import match_temps
from opbox_ops.cuda.vision.sorted_matching import MAX_PAIRS, sorted_calls, sorted_temps
from opbox_ops.vision.matching import match

ALL = 2**31 - 1


def context(temps: list[Any]) -> OpContext:
    """The context of a compute that has asked for these temporaries, full of rubbish."""
    backend = backend_for("gpu:0")
    ctx = OpContext(backend.xp, None, None, backend)
    ctx.temp = tuple(backend.xp.full(temp.shape, 77, temp.dtype) for temp in temps)
    return ctx


def sorted_pairs(cupy: Any, scores: Any, threshold: float, limit: int = ALL) -> list[Any]:
    """The column of each row and the row of each column, by sorting."""
    ctx = context(sorted_temps(*scores.shape, scores.dtype))
    arguments = (cupy.asarray(scores), *map(np.int32, (*scores.shape[1:], 0)))
    for call in sorted_calls(
        ctx, bipartite_matching.SCORES, scores.dtype, arguments, limit, scores.dtype.type(threshold)
    ):
        call()
    return [ctx.backend.get(array) for array in ctx.temp[:2]]


def strange(scores: Any) -> Any:
    """The scores with some that are no number, infinite, and zero with either sign."""
    flat = scores.reshape(-1)
    for k, value in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0, -np.nan)):
        flat[k::23] = value
    return scores


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "columns", "levels"), [(1, 1, 3), (40, 7, 16), (7, 70, 4), (60, 50, 1 << 40)])
def test_sorted_pairs_are_the_references(gpu: Any, cupy: Any, rows: int, columns: int, levels: int, dtype: str) -> None:
    scores = strange(np.random.default_rng(rows).integers(-levels, levels, (3, rows, columns)) / levels).astype(dtype)
    for threshold in (-2, 0, 0.5):
        got = sorted_pairs(cupy, scores, threshold)
        for array, expected in zip(got, match(np, scores, threshold), strict=True):
            np.testing.assert_array_equal(array, expected)


def test_the_best_pairs_alone(gpu: Any, cupy: Any) -> None:
    scores = np.random.default_rng(0).permutation(60 * 50).reshape(1, 60, 50).astype("f")
    whole, _ = match(np, scores, -1)
    of_pairs = scores[0, np.arange(60), whole[0]]
    best = [row for row in np.argsort(-of_pairs) if whole[0, row] >= 0][:7]
    got, _ = sorted_pairs(cupy, scores, -1, limit=7)
    assert sorted(np.flatnonzero(got[0] >= 0)) == sorted(best)
    np.testing.assert_array_equal(got[0, best], whole[0, best])


def test_a_row_that_all_columns_want_first(gpu: Any, cupy: Any) -> None:
    # Rows are better one after the other: more free pairs of a row at a time than a block has threads.
    scores = -np.add.outer(np.arange(3.0) * 5000, np.arange(2500.0))[None]
    column_of, row_of = sorted_pairs(cupy, scores, -np.inf)
    np.testing.assert_array_equal(column_of, [[0, 1, 2]])
    np.testing.assert_array_equal(np.flatnonzero(row_of[0] >= 0), [0, 1, 2])


def test_images_are_sorted_in_groups(gpu: Any, cupy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).normal(size=(5, 20, 30))
    whole = sorted_pairs(cupy, scores, 0)
    for name, value in (("_GROUP", 2 * 600), ("_SPAN", 128)):
        monkeypatch.setattr(sorted_matching, name, value)
    for array, expected in zip(sorted_pairs(cupy, scores, 0), whole, strict=True):
        np.testing.assert_array_equal(array, expected)


def test_few_rows_and_columns_need_no_sort_and_scratch_is_bounded() -> None:
    assert len(match_temps(8, 8732, 50, "float32")) == 4
    for batch, rows, columns in ((1, 11_000, 12_000), (64, 3000, 3000), (4, 1 << 20, 1)):
        assert rows * columns <= MAX_PAIRS
        temps = match_temps(batch, rows, columns, "float32")
        pairs = max(rows * columns, 1 << 23)
        sizes = [math.prod(temp.shape) * np.dtype(temp.dtype).itemsize for temp in temps]
        assert len(temps) == 10
        assert sum(sizes) < 17 * pairs + 4 * batch * (rows + columns + 1)
