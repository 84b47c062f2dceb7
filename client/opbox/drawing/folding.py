"""Finding blocks of a network that come again and again, one after the other: units of a stage, steps of a loop.

A block comes again when the operators after it are the same ones with the same parameters and the same sizes, wired to
each other in the same way, and reading

- what the block before them reads (the same weights, the same sequence), or a variable of their own in its place;
- or, in the place of what the first block reads from before, what the block before them computes.

What a block in the middle computes may be read after the last one only where every block's is (a list of all steps'
outputs).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from .network import DrawnNetwork

__all__ = ["Repeat", "find_repeats"]

LONGEST = 400
"""Maximum number of operators in a repeated block."""
MIN_SAVED_ROWS = 4
"""Minimum number of rows that folding must save."""


class Repeat(NamedTuple):
    """Blocks of operators that are alike.

    Attributes:
        start: the position of the first operator of the first block.
        period, times: operators of a block, and blocks.
        first: the positions of the first block's operators, in the order that the other blocks have them in.
        inside: the repeats inside the first block.
    """

    start: int
    period: int
    times: int
    first: tuple[int, ...]
    inside: tuple[Repeat, ...] = ()

    @property
    def end(self) -> int:
        """The position after the last block."""
        return self.start + self.period * self.times

    def block(self, number: int) -> Sequence[int]:
        """The positions of a block's operators."""
        if not number:
            return self.first
        return range(self.start + number * self.period, self.start + (number + 1) * self.period)


def find_repeats(network: DrawnNetwork) -> list[Repeat]:
    """The repeats of a network, in their order; positions count its operators, without the variables."""
    return _Search(network).between(0, None)


class _Search:
    """The operators of a network in their order, as numbers that can be compared."""

    def __init__(self, network: DrawnNetwork) -> None:
        self.vertices = network.vertices
        operators = [i for i, vertex in enumerate(network.vertices) if vertex.inputs]
        position = {number: i for i, number in enumerate(operators)}
        known: dict[object, int] = {}
        tokens = []
        # What reads nothing is the negative of its number, less one: it stands before every operator.
        self.inputs: list[list[tuple[int, int]]] = []
        self.readers: list[set[int]] = [set() for _ in operators]
        for i, number in enumerate(operators):
            vertex = network.vertices[number]
            links = [(position.get(link.source, -1 - link.source), link.output) for link in vertex.inputs]
            own = "" if vertex.op not in ("Custom", "_foreach", "_while_loop", "_cond") else vertex.name
            token = (vertex.op, tuple(vertex.attrs.items()), tuple(vertex.values.values()), len(links), own)
            tokens.append(known.setdefault(token, len(known)))
            self.inputs.append(links)
            for source, _ in links:
                if source >= 0:
                    self.readers[source].add(i)
        for link in network.heads:
            if link.source in position:
                self.readers[position[link.source]].add(len(operators))
        self.tokens = np.array(tokens, dtype=np.int64)
        self.kinds = [*tokens, -1]
        # The operator that is drawn in the place of one in a block that was found to repeat.
        self.stand_in: dict[int, int] = {}

    def between(self, begin: int, end: int | None) -> list[Repeat]:
        """The repeats among the operators from `begin` to `end`: those that save most, and none across another."""
        chosen: list[Repeat] = []
        gaps = [(begin, len(self.tokens) if end is None else end)]
        while gaps:
            first, last = gaps.pop(0)
            candidates = sorted(
                self._candidates(first, last),
                key=lambda repeat: (-repeat.period * (repeat.times - 1), repeat.start),
            )
            repeats: list[Repeat] = []
            for repeat in candidates:
                if all(repeat.end <= other.start or repeat.start >= other.end for other in repeats):
                    repeats.append(repeat)
                    self._note(repeat)
            # What reads these blocks, one each, is alike from here on.
            for repeat in sorted(repeats):
                inside = self.between(repeat.start, repeat.start + repeat.period)
                chosen.append(repeat._replace(inside=tuple(inside)))
                gaps.append((first, repeat.start))
                first = repeat.end
            if repeats:
                gaps.append((first, last))
        return sorted(chosen)

    def _note(self, repeat: Repeat) -> None:
        for number in range(repeat.times):
            for position, first in zip(repeat.block(number), repeat.first, strict=True):
                self.stand_in[position] = first

    def _candidates(self, begin: int, end: int) -> Iterator[Repeat]:
        tokens = self.tokens[begin:end]
        covered: list[Repeat] = []
        for period in range(1, min(len(tokens) // 2, LONGEST) + 1):
            for first, last in _runs(tokens[period:] == tokens[:-period]):
                if last - first < period:
                    continue
                start, stop = begin + first, begin + last + period
                # A multiple of a period that has been seen there says nothing new.
                if any(
                    period % other.period == 0 and other.start <= start + other.period and other.end + period > stop
                    for other in covered
                ):
                    continue
                best: tuple[tuple[int, int, int], Repeat] | None = None
                # A first block may be alike, and wired otherwise.
                for offset in range(min(2 * period, stop - start - 2 * period + 1)):
                    repeat = self._repeat(start + offset, period, stop)
                    if repeat is not None:
                        rank = (-repeat.times, self._crossing(repeat), repeat.start)
                        if best is None or rank < best[0]:
                            best = (rank, repeat)
                if best is not None:
                    covered.append(best[1])
                    yield best[1]

    def _repeat(self, start: int, period: int, stop: int) -> Repeat | None:
        """The repeat that begins at `start`, within operators that are alike up to `stop`."""
        position = start
        while position + period < stop and self._wired_alike(position, period, start):
            position += 1
        count = (position - start) // period + 1
        saved = period * (count - 1)
        if count < 2 or saved < MIN_SAVED_ROWS or (count == 2 and period < 2 * MIN_SAVED_ROWS):
            return None
        repeat = self._with_one_before(Repeat(start, period, count, tuple(range(start, start + period))))
        return repeat if self._read_alike(repeat) else None

    def _alike(self, source: int, other: int) -> bool:
        """True if two sources are in the same place of two blocks, or are two variables, or two constants alike."""
        if source >= 0 or other >= 0:
            return self.stand_in.get(source, source) == self.stand_in.get(other, other)
        one, another = self.vertices[-1 - source], self.vertices[-1 - other]
        return (one.op, one.attrs, one.values) == (another.op, another.attrs, another.values)

    def _with_one_before(self, repeat: Repeat) -> Repeat:
        """The repeat with a further block before it, if the operators there are one in another order.

        What a first step reads in the place of a step before it may need a shorter chain of operators than what it has
        of its own, and then comes later.
        """
        start = repeat.start - repeat.period
        if start < 0:
            return repeat
        # From what the first block reads where the second one reads the first, and from there to what that reads.
        waiting = [
            (source, before)
            for position in repeat.first
            for (before, _), (source, _) in zip(
                self.inputs[position], self.inputs[position + repeat.period], strict=True
            )
            if repeat.start <= source < repeat.start + repeat.period
        ]
        counterpart: dict[int, int] = {}
        while waiting:
            position, before = waiting.pop()
            if position in counterpart:
                if counterpart[position] != before:
                    return repeat
                continue
            if not start <= before < repeat.start or self.tokens[position] != self.tokens[before]:
                return repeat
            counterpart[position] = before
            for (source, output), (its, its_output) in zip(self.inputs[position], self.inputs[before], strict=True):
                if source >= repeat.start:
                    if output != its_output:
                        return repeat
                    waiting.append((source, its))
                elif source < start and source != its and not self._alike(source, its):
                    return repeat
        if len(set(counterpart.values())) != repeat.period:
            return repeat
        first = tuple(counterpart[position] for position in repeat.first)
        return repeat._replace(start=start, times=repeat.times + 1, first=first)

    def _wired_alike(self, position: int, period: int, start: int) -> bool:
        """Return whether the operator a block later than `position` reads what it does there, a block later."""
        for (before, output), (source, its_output) in zip(
            self.inputs[position], self.inputs[position + period], strict=True
        ):
            if source < start:
                if source != before and not self._alike(source, before):
                    return False
            elif source - period == before:
                if output != its_output:
                    return False
            elif not (position < start + period and source < start + period and before < start):
                return False
        return True

    def _read_alike(self, repeat: Repeat) -> bool:
        """Return whether all blocks' values are read by operators alike after the last, or only the last one's."""
        for alike in zip(*(repeat.block(number) for number in range(repeat.times)), strict=True):
            after = [
                sorted(self.kinds[reader] for reader in self.readers[position] if reader >= repeat.end)
                for position in alike
            ]
            if any(after[:-1]) and any(readers != after[-1] for readers in after):
                return False
        return True

    def _crossing(self, repeat: Repeat) -> int:
        """Values that go from one block to the next: where to cut a chain of blocks is where there are fewest."""
        first = set(repeat.first)
        return len({link for i in repeat.block(1) for link in self.inputs[i] if link[0] in first})


def _runs(alike: Sequence[bool] | np.ndarray) -> list[tuple[int, int]]:
    """The ranges in which everything is true, as (first, after the last)."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], alike, [False])).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
