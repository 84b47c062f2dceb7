"""Tracks whether memory may have changed since a copy of it was made.

What counts is where arrays lie, not how they came to be: a view of rows, another shape, an output that is an argument's
array are all caught.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from numpy.lib.array_utils import byte_bounds

from opbox_ops.compute import Array

__all__ = ["Watched"]


class Watched:
    """The memory of some arrays of this process, which must live as long as they are watched.

    Attributes:
        version: another number after each `touch` of the memory.
    """

    def __init__(self, arrays: Iterable[Array] = ()) -> None:
        self.version = 0
        self._of: dict[int, list[tuple[int, int]]] = {}
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._reaching: dict[int, bool] = {}
        self.add(0, arrays)

    def add(self, owner: int, arrays: Iterable[Array]) -> None:
        """Watch the memory of `arrays` for `owner` from now on, forgetting earlier state."""
        self._of[owner] = [byte_bounds(array) for array in arrays if array.size]
        self._merge()

    def discard(self, owner: int) -> bool:
        """Watch what was watched for `owner` no more; whether anything else is watched."""
        self._reaching.pop(owner, None)
        if self._of.pop(owner, None) is not None:
            self._merge()
        return bool(self._begins)

    def touch(self, array: Array) -> None:
        """Note that `array` may be written to."""
        if self.overlaps((array,)):
            self.version += 1

    def touch_all(self, owner: int, arrays: Sequence[Array]) -> None:
        """The same for `arrays`, which are the same ones whenever `owner` calls this."""
        reaches = self._reaching.get(owner)
        if reaches is None:
            reaches = self._reaching[owner] = self.overlaps(arrays)
        if reaches:
            self.version += 1

    def overlaps(self, arrays: Sequence[Array]) -> bool:
        """Return whether one of `arrays` has bytes in the memory."""
        begins, ends = self._begins, self._ends
        for array in arrays:
            if not array.size:
                continue
            begin, end = byte_bounds(array)
            # Of the stretches that begin before the array ends, the last reaches furthest: none overlaps another.
            before = bisect_left(begins, end)
            if before and ends[before - 1] > begin:
                return True
        return False

    def _merge(self) -> None:
        self.version += 1
        begins: list[int] = []
        ends: list[int] = []
        for begin, end in sorted([bounds for group in self._of.values() for bounds in group]):
            if ends and begin <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                begins.append(begin)
                ends.append(end)
        self._begins, self._ends = begins, ends
        self._reaching.clear()
