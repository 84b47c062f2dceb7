"""Bytes alive at each step of a plan, which a pass asks for before it lets values live longer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..plan import UNWANTED, Plan

__all__ = ["LiveBytes"]


class LiveBytes:
    """The bytes alive at each step, without temporaries, arrays of the user's, and what is computed in place.

    Attributes:
        first, last: the step that writes each value, and the last one that reads it; -1 where there is none. What
            backward reads of forward's stays to the end, where the plan says so.
        peak: the most that was alive at once when the plan was looked at, or may be without loss (`Plan.spare`).
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        count = len(plan.values)
        self.whole = plan.wholes()
        self.first, self.last = [-1] * count, [-1] * count
        for t, step in enumerate(plan.steps):
            for value in map(self._placed, step.writes):
                if value != UNWANTED:
                    self.last[value] = t
                    if self.first[value] < 0:
                        self.first[value] = t
            for value in map(self._placed, step.reads):
                self.last[value] = t
        if plan.keeps and plan.trains:
            end = len(plan.steps) - 1
            for v, first in enumerate(self.first):
                if 0 <= first < plan.forward_steps <= self.last[v]:
                    self.last[v] = end
        change = [0] * (len(plan.steps) + 1)
        for v, placed in enumerate(plan.values):
            if placed.array is None and self.first[v] >= 0:
                nbytes = placed.nbytes
                change[self.first[v]] += nbytes
                change[self.last[v] + 1] -= nbytes
        self.bytes = np.cumsum(change)
        self.peak = max(int(self.bytes.max()), plan.spare)

    def _placed(self, value: int) -> int:
        """The value in whose memory a value is."""
        return self.whole.get(value, value)

    def change(self, longer: dict[int, int], gone: list[int], most: float) -> bool:
        """Let values live longer, and others not at all, unless more than `most` bytes would be alive somewhere.

        Args:
            longer: the last step that will read each value.
            gone: values that will not be written.
            most: the limit, in bytes; no step is refused for what it has already.
        """
        values, first, last = self.plan.values, self.first, self.last
        if self.whole and not self.whole.keys().isdisjoint((*longer, *gone)):
            wholes: dict[int, int] = {}
            for v, until in longer.items():
                wholes[self._placed(v)] = max(until, wholes.get(self._placed(v), -1))
            longer, gone = wholes, [v for v in gone if v not in self.whole]
        ranges: list[tuple[int, int, int]] = []
        for v, until in longer.items():
            if last[v] < until and first[v] >= 0 and values[v].array is None:
                ranges.append((last[v] + 1, until + 1, values[v].nbytes))
        if ranges:
            less = [(first[v], last[v] + 1, -values[v].nbytes) for v in gone if values[v].array is None]
            begin, end = min([r[0] for r in ranges]), max([r[1] for r in ranges])
            balance = sum([r[2] for r in ranges]) + sum([r[2] for r in less if r[0] <= begin and r[1] >= end])
            # Where what goes makes up for what stays there is nothing to look up: `bytes` then says too much.
            if balance > 0 and not self._grow([*ranges, *less], most):
                return False
        for v, until in longer.items():
            last[v] = max(last[v], until)
        for v in gone:
            first[v] = -1
        return True

    def write_earlier(self, values: Sequence[int], first: int, most: float) -> bool:
        """Let values be written by the step `first` already, unless more than `most` bytes would be alive somewhere."""
        placed = [v for v in map(self._placed, values) if v != UNWANTED and self.first[v] > first]
        ranges = [(first, self.first[v], self.plan.values[v].nbytes) for v in placed if not self.plan.values[v].array]
        if ranges and not self._grow(ranges, most):
            return False
        for v in placed:
            self.first[v] = first
        return True

    def _grow(self, ranges: list[tuple[int, int, int]], most: float) -> bool:
        begin, end = min([r[0] for r in ranges]), max([r[1] for r in ranges])
        before = self.bytes[begin:end]
        after = before.copy()
        for first, last, nbytes in ranges:
            after[first - begin : last - begin] += nbytes
        if bool(((after > most) & (after > before)).any()):
            return False
        self.bytes[begin:end] = after
        return True
