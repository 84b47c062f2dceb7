"""0, 1, 2, … written into an array that exists: `arange` would make one."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Array

__all__ = ["count_up"]


def count_up(xp: Any, out: Array) -> Array:
    """Write 0, 1, 2, … into `out` (n,) and return it.

    Integers on the CPU are a sum of ones. Floats would be rounded in it, and a GPU's sums ask for memory: there, what
    is written is doubled until it is full.
    """
    if xp is np and out.dtype.kind in "iu":
        out.fill(1)
        out[:1] = 0
        np.add.accumulate(out, out=out)
        return out
    done = min(1, len(out))
    out[:done] = 0
    while done < len(out):
        more = min(done, len(out) - done)
        xp.add(out[:more], done, out=out[done : done + more])
        done += more
    return out
