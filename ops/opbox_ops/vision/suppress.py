"""Greedy suppression: of boxes in order, each that stays removes the later ones that it hits.

What a box decides depends on all before it. A block of boxes settles itself by repeating "a box stays unless one that
stays hits it", which is right for one more box with every repetition and mostly ends after a few; then those of the
block that stay strike all later boxes at once. Every array has the batch for its first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..compute import Array
from ..pausing import pause

__all__ = ["BLOCK", "suppress"]

BLOCK = 64
"""Boxes that settle together: pairs within a block are all compared, whether a box stays or not."""

Hits = Callable[[Sequence[Array], Sequence[Array]], Array]


def suppress(xp: Any, boxes: Sequence[Array], alive: Array, hits: Hits, most: int | None = None) -> None:
    """Clear in `alive` the boxes that an earlier one removes.

    Args:
        boxes: planes (batch, n), best boxes first.
        alive: (batch, n), True for the boxes that take part.
        hits: whether a box of its first argument (batch, k, 1) removes one of its second (batch, 1, m).
        most: once every batch has this many that stay, later boxes are left as they are.
    """
    if alive.shape[1] <= BLOCK:
        alive[...] = _settle(xp, boxes, alive, hits)
        return
    columns = _columns(xp, alive)
    kept_so_far = xp.zeros(alive.shape[:1], dtype=xp.int64)
    while columns.size:
        pause()
        block, columns = columns[:BLOCK], columns[BLOCK:]
        near = [plane[:, block] for plane in boxes]
        survivors = _settle(xp, near, alive[:, block], hits)
        alive[:, block] = survivors
        kept_so_far += survivors.sum(axis=1)
        if most is not None and bool((kept_so_far >= most).all()):
            return
        count = int(survivors.sum(axis=1).max()) if columns.size else 0
        if count:
            first = xp.argsort(~survivors, axis=1, kind="stable")[:, :count]
            strikers = [xp.take_along_axis(plane, first, axis=1)[:, :, None] for plane in near]
            struck = hits(strikers, [plane[:, None, columns] for plane in boxes])
            struck &= xp.take_along_axis(survivors, first, axis=1)[:, :, None]
            later = alive[:, columns] & ~struck.any(axis=1)
            alive[:, columns] = later
            columns = columns[later.any(axis=0)]


def _columns(xp: Any, alive: Array) -> Array:
    """Positions where a box of any batch is alive."""
    return xp.nonzero(alive.any(axis=0))[0]


def _settle(xp: Any, boxes: Sequence[Array], alive: Array, hits: Hits) -> Array:
    """Return a mask of the boxes of a block that stay."""
    struck = hits([plane[:, :, None] for plane in boxes], [plane[:, None] for plane in boxes])
    count = struck.shape[1]
    struck &= _kept_later(count) if xp is np else _later(xp, count)
    survivors = alive
    while True:
        after = alive & ~(struck & survivors[:, :, None]).any(axis=1)
        if bool((after == survivors).all()):
            return after
        survivors = after


def _later(xp: Any, count: int) -> Array:
    """Return a mask (count, count) of the pairs of boxes whose second box comes later."""
    return xp.triu(xp.ones((count, count), dtype=bool), 1)


@lru_cache(maxsize=BLOCK + 1)
def _kept_later(count: int) -> Array:
    later = _later(np, count)
    later.flags.writeable = False
    return later
