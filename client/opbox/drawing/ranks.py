"""A graph in rows: every edge goes down, and one that passes rows gets a point in each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["Arc", "Item", "Rows", "in_rows"]


@dataclass(eq=False)
class Item:
    """An item with a position: a box, a port on the border of a frame, or a point that a long edge passes.

    Attributes:
        width, height: in pixels.
        place: "first" or "last" for ports, which lie in the first and the last row.
        rank: the number of its row.
        x, y: its centre, once it is known.
    """

    width: float
    height: float
    place: str = ""
    rank: int = 0
    x: float = 0.0
    y: float = 0.0
    point: bool = False


@dataclass(eq=False)
class Arc:
    """An edge between items; `tail_dx` and `head_dx` are where it leaves and enters, from their centres.

    `points` are the items that it passes, from the first row to the last.
    """

    tail: Item
    head: Item
    tail_dx: float = 0.0
    head_dx: float = 0.0
    points: list[Item] = field(default_factory=list)


@dataclass
class Rows:
    """The items of each row from left to right, and for each item the arcs' pieces above and below.

    A piece is (the other item, the place on this one, the place on the other).
    """

    rows: list[list[Item]]
    above: dict[int, list[tuple[Item, float, float]]]
    below: dict[int, list[tuple[Item, float, float]]]


def in_rows(items: Sequence[Item], arcs: Sequence[Arc]) -> Rows:
    """Give items rows, and long arcs their points.

    Args:
        items: all items, inputs before users.
        arcs: between them, without circles.
    """
    incoming: dict[int, list[Item]] = {id(item): [] for item in items}
    outgoing: dict[int, list[Item]] = {id(item): [] for item in items}
    for arc in arcs:
        incoming[id(arc.head)].append(arc.tail)
        outgoing[id(arc.tail)].append(arc.head)
    order = _order(items, incoming, outgoing)
    first = 1 if any(item.place == "first" for item in items) else 0
    for item in order:
        item.rank = 0 if item.place == "first" else max([first, *(above.rank + 1 for above in incoming[id(item)])])
    for item in reversed(order):
        # What reads nothing stands right above who reads it.
        if not incoming[id(item)] and outgoing[id(item)] and item.place != "first":
            item.rank = min(below.rank for below in outgoing[id(item)]) - 1
    lasts = [item for item in items if item.place == "last"]
    if lasts:
        bottom = max([*(item.rank for item in lasts), *(item.rank + 1 for item in items if item.place != "last")])
        for item in lasts:
            item.rank = bottom
    rows: list[list[Item]] = [[] for _ in range(1 + max(item.rank for item in items))]
    for item in items:
        rows[item.rank].append(item)
    result = Rows(rows, {id(item): [] for item in items}, {id(item): [] for item in items})
    for arc in arcs:
        _thread(arc, result)
    return result


def _thread(arc: Arc, rows: Rows) -> None:
    before, leaves = arc.tail, arc.tail_dx
    for rank in range(arc.tail.rank + 1, arc.head.rank + 1):
        if rank == arc.head.rank:
            item, enters = arc.head, arc.head_dx
        else:
            item, enters = Item(2.0, 0.0, rank=rank, point=True), 0.0
            rows.rows[rank].append(item)
            rows.above[id(item)], rows.below[id(item)] = [], []
            arc.points.append(item)
        rows.below[id(before)].append((item, leaves, enters))
        rows.above[id(item)].append((before, enters, leaves))
        before, leaves = item, 0.0


def _order(items: Sequence[Item], incoming: dict[int, list[Item]], outgoing: dict[int, list[Item]]) -> list[Item]:
    """The items, each after all that it reads."""
    missing = {id(item): len(incoming[id(item)]) for item in items}
    ready = [item for item in items if not missing[id(item)]]
    order = []
    while ready:
        item = ready.pop()
        order.append(item)
        for below in outgoing[id(item)]:
            missing[id(below)] -= 1
            if not missing[id(below)]:
                ready.append(below)
    return order
