"""The boxes of a drawing: cards, which are chains of operators in one piece, and frames around blocks that repeat.

A network becomes a tree of boxes: the outermost scope has cards and frames, a frame has the boxes of the first of its
blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .folding import Repeat, find_repeats
from .network import DrawnNetwork, Link

__all__ = ["Card", "Edge", "BlockFrame", "boxes_of"]

ROWS = 4
"""Maximum number of operators on one card."""
CONTINUES = {"activation", "norm"}
"""Families of operators that share a card with their input, if it has no other reader."""
CONTINUED = {"layer", "norm", "activation", "pool"}


@dataclass(eq=False)
class Card:
    """A chain of vertices: each reads only the one before it."""

    rows: list[int]


@dataclass(eq=False)
class BlockFrame:
    """The boxes of one block that stands for `count` alike, or of the whole network.

    Attributes:
        prefix: how names inside begin, which are shown without it.
        carried: what goes from a block to the next: (from a vertex's output, to a vertex).
    """

    members: list[Card | BlockFrame] = field(default_factory=list)
    count: int = 1
    label: str = ""
    prefix: str = ""
    carried: list[tuple[Link, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Edge:
    """A value that a vertex reads; `target` is None for what the network returns."""

    source: Link
    target: int | None


def boxes_of(network: DrawnNetwork, *, fold: bool = True) -> tuple[BlockFrame, list[Edge], Mapping[int, Sequence[int]]]:
    """The outermost scope of a network, the edges between the vertices that are shown, and what each stands for.

    Args:
        network: what to draw.
        fold: put blocks that repeat into frames.

    Returns:
        scope, edges: the boxes, one within another, and the lines between their vertices.
        alike: by the number of a vertex that is shown, the numbers of those that it stands for, itself first.
    """
    return _Boxes(network, find_repeats(network) if fold else []).result()


class _Boxes:
    def __init__(self, network: DrawnNetwork, repeats: Sequence[Repeat]) -> None:
        self.network = network
        self.operators = [i for i, vertex in enumerate(network.vertices) if vertex.inputs]
        # The vertex that stands for another one, and the frame that it is in.
        self.shown = list(range(len(network.vertices)))
        self.top = BlockFrame()
        self.frame = [self.top] * len(network.vertices)
        self.parent: dict[int, BlockFrame] = {}
        self.pairs: list[tuple[BlockFrame, list[int], list[int]]] = []
        for repeat in repeats:
            self._fold(repeat, self.top)

    def _fold(self, repeat: Repeat, around: BlockFrame) -> None:
        frame = BlockFrame(count=repeat.times)
        self.parent[id(frame)] = around
        around.members.append(frame)
        blocks = [[self.operators[position] for position in repeat.block(i)] for i in range(repeat.times)]
        for block in blocks:
            for number, first in zip(block, blocks[0], strict=True):
                self.shown[number] = first
                self.frame[number] = frame
        names = [[self.network.vertices[number].name for number in block] for block in (blocks[0], blocks[-1])]
        frame.label, frame.prefix = _names(*names)
        self.pairs.append((frame, blocks[0], blocks[1]))
        for inner in repeat.inside:
            self._fold(inner, frame)

    def _stand_in(self, number: int) -> int:
        """The vertex that is shown for one: in the first block, of the outermost repeat and of those inside it."""
        while self.shown[number] != number:
            number = self.shown[number]
        return number

    def result(self) -> tuple[BlockFrame, list[Edge], Mapping[int, Sequence[int]]]:
        vertices = self.network.vertices
        edges: dict[Edge, None] = {}
        readers: dict[int, set[int]] = {}
        for number in self.operators:
            if self._stand_in(number) == number:
                for link in vertices[number].inputs:
                    edges[Edge(Link(self._stand_in(link.source), link.output), number)] = None
                    readers.setdefault(link.source, set()).add(number)
        for link in self.network.heads:
            edges[Edge(Link(self._stand_in(link.source), link.output), None)] = None
        for frame, first, second in self.pairs:
            self._carry(frame, first, second, edges)
        self._place_variables(readers)
        drawn = _without_parallel(edges)
        for number, vertex in enumerate(vertices):
            if self._stand_in(number) == number and (vertex.inputs or readers.get(number) or self._head(number)):
                self.frame[number].members.append(Card([number]))
        self._join(drawn)
        alike: dict[int, list[int]] = {}
        for number in range(len(vertices)):
            alike.setdefault(self._stand_in(number), []).append(number)
        return self.top, drawn, alike

    def _head(self, number: int) -> bool:
        return any(link.source == number for link in self.network.heads)

    def _carry(self, frame: BlockFrame, first: list[int], second: list[int], edges: Iterable[Edge]) -> None:
        """Note what the second block reads of the first, unless the blocks are plainly a chain."""
        inside = set(first)
        carried: dict[tuple[Link, int], None] = {}
        for mine, later in zip(first, second, strict=True):
            for link in self.network.vertices[later].inputs:
                if link.source in inside:
                    carried[Link(self._stand_in(link.source), link.output), self._stand_in(mine)] = None
        sources = {link.source for link, _ in carried}
        exits = {edge.source.source for edge in edges if edge.source.source in inside and edge.target not in inside}
        entries = {edge.source for edge in edges if edge.target in inside and edge.source.source not in inside}
        if not len(sources) == len(exits) == len(entries) == 1 or sources != exits:
            frame.carried = list(carried)

    def _place_variables(self, readers: dict[int, set[int]]) -> None:
        """A variable that each block has one of is drawn in the block."""
        vertices = self.network.vertices
        for frame, first, second in self.pairs:
            inside = set(first)
            for number, later in zip(first, second, strict=True):
                for mine, other in zip(vertices[number].inputs, vertices[later].inputs, strict=True):
                    both_sources = not vertices[mine.source].inputs and not vertices[other.source].inputs
                    if both_sources and mine.source != other.source and readers.get(mine.source, set()) <= inside:
                        self.frame[mine.source] = frame

    def _join(self, edges: Iterable[Edge]) -> None:
        """Put an operator on the card of the one that it reads, where they are a chain."""
        edges = list(edges)
        vertices = self.network.vertices
        reads: dict[int, list[Edge]] = {}
        read_by: dict[int, int] = {}
        for edge in edges:
            read_by[edge.source.source] = read_by.get(edge.source.source, 0) + 1
            if edge.target is not None:
                reads.setdefault(edge.target, []).append(edge)
        carried = [pair for frame, _, _ in self.pairs for pair in frame.carried]
        leaving, entered = {link.source for link, _ in carried}, {number for _, number in carried}
        cards = {row: box for box in _cards(self.top) for row in box.rows}
        for number, vertex in enumerate(vertices):
            sources = reads.get(number, [])
            if number not in cards or len(sources) != 1 or number in entered or vertex.family not in CONTINUES:
                continue
            before = sources[0].source.source
            card = cards[before]
            if (
                read_by[before] == 1
                and len(vertex.inputs) == 1
                and before not in leaving
                and vertices[before].family in CONTINUED
                and self.frame[before] is self.frame[number]
                and len(card.rows) < ROWS
            ):
                self.frame[number].members.remove(cards[number])
                card.rows.append(number)
                cards[number] = card


def _cards(frame: BlockFrame) -> Iterable[Card]:
    for member in frame.members:
        if isinstance(member, Card):
            yield member
        else:
            yield from _cards(member)


def _without_parallel(edges: Iterable[Edge]) -> list[Edge]:
    """One edge for all values that go from a vertex to another."""
    seen: set[tuple[int, int | None]] = set()
    kept_edges = []
    for edge in edges:
        ends = (edge.source.source, edge.target)
        if ends not in seen:
            seen.add(ends)
            kept_edges.append(edge)
    return kept_edges


def _names(first: Sequence[str], last: Sequence[str]) -> tuple[str, str]:
    """A frame's label, and the prefix that names inside go without: ("stage1_unit2–3", "stage1_unit2_").

    Args:
        first, last: the names in the first block and in the last.
    """
    for name, other in zip(first, last, strict=True):
        parts, others = re.split(r"(\d+)", name), re.split(r"(\d+)", other)
        differ = [i for i, (a, b) in enumerate(zip(parts, others, strict=False)) if a != b]
        if len(parts) != len(others) or len(differ) != 1 or not parts[differ[0]].isdigit():
            continue
        i = differ[0]
        stem = "".join(parts[: i + 1])
        separator = parts[i + 1][:1] if parts[i + 1][:1] in ("_", ".", "-", "/") else ""
        prefix = stem + separator
        if separator and sum(one.startswith(prefix) for one in first) * 2 >= len(first) * 0.8:
            return f"{stem}–{others[i]}", prefix
    return "", ""
