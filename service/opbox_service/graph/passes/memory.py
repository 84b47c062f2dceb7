"""The memory planner: which values share memory, and where each lies in one arena.

A plan is a list of steps that read and write values. A value that the planner may place lives from the step that
writes it to the last step that reads it; values that are never alive together may lie in the same bytes.

1. Sharing. A view (a reshape) is its input under another shape and costs no step. An output may take the memory of an
   input that dies in that step when the operator allows it (FInplaceOption) and nothing else of the step reads it.
   Where the output lies outside the arena (a gradient array of the user, an executor output), the input is moved there.
2. Placing. Groups of sharing values are intervals in time with a size; they are given offsets greedily into the best
   gap: in the order of time, as an allocator does, and unless that is the best there can be, largest first too; the
   smallest arena wins. The latter is the "greedy by size" of Pisarchyk and Lee, Efficient Memory Management for Deep
   Neural Net Inference, 2020.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from opbox_ops.backend.base import ALIGNMENT
from opbox_protocol.errors import LimitError

from ...task import NODES, checkpoint

__all__ = ["External", "MemoryPlan", "StepUse", "aligned", "plan_memory"]

FOREVER = 1 << 60
MANY = 4000
"""Number of groups from which on only the fast placement is tried."""


class StepUse(NamedTuple):
    """A step as the planner sees it; values are numbers.

    Attributes:
        reads, writes: in the order of the operator's inputs and outputs; -1 for an output that nobody wants.
        inplace: (position in reads, position in writes) pairs that may share memory.
        view: whether writes[0] is reads[0] under another shape.
        temps: bytes of each temporary.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inplace: tuple[tuple[int, int], ...] = ()
    view: bool = False
    temps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class External:
    """A value in memory that the planner does not manage, such as a user's array.

    Attributes:
        adopt: whether values that flow into it in place may live there before: only where its first step may be
            `since` or later, so that a gradient array is not touched by forward.
    """

    adopt: bool = False
    since: int = 0


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets of all values in the arena, and the arena's size.

    Attributes:
        home: for each value, an offset into the arena; or None when it lies in an external value's memory.
        owner: for a value in external memory, the external value (itself, or the one that it is a view of).
        temps: offsets of each step's temporaries.
        inplace: for each step, which output shares memory with which input, by position.
        elided: the view steps that need not run.
        arena_bytes: the arena's size.
        naive_bytes: the sum of the sizes of all placed values, each for itself; temporaries not counted.
        live_bytes: the most that is alive in any one step: no plan can do with less.
        temp_bytes: the temporaries of the greediest step.
        overwritten: whether the steps from `boundary` on overwrite what earlier ones left for them.
        kept_bytes: with `apart`, the bytes at the arena's beginning that hold what earlier steps leave for those from
            `boundary` on, and nothing else.
    """

    home: list[int | None]
    owner: list[int | None]
    temps: list[tuple[int, ...]]
    inplace: list[dict[int, int]]
    elided: frozenset[int]
    arena_bytes: int
    naive_bytes: int
    live_bytes: int
    temp_bytes: int
    overwritten: bool
    kept_bytes: int = 0


@dataclass(slots=True, eq=False)
class _MemoryGroup:
    """Values that share memory."""

    nbytes: int
    first: int
    last: int
    external: int | None = None
    writes: list[int] = field(default_factory=list)
    offset: int = 0


def plan_memory(
    steps: Sequence[StepUse],
    nbytes: Sequence[int],
    external: dict[int, External],
    *,
    boundary: int | None = None,
    share: bool = True,
    apart: bool = False,
    keep: bool = False,
) -> MemoryPlan:
    """Place the values of `steps`.

    Args:
        steps: in the order they run.
        nbytes: the size of each value.
        external: the values that have memory of their own; written at most once if `adopt`.
        boundary: the first step of the backward half: `overwritten` says whether it destroys what it reads.
        share: False gives every value memory of its own (for measuring and testing).
        apart: give what lives across the boundary memory of its own, at the arena's beginning.
        keep: let nothing from the boundary on overwrite what was left for it.

    Raises:
        LimitError: the sizes go beyond what can be addressed.
    """
    total = sum(nbytes) + sum([sum(step.temps) for step in steps if step.temps])
    if total >= FOREVER:
        raise LimitError(f"the graph's values take {total:,} bytes together: no memory holds them")
    planner = _Planner(steps, nbytes, external, share)
    planner.group(boundary if keep else None)
    return planner.place(boundary, apart)


class _Planner:
    def __init__(
        self, steps: Sequence[StepUse], nbytes: Sequence[int], external: dict[int, External], share: bool
    ) -> None:
        self.steps = steps
        self.nbytes = nbytes
        self.external = external
        self.share = share
        self.last = [-1] * len(nbytes)
        last = self.last
        for t, step in enumerate(steps):
            if not t % NODES:
                checkpoint(NODES)
            for value in step.reads:
                last[value] = t
            for value in step.writes:
                if value >= 0:
                    last[value] = t
        self.groups: list[_MemoryGroup | None] = [None] * len(nbytes)
        for value in external:
            self.groups[value] = _MemoryGroup(nbytes[value], -1, FOREVER, value)
        self.inplace: list[dict[int, int]] = [{} for _ in steps]
        self.elided: set[int] = set()

    def group(self, kept_from: int | None) -> None:
        """Make the groups; those alive at step `kept_from` live to the end."""
        for t, step in enumerate(self.steps):
            if not t % NODES:
                checkpoint(NODES)
            if t == kept_from:
                for group in self.groups:
                    if group is not None and group.last >= t:
                        group.last = FOREVER
            if step.view and self.share and self._alias(t, step):
                self.elided.add(t)
                continue
            if step.inplace and self.share:
                shared = self.inplace[t]
                for read, write in step.inplace:
                    if (
                        write not in shared
                        and step.writes[write] >= 0
                        and read not in shared.values()
                        and self._join(t, step, read, write)
                    ):
                        shared[write] = read
            for value in step.writes:
                if value < 0:
                    continue
                group = self.groups[value]
                if group is None:
                    group = self.groups[value] = _MemoryGroup(self.nbytes[value], t, self.last[value])
                group.writes.append(t)

    def _alias(self, t: int, step: StepUse) -> bool:
        """Make the view's output its input; False when both have memory of their own."""
        source, value = step.reads[0], step.writes[0]
        group, target = self.groups[source], self.groups[value]
        assert group is not None
        if group.nbytes != self.nbytes[value]:
            return False
        if target is None:
            self.groups[value] = group
            group.last = max(group.last, self.last[value])
            return True
        return self._adopt(t, group, value, target)

    def _join(self, t: int, step: StepUse, read: int, write: int) -> bool:
        source, value = step.reads[read], step.writes[write]
        group, target = self.groups[source], self.groups[value]
        if group is None or group.external is not None or group.last != t or group.nbytes != self.nbytes[value]:
            return False
        if len(step.reads) > 1 and sum([self.groups[read] is group for read in step.reads]) != 1:
            return False
        if target is None:
            self.groups[value] = group
            group.last = self.last[value]
            return True
        return target is not group and self._adopt(t, group, value, target)

    def _adopt(self, t: int, group: _MemoryGroup, value: int, target: _MemoryGroup) -> bool:
        """Move a group into the external memory that it flows into."""
        terms = self.external.get(value)
        if terms is None or not terms.adopt or group.external is not None or not self.share:
            return False
        if group.nbytes != target.nbytes or group.first < terms.since or target.writes:
            return False
        # Views and earlier in-place values point to the group itself, so moving it moves them all.
        group.external, group.last = value, FOREVER
        self.groups[value] = group
        return True

    def place(self, boundary: int | None, apart: bool) -> MemoryPlan:
        groups = list(dict.fromkeys(g for g in self.groups if g is not None and g.external is None))
        temps = {
            t: [_MemoryGroup(size, t, t) for size in step.temps] for t, step in enumerate(self.steps) if step.temps
        }
        everything = [g for g in itertools.chain(groups, *temps.values()) if g.nbytes > 0]
        live = _peak(everything, len(self.steps))
        across = [g for g in everything if apart and boundary is not None and g.first < boundary <= g.last]
        kept_bytes = _stack(across)
        apart_from = set(map(id, across))
        checkpoint(NODES)
        others = [g for g in everything if id(g) not in apart_from] if across else everything
        arena = _best_fit(others, _peak(others, len(self.steps)) if across else live) if self.share else _stack(others)
        if kept_bytes:
            arena += kept_bytes
            for group in others:
                group.offset += kept_bytes
        checkpoint(NODES)
        placed = [v for v, group in enumerate(self.groups) if group is not None and v not in self.external]
        return MemoryPlan(
            home=[None if g is None or g.external is not None else g.offset for g in self.groups],
            owner=[None if g is None else g.external for g in self.groups],
            temps=[tuple([g.offset for g in temps[t]]) if step.temps else () for t, step in enumerate(self.steps)],
            inplace=self.inplace,
            elided=frozenset(self.elided),
            arena_bytes=arena,
            naive_bytes=sum(self.nbytes[v] for v in placed),
            live_bytes=live,
            temp_bytes=max((sum(step.temps) for step in self.steps), default=0),
            overwritten=boundary is not None and _overwritten(everything, boundary),
            kept_bytes=kept_bytes,
        )


def _best_fit(groups: list[_MemoryGroup], live: int) -> int:
    """Place the groups in the order that needs least; `live` is the best that can be.

    The order of time costs little more than a look at each group; the others look at all that are placed, so that
    they are left out for very many.
    """
    total = _fit_in_time(groups)
    if total == live or len(groups) > MANY:
        return total
    sizes = []
    for order in _ORDERS:
        sizes.append(_fit(groups, order))
        if sizes[-1] == live:
            return live
    return _fit_in_time(groups) if total <= min(sizes) else _fit(groups, _ORDERS[sizes.index(min(sizes))])


def _fit_in_time(groups: list[_MemoryGroup]) -> int:
    """Give every group the best gap as an allocator would, in the order of time; the bytes that all take."""
    ending: list[tuple[int, int, int]] = []
    begins: list[int] = []
    ends: list[int] = []
    top = total = 0
    for k, group in enumerate(sorted(groups, key=lambda group: (group.first, -group.nbytes))):
        if not k % NODES:
            checkpoint(NODES)
        while ending and ending[0][0] < group.first:
            _, begin, end = heapq.heappop(ending)
            at = bisect.bisect_left(begins, begin)
            if at < len(begins) and begins[at] == end:
                end = ends[at]
                del begins[at], ends[at]
            if at and ends[at - 1] == begin:
                at -= 1
                begin = begins[at]
                del begins[at], ends[at]
            if end == top:
                top = begin
            else:
                begins.insert(at, begin)
                ends.insert(at, end)
        size = aligned(group.nbytes)
        best, smallest = None, FOREVER
        for gap, begin in enumerate(begins):
            if size <= ends[gap] - begin < smallest:
                best, smallest = gap, ends[gap] - begin
        if best is None:
            group.offset, top = top, top + size
        else:
            group.offset = begins[best]
            begins[best] += size
            if begins[best] == ends[best]:
                del begins[best], ends[best]
        heapq.heappush(ending, (group.last, group.offset, group.offset + size))
        if top > total:
            total = top
    return total


def _fit(groups: list[_MemoryGroup], order: Callable[[_MemoryGroup], tuple[int, ...]]) -> int:
    """Give every group the best gap among those alive with it, in `order`; the bytes that all take."""
    first, last, begin, end = (np.empty(len(groups), np.int64) for _ in range(4))
    total = 0
    for k, group in enumerate(sorted(groups, key=order)):
        checkpoint()
        size = aligned(group.nbytes)
        alive = (first[:k] <= group.last) & (last[:k] >= group.first)
        begins, ends = begin[:k][alive], end[:k][alive]
        by_offset = np.argsort(begins, kind="stable")
        # Gaps lie between the furthest end so far and the next beginning; the last one is open.
        starts = np.concatenate(([0], np.maximum.accumulate(ends[by_offset])))
        gaps = np.concatenate((begins[by_offset], [FOREVER])) - starts
        fitting = np.flatnonzero(gaps >= size)
        group.offset = int(starts[fitting[np.argmin(gaps[fitting])]])
        first[k], last[k], begin[k], end[k] = group.first, group.last, group.offset, group.offset + size
        total = max(total, group.offset + size)
    return total


def aligned(nbytes: int) -> int:
    """The bytes that a value takes in an arena, where each begins at a multiple of ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


_ORDERS: tuple[Callable[[_MemoryGroup], tuple[int, ...]], ...] = (
    lambda group: (-group.nbytes, group.first),
    lambda group: (-(group.last - group.first + 1) * group.nbytes, group.first),
)


def _stack(groups: list[_MemoryGroup]) -> int:
    total = 0
    for group in groups:
        group.offset = total
        total += aligned(group.nbytes)
    return total


def _peak(groups: list[_MemoryGroup], steps: int) -> int:
    change = [0] * (steps + 1)
    for group in groups:
        change[group.first] += aligned(group.nbytes)
        change[min(group.last + 1, steps)] -= aligned(group.nbytes)
    return max(itertools.accumulate(change), default=0)


def _overwritten(groups: list[_MemoryGroup], boundary: int) -> bool:
    crossing = sorted((g for g in groups if g.first < boundary <= g.last), key=lambda g: g.offset)
    later = [g for g in groups if g.first >= boundary]
    if any(t >= boundary for g in crossing for t in g.writes):
        return True
    if not crossing or not later:
        return False
    # Values that are alive at once are apart, so of those kept the last to begin before another's end decides.
    begins = np.array([g.offset for g in crossing])
    ends = begins + np.array([g.nbytes for g in crossing])
    before = np.searchsorted(begins, [g.offset + g.nbytes for g in later])
    return bool(np.any((before > 0) & (ends[before - 1] > [g.offset for g in later])))
