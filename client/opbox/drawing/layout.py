"""Places for all boxes and edges of a drawing, frame by frame from the inside out.

A frame is laid out like a drawing of its own, with ports on its border where edges enter and leave; then it is a box
for what is around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .boxes import BlockFrame, Card, Edge
from .columns import place
from .crossings import untangle
from .look import BoxLook, row_width
from .network import DrawnNetwork, Link
from .ranks import Arc, Item, in_rows
from .text import text_width

__all__ = ["LABEL", "Path", "Placed", "PlacedCard", "PlacedFrame", "lay_out"]

Point = tuple[float, float]
ROW_GAP = 34.0
"""Pixels between two rows of boxes, enough for an edge and a shape label."""
LABEL = 10.0
"""Font size of shapes and names."""
HEADER = 24.0
"""Height of a frame's label."""
MARGIN = 14.0
LANE = 12.0
"""Pixels between two edges that lead back to the next block."""


@dataclass
class PlacedCard:
    """A card with its left upper corner; `names` are those shown, by vertex."""

    card: Card
    x: float
    y: float
    width: float
    height: float
    row_height: float
    names: dict[int, str]


@dataclass
class PlacedFrame:
    """A frame with its left upper corner."""

    frame: BlockFrame
    x: float
    y: float
    width: float
    height: float


@dataclass
class Path:
    """An edge's points from top to bottom, two for each row that it passes; `back` for those to the next block."""

    points: list[Point]
    arrow: bool
    back: bool = False
    tip: str = ""


@dataclass
class Placed:
    """The laid-out drawing, in pixels; the upper left corner is (0, 0)."""

    width: float = 0.0
    height: float = 0.0
    cards: list[PlacedCard] = field(default_factory=list)
    frames: list[PlacedFrame] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)
    labels: list[tuple[float, float, str]] = field(default_factory=list)
    entries: dict[Link, float] = field(default_factory=dict)
    exits: dict[int, float] = field(default_factory=dict)

    def moved_into(self, other: Placed, dx: float, dy: float) -> None:
        """Add these boxes and edges to another drawing, shifted right and down."""
        boxes: list[PlacedCard | PlacedFrame] = [*self.cards, *self.frames]
        for box in boxes:
            box.x += dx
            box.y += dy
        for path in self.paths:
            path.points = [(x + dx, y + dy) for x, y in path.points]
        other.cards += self.cards
        other.frames += self.frames
        other.paths += self.paths
        other.labels += [(x + dx, y + dy, text) for x, y, text in self.labels]


def lay_out(network: DrawnNetwork, top: BlockFrame, edges: Sequence[Edge], look: BoxLook) -> Placed:
    """Places for a network's boxes and edges."""
    return _FrameLayout(network, top, edges, look).placed()


class _FrameLayout:
    """The layout of one frame.

    Args:
        network, look: what is drawn, and how.
        frame: the frame.
        edges: those of the network; the ones that have an end in the frame count.
    """

    def __init__(self, network: DrawnNetwork, frame: BlockFrame, edges: Sequence[Edge], look: BoxLook) -> None:
        self.network, self.frame, self.look = network, frame, look
        self.outermost = frame.count == 1
        self.inner: dict[int, Placed] = {}
        self.items: list[Item] = []
        self.boxes: dict[int, Card | BlockFrame] = {}
        self.item_of: dict[int, Item] = {}
        self.entries: dict[Link, Item] = {}
        self.exits: dict[int, Item] = {}
        self.arcs: dict[tuple[int, int, float, float], Arc] = {}
        self.labelled: dict[int, Link] = {}
        mine = _vertices(frame)
        edges = [e for e in edges if e.source.source in mine or e.target in mine]
        for member in frame.members:
            self._add(member, edges)
        # Items in the network's order, so that equal choices fall as the graph is written.
        self.items.sort(key=lambda item: min(_vertices(self.boxes[id(item)])))
        for edge in edges:
            self._connect(edge)

    def _add(self, member: Card | BlockFrame, edges: Sequence[Edge]) -> None:
        if isinstance(member, Card):
            item = Item(*self._card_size(member))
        else:
            inner = _FrameLayout(self.network, member, edges, self.look).placed()
            item = Item(inner.width, inner.height)
            self.inner[id(item)] = inner
        self.items.append(item)
        self.boxes[id(item)] = member
        for number in _vertices(member):
            self.item_of[number] = item

    def _name(self, number: int) -> str:
        vertex = self.network.vertices[number]
        if vertex.op is None:
            return ""
        if self.outermost or (self.frame.prefix and vertex.name.startswith(self.frame.prefix)):
            return vertex.name.removeprefix(self.frame.prefix)
        return ""

    def _row_height(self) -> float:
        return self.look.size * 2

    def _card_size(self, card: Card) -> tuple[float, float]:
        vertices = [(self.network.vertices[i], self._name(i)) for i in card.rows]
        width = max(row_width(v.title, v.details, name, self.look.size) for v, name in vertices) + 18
        height = self._row_height() * len(card.rows)
        if self.look.fixed and self.look.width:
            return self.look.width, max(height, self.look.height)
        return max(width, self.look.width, 44.0), max(height, self.look.height)

    def _connect(self, edge: Edge) -> None:
        source, target = edge.source.source, edge.target
        tail = self.item_of.get(source)
        head = self.item_of.get(target) if target is not None else None
        if tail is not None and tail is head:
            return
        tail_dx = head_dx = 0.0
        if tail is None:
            tail = self.entries.get(edge.source)
            if tail is None:
                tail = self.entries[edge.source] = Item(2.0, 0.0, "first")
                self.items.insert(0, tail)
        elif id(tail) in self.inner:
            tail_dx = self.inner[id(tail)].exits[source] - tail.width / 2
        if head is None:
            head = self.exits.get(source)
            if head is None:
                head = self.exits[source] = Item(2.0, 0.0, "last")
                self.items.append(head)
        elif id(head) in self.inner:
            head_dx = self.inner[id(head)].entries[edge.source] - head.width / 2
        arc = self.arcs.setdefault((id(tail), id(head), tail_dx, head_dx), Arc(tail, head, tail_dx, head_dx))
        if source in self.item_of:
            self.labelled.setdefault(id(arc), edge.source)

    def placed(self) -> Placed:
        rows = in_rows(self.items, list(self.arcs.values()))
        untangle(rows)
        place(rows)
        heights = [max((item.height for item in row), default=0.0) for row in rows.rows]
        top = 0.0 if self.outermost else HEADER
        y = top + (0.0 if self.entries or self.outermost else MARGIN)
        for number, (row, height) in enumerate(zip(rows.rows, heights, strict=True)):
            for item in row:
                item.y = y + height / 2
            shrink = 0.6 if number == 0 and self.entries else 1.0
            y += height + (ROW_GAP * shrink if number + 1 < len(rows.rows) else 0.0)
        bottom = y + (0.0 if self.exits and not self.outermost else MARGIN if not self.outermost else 0.0)
        return self._drawn([item for row in rows.rows for item in row], heights, bottom)

    def _drawn(self, items: list[Item], heights: list[float], bottom: float) -> Placed:
        result = Placed()
        left = min(item.x - item.width / 2 for item in items)
        right = max(item.x + item.width / 2 for item in items)
        side = 0.0 if self.outermost else MARGIN
        dx = side - left
        for item in items:
            item.x += dx
        result.width = right - left + 2 * side
        result.height = bottom
        for item in items:
            box = self.boxes.get(id(item))
            x, y = item.x - item.width / 2, item.y - item.height / 2
            if isinstance(box, Card):
                names = {i: self._name(i) for i in box.rows}
                placed_card = PlacedCard(box, x, y, item.width, item.height, item.height / len(box.rows), names)
                result.cards.append(placed_card)
            elif box is not None:
                result.frames.append(PlacedFrame(box, x, y, item.width, item.height))
                self.inner[id(item)].moved_into(result, x, y)
        spans = {item.rank: (item.y - heights[item.rank] / 2, item.y + heights[item.rank] / 2) for item in items}
        self._label(result)
        for arc in self.arcs.values():
            result.paths.append(self._path(arc, spans))
        result.entries = {link: item.x for link, item in self.entries.items()}
        result.exits = {number: item.x for number, item in self.exits.items()}
        if self.frame.carried:
            self._lead_back(result)
        if not self.outermost:
            needed = row_width(self.frame.label, "", f"× {self.frame.count}", 12.0) + 3 * MARGIN
            result.width = max(result.width, needed)
        return result

    def _label(self, result: Placed) -> None:
        """Write each shape once, where the value leaves its box; a vertex's that differ, where they arrive."""
        seen: set[tuple[int, str]] = set()
        several: dict[int, set[str]] = {}
        leaving: dict[int, list[Arc]] = {}
        for arc in self.arcs.values():
            leaving.setdefault(id(arc.tail), []).append(arc)
            link = self.labelled.get(id(arc))
            if link is not None:
                several.setdefault(link.source, set()).add(self._value(link))
        for arc in self.arcs.values():
            link = self.labelled.get(id(arc))
            if link is None or id(arc.tail) in self.inner or not self._value(link):
                continue
            if (link.source, self._value(link)) in seen:
                continue
            seen.add((link.source, self._value(link)))
            text = self._value(link)
            wide = text_width(text, LABEL)
            if len(several[link.source]) == 1:
                x, y = arc.tail.x + 6, arc.tail.y + arc.tail.height / 2 + 14
                bends = [
                    (a.points or [a.head])[0].x + (0 if a.points else a.head_dx) - a.tail.x
                    for a in leaving[id(arc.tail)]
                ]
                if min(bends) > 6 and x - 12 - wide > 0:
                    x -= 12 + wide
            else:
                x, y = arc.head.x + arc.head_dx + 6, arc.head.y - arc.head.height / 2 - 8
            result.labels.append((x, y, text))
            result.width = max(result.width, x + wide + (0 if self.outermost else 6))

    def _value(self, link: Link) -> str:
        return self.network.vertices[link.source].values.get(link.output, "")

    def _path(self, arc: Arc, spans: dict[int, tuple[float, float]]) -> Path:
        points = [(arc.tail.x + arc.tail_dx, arc.tail.y + arc.tail.height / 2)]
        if arc.tail.place == "first":
            points.insert(0, (points[0][0], 0.0))
        if arc.tail.height < spans[arc.tail.rank][1] - spans[arc.tail.rank][0]:
            points.append((points[0][0], spans[arc.tail.rank][1]))
        for item in arc.points:
            upper, lower = spans[item.rank]
            points += [(item.x, upper), (item.x, lower)]
        end = (arc.head.x + arc.head_dx, arc.head.y - arc.head.height / 2)
        if arc.head.height < spans[arc.head.rank][1] - spans[arc.head.rank][0]:
            points.append((end[0], spans[arc.head.rank][0]))
        points.append(end)
        into_box = isinstance(self.boxes.get(id(arc.head)), Card)
        return Path(points, arrow=into_box or (self.outermost and arc.head.place == "last"))

    def _lead_back(self, result: Placed) -> None:
        """Draw what goes to the next block, along the frame's right side."""
        at = {i: (card, row) for card in result.cards for row, i in enumerate(card.card.rows)}
        targets: dict[Link, list[int]] = {}
        for link, number in self.frame.carried:
            targets.setdefault(link, []).append(number)
        x = result.width - MARGIN / 2
        for link, numbers in targets.items():
            source = at[link.source][0]
            ends = [at[number][0] for number in numbers]
            x += LANE
            start = (source.x + source.width * 0.75, source.y + source.height)
            for end in ends:
                into = (end.x + end.width * 0.75, end.y)
                low, high = start[1] + ROW_GAP * 0.4, into[1] - ROW_GAP * 0.4
                points = [start, (start[0], low), (x, low), (x, high), (into[0], high), into]
                result.paths.append(Path(points, arrow=True, back=True))
        result.width = x + MARGIN


def _vertices(box: Card | BlockFrame) -> set[int]:
    if isinstance(box, Card):
        return set(box.rows)
    return {number for member in box.members for number in _vertices(member)}
