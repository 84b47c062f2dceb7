"""When gradients of a bound plan are final: after which call of backward nothing writes to their arrays any more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from numpy.lib.array_utils import byte_bounds

from opbox_ops.compute import Array

__all__ = ["Follower", "ends_of"]


class Follower(Protocol):
    """Somebody who follows a backward."""

    @property
    def stops(self) -> Sequence[int]:
        """In rising order, the numbers of calls after which `reached` is wanted."""

    def reached(self, calls: int) -> None:
        """Note that so many calls have ended."""


def ends_of(
    gradients: Mapping[str, Array], others: Iterable[Array], writes: Sequence[Sequence[Array]], zeros: Iterable[str]
) -> dict[str, int]:
    """The number of calls after which each gradient is final.

    One that shares memory with another array, that is not contiguous, or that no call writes to, is left out.

    Args:
        gradients: by argument.
        others: all other arrays that the plan is bound to.
        writes: for each call of backward, the arrays that it writes.
        zeros: arguments whose gradients are filled with zeros before all calls.
    """
    own = {name: array for name, array in gradients.items() if array.size and array.flags.c_contiguous}
    rest = [array for name, array in gradients.items() if name not in own]
    places = [(*byte_bounds(array), name) for name, array in own.items()]
    places += [(*byte_bounds(array), "") for array in (*rest, *others) if array.size]
    shared: set[str] = set()
    reach, reaching = 0, ""
    for begin, end, name in sorted(places):
        if begin < reach:
            shared |= {name, reaching}
        if end > reach:
            reach, reaching = end, name
    # Those left do not overlap: in the order of where they begin they are in that of where they end too.
    apart = sorted([place for place in places if place[2] and place[2] not in shared])
    begins = [begin for begin, _, _ in apart]
    ends = {name: 0 for name in zeros if name in own and name not in shared}
    for number, arrays in enumerate(writes, 1):
        for array in arrays:
            if array.size:
                first, last = byte_bounds(array)
                at = bisect_left(begins, last) - 1
                while at >= 0 and apart[at][1] > first:
                    ends[apart[at][2]] = number
                    at -= 1
    return ends
