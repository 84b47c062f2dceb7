"""The order of items within their rows, so that few edges cross.

Rows are sorted by the mean place of an item's neighbours, downwards and upwards in turn, and neighbours in a row change
places where that leaves fewer crossings (Sugiyama, Tagawa and Toda, 1981; Gansner, Koutsofios, North and Vo, 1993).
"""

from __future__ import annotations

from bisect import bisect_right, insort

from .ranks import Item, Rows

__all__ = ["untangle"]

SWEEPS = 12
LARGE = 2000
"""Number of items from which on neighbours are not exchanged: that step is the slowest."""


def untangle(rows: Rows) -> None:
    """Sort every row, in place."""
    place: dict[int, int] = {}
    for row in rows.rows:
        place |= {id(item): i for i, item in enumerate(row)}
    size = sum(map(len, rows.rows))
    best, order = _crossings(rows, place), [list(row) for row in rows.rows]
    for sweep in range(SWEEPS):
        if not best:
            break
        down = sweep % 2 == 0
        neighbours = rows.above if down else rows.below
        for row in rows.rows if down else reversed(rows.rows):
            wanted = {id(item): _mean(neighbours[id(item)], place, place[id(item)]) for item in row}
            row.sort(key=lambda item: wanted[id(item)])
            place |= {id(item): i for i, item in enumerate(row)}
        if size <= LARGE:
            _exchange(rows, place)
        crossings = _crossings(rows, place)
        if crossings < best:
            best, order = crossings, [list(row) for row in rows.rows]
    rows.rows[:] = order


def _mean(neighbours: list[tuple[Item, float, float]], place: dict[int, int], own: int) -> float:
    if not neighbours:
        return float(own)
    # Where an edge enters a wide box counts a little: it orders the edges to one frame.
    return sum(place[id(item)] + its / (item.width + 1) for item, _, its in neighbours) / len(neighbours)


def _crossings(rows: Rows, place: dict[int, int]) -> int:
    count = 0
    for row in rows.rows:
        ends = sorted(
            (i + here / (item.width + 1), place[id(other)] + there / (other.width + 1))
            for i, item in enumerate(row)
            for other, here, there in rows.below[id(item)]
        )
        seen: list[float] = []
        for _, end in ends:
            count += len(seen) - bisect_right(seen, end)
            insort(seen, end)
    return count


def _exchange(rows: Rows, place: dict[int, int]) -> None:
    for row in rows.rows:
        for i in range(len(row) - 1):
            left, right = row[i], row[i + 1]
            if _crossed(left, right, rows, place) > _crossed(right, left, rows, place):
                row[i], row[i + 1] = right, left
                place[id(right)], place[id(left)] = i, i + 1


def _crossed(left: Item, right: Item, rows: Rows, place: dict[int, int]) -> int:
    """Crossings of the edges of two neighbours, standing in this order."""
    count = 0
    for side in (rows.above, rows.below):
        its = [place[id(item)] + there / (item.width + 1) for item, _, there in side[id(right)]]
        for item, _, there in side[id(left)]:
            at = place[id(item)] + there / (item.width + 1)
            count += sum(other < at for other in its)
    return count
