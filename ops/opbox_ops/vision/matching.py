"""Greedy one-to-one matching of rows and columns by a score, best pair first.

Instead of taking one pair after the other, every round takes all pairs that are the best of both their row and their
column: no better pair can take either from them, so they are what the greedy order would choose.
"""

from __future__ import annotations

from typing import Any

from ..compute import Array
from ..pausing import pause

__all__ = ["match"]


def match(xp: Any, scores: Array, threshold: float) -> tuple[Array, Array]:
    """Match rows and columns of (batch, n, m) whose score is above `threshold`; of equal pairs the first is better.

    Returns:
        The column of each row (batch, n) and the row of each column (batch, m), -1 where there is none.
    """
    batch, count, width = scores.shape
    column_of = xp.full((batch, count), -1, dtype=xp.int64)
    row_of = xp.full((batch, width), -1, dtype=xp.int64)
    if not scores.size:
        return column_of, row_of
    left = xp.where(scores > threshold, scores, -xp.inf)
    numbers = xp.arange(count)[None]
    while True:
        pause()
        best_column, best_row = left.argmax(axis=2), left.argmax(axis=1)
        mutual = xp.take_along_axis(best_row, best_column, axis=1) == numbers
        mutual &= xp.take_along_axis(left, best_column[:, :, None], axis=2)[:, :, 0] > -xp.inf
        at, row = xp.nonzero(mutual)
        if not at.size:
            return column_of, row_of
        column = best_column[at, row]
        column_of[at, row] = column
        row_of[at, column] = row
        left[at, row] = -xp.inf
        left[at, :, column] = -xp.inf
