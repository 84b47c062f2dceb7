"""Horizontal positions of items in their rows: long edges straight, chains aligned, no overlap.

Four layouts, each of which aligns items with the median of their neighbours above or below, leaning left or right, and
packs the aligned blocks; an item stands at the mean of the two in the middle (Brandes and Köpf, "Fast and simple
horizontal coordinate assignment", 2002; edges at other places than centres as by Rüegg, Schulze, Carstens and von
Hanxleden, 2015).
"""

from __future__ import annotations

from itertools import pairwise

from .ranks import Item, Rows

__all__ = ["place"]

Pieces = dict[int, list[tuple[Item, float, float]]]
GAP = 26.0
"""Pixels between two boxes in a row."""
POINT_GAP = 18.0
"""Pixels between an edge and the boxes it passes."""


def place(rows: Rows) -> None:
    """Set every item's x."""
    items = [item for row in rows.rows for item in row]
    conflicts = _conflicts(rows)
    layouts = [
        _layout(rows, conflicts, down=down, mirrored=mirrored) for down in (True, False) for mirrored in (False, True)
    ]
    widths = [max(x[id(i)] for i in items) - min(x[id(i)] for i in items) for x in layouts]
    narrow = layouts[widths.index(min(widths))]
    low, high = min(narrow.values()), max(narrow.values())
    for number, layout in enumerate(layouts):
        shift = low - min(layout.values()) if number % 2 == 0 else high - max(layout.values())
        for item in items:
            layout[id(item)] += shift
    for item in items:
        four = sorted(layout[id(item)] for layout in layouts)
        item.x = (four[1] + four[2]) / 2


def _separation(left: Item, right: Item) -> float:
    return (left.width + right.width) / 2 + (POINT_GAP if left.point or right.point else GAP)


def _conflicts(rows: Rows) -> set[tuple[int, int]]:
    """Pieces that cross a piece between two points of a long edge: the latter is to be straight."""
    conflicts = set()
    for upper, lower in pairwise(rows.rows):
        position = {id(item): i for i, item in enumerate(upper)}
        start, scanned = -1, 0
        for i, item in enumerate(lower):
            inner = next((position[id(up)] for up, _, _ in rows.above[id(item)] if item.point and up.point), None)
            if inner is None and i < len(lower) - 1:
                continue
            end = len(upper) if inner is None else inner
            for other in lower[scanned : i + 1]:
                for up, _, _ in rows.above[id(other)]:
                    if not start <= position[id(up)] <= end and not (other.point and up.point):
                        conflicts.add((id(up), id(other)))
            start, scanned = end, i + 1
    return conflicts


def _layout(rows: Rows, conflicts: set[tuple[int, int]], *, down: bool, mirrored: bool) -> dict[int, float]:
    """Compute one of four candidate layouts: x by item."""
    sign = -1.0 if mirrored else 1.0
    ordered = [row[::-1] if mirrored else row for row in (rows.rows if down else rows.rows[::-1])]
    pieces: Pieces = rows.above if down else rows.below
    position = {id(item): i for row in ordered for i, item in enumerate(row)}
    root: dict[int, int] = {}
    shift: dict[int, float] = {}
    for row in ordered:
        reached = -1
        for item in row:
            root[id(item)], shift[id(item)] = id(item), 0.0
            near = sorted(pieces[id(item)], key=lambda piece: (position[id(piece[0])], sign * piece[2]))
            if not near:
                continue
            for middle in {(len(near) - 1) // 2: 0, len(near) // 2: 0}:
                other, here, there = near[middle]
                pair = (id(other), id(item)) if down else (id(item), id(other))
                if pair in conflicts or position[id(other)] <= reached:
                    continue
                root[id(item)] = root[id(other)]
                shift[id(item)] = shift[id(other)] + sign * (there - here)
                reached = position[id(other)]
                break
    return {key: sign * x for key, x in _packed(ordered, root, shift).items()}


def _packed(rows: list[list[Item]], root: dict[int, int], shift: dict[int, float]) -> dict[int, float]:
    """Blocks as far left as they go, then each as far right as leaves its right neighbours in place."""
    after: dict[int, dict[int, float]] = {block: {} for block in root.values()}
    before: dict[int, dict[int, float]] = {block: {} for block in root.values()}
    for row in rows:
        for one, other in pairwise(row):
            a, b = root[id(one)], root[id(other)]
            gap = _separation(one, other) + shift[id(one)] - shift[id(other)]
            after[a][b] = before[b][a] = max(gap, after[a].get(b, gap))
    x: dict[int, float] = {}
    waiting = {block: len(lefts) for block, lefts in before.items()}
    ready = [block for block, count in waiting.items() if not count]
    order = []
    while ready:
        block = ready.pop()
        order.append(block)
        x[block] = max((x[left] + gap for left, gap in before[block].items()), default=0.0)
        for right in after[block]:
            waiting[right] -= 1
            if not waiting[right]:
                ready.append(right)
    for block in reversed(order):
        if after[block]:
            x[block] = max(x[block], min(x[right] - gap for right, gap in after[block].items()))
    return {key: x[block] + shift[key] for key, block in root.items()}
