"""Cutting elementwise work on large arrays into slabs.

Several NumPy calls in a row over a large array read it from memory as often; over a slab of it, from the cache. And
what they need beside it is as small as a slab.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..compute import Array, OpContext

__all__ = ["SLAB", "slabs"]

SLAB = 1 << 15
"""Elements of a slab."""


def slabs(ctx: OpContext, *arrays: Array) -> Iterator[tuple[Array, ...]]:
    """Views of the same part of each of `arrays`, which have one shape; all at once on a GPU or where not contiguous.

    Example:
        >>> for x, y in slabs(ctx, data, out):
        ...     ctx.xp.exp(x, out=y)
    """
    size = arrays[0].size
    if size <= SLAB or ctx.backend.device_type != "cpu" or not all(array.flags.c_contiguous for array in arrays):
        yield arrays
        return
    flat = [array.reshape(-1) for array in arrays]
    for start in range(0, size, SLAB):
        yield tuple([array[start : start + SLAB] for array in flat])
