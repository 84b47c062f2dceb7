"""0, 1, 2, … written into an array that exists: `arange` would make one."""

from __future__ import annotations

from typing import Any

from ..compute import Array

__all__ = ["count_up"]


def count_up(xp: Any, out: Array) -> Array:
    """Write 0, 1, 2, … into `out` (n,) and return it; what is there is doubled until it is full."""
    done = min(1, len(out))
    out[:done] = 0
    while done < len(out):
        more = min(done, len(out) - done)
        xp.add(out[:more], done, out=out[done : done + more])
        done += more
    return out
