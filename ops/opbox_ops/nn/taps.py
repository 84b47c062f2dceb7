"""Sliding a window over data tap by tap: the NumPy way of pooling.

A tap is one position in the window. Over all windows at once it meets a strided slice of the data, so that a pooling
is some calls a tap, not a loop over windows. Windows that overlap, or reach over the edge, are faster in `phases`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..cache import WINDOW_TILE
from ..compute import Array
from ..pausing import pause
from .space import Space
from .window import under

__all__ = ["Taps", "route", "spread", "tile_of", "tiles"]

MAX_WINDOW_POSITIONS = 1 << 28
"""Maximum number of positions in all windows of a channel for one call of a kernel."""


@dataclass(frozen=True, slots=True)
class Taps:
    """A pooling's sizes, a number a spatial dimension, and where each tap of the window meets the data."""

    data: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]

    @property
    def whole(self) -> bool:
        """True if one window covers all the data."""
        return self.kernel == self.data and not any(self.pad) and math.prod(self.out) == 1

    @property
    def covered(self) -> bool:
        """True if no window reaches outside the data."""
        reach = [(o - 1) * s + k for o, s, k in zip(self.out, self.stride, self.kernel, strict=True)]
        return not any(self.pad) and all(r <= n for r, n in zip(reach, self.data, strict=True))

    def __iter__(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """For each tap: the output positions where it is inside the data, and the data there."""
        for tap in itertools.product(*map(range, self.kernel)):
            pause()
            starts = [t - q for t, q in zip(tap, self.pad, strict=True)]
            met = [under(*axis) for axis in zip(starts, self.out, self.stride, self.data, strict=True)]
            yield (..., *(valid for valid, _ in met)), (..., *(source for _, source in met))

    def along(self, axis: int) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """The same for the taps along one dimension, the others taken whole."""
        before, after = (slice(None),) * (axis + 2), (slice(None),) * (len(self.out) - axis - 1)
        for tap in range(self.kernel[axis]):
            pause()
            valid, source = under(tap - self.pad[axis], self.out[axis], self.stride[axis], self.data[axis])
            yield (*before, valid, *after), (*before, source, *after)

    @property
    def meet_data(self) -> bool:
        """True if every window has some of the data, not padding alone."""
        last = [(o - 1) * s - q for o, s, q in zip(self.out, self.stride, self.pad, strict=True)]
        narrow = all(q < k for q, k in zip(self.pad, self.kernel, strict=True))
        return narrow and all(start < n for start, n in zip(last, self.data, strict=True))

    @property
    def fit_one_call(self) -> bool:
        """True if one call, which nothing stops, may look at all places of the windows: NumPy looks at whole rows."""
        return math.prod(self.kernel) * math.prod(self.out) <= MAX_WINDOW_POSITIONS

    @property
    def apart(self) -> bool:
        """True if no two windows share an element."""
        return all(k <= s or o == 1 for o, k, s in zip(self.out, self.kernel, self.stride, strict=True))

    def counts(self, xp: Any, include_pad: bool, dtype: Any) -> Any:
        """Return avg's divisor: a number, or an array (*out) where windows differ, made once."""
        return math.prod(self.kernel) if self.covered else _counts(self, xp, include_pad, np.dtype(dtype))


@lru_cache(64)
def _counts(taps: Taps, xp: Any, include_pad: bool, dtype: Any) -> Array:
    counts = None
    for axis, (n, o, k, s, q) in enumerate(zip(taps.data, taps.out, taps.kernel, taps.stride, taps.pad, strict=True)):
        start = xp.arange(o) * s - q
        stop = xp.minimum(start + k, n + q)
        if not include_pad:
            start, stop = xp.maximum(start, 0), xp.minimum(stop, n)
        # A window that lies beyond the padding ("full") has the sum 0, whatever it is divided by.
        along = xp.maximum(stop - start, 1).reshape([-1 if a == axis else 1 for a in range(len(taps.out))])
        counts = along if counts is None else counts * along
    assert counts is not None
    return counts.astype(dtype)


def tile_of(shape: tuple[int, ...], device: str) -> tuple[int, int]:
    """Return how many samples and channels of out (batch, channel, *out) make WINDOW_TILE elements; all on a GPU."""
    channels, size = shape[1], math.prod(shape[2:])
    if device != "cpu":
        return shape[0], channels
    samples = max(1, WINDOW_TILE // max(1, size * channels))
    return min(shape[0], samples), channels if samples > 1 else min(channels, max(1, WINDOW_TILE // max(1, size)))


def tiles(device: str, shape: tuple[int, ...]) -> Iterator[tuple[slice, slice]]:
    """Parts of the batch and channel axes, as large as `tile_of` says."""
    samples, across = tile_of(shape, device)
    for n in range(0, shape[0], samples or 1):
        for c in range(0, shape[1], across or 1):
            yield slice(n, n + samples), slice(c, c + across)


def spread(xp: Any, taps: Taps, value: Array, gdata: Array, space: Space) -> None:
    """Add `value` to all the elements of its windows in `held`, one dimension after the other."""
    for axis in reversed(range(len(taps.out))):
        target = gdata
        if axis > 0:
            shape = (*value.shape[: axis + 2], taps.data[axis], *value.shape[axis + 3 :])
            target = space.take(shape, gdata.dtype)
            target.fill(0)
        for valid, taken in taps.along(axis):
            target[taken] += value[valid]
        value = target


def route(xp: Any, taps: Taps, gout: Array, data: Array, out: Array, gdata: Array, space: Space) -> None:
    """Add gout to `held`, which is zeros, at the first element of each window that equals its maximum.

    Chosen by masks on the bits, not by products, so that an infinite gradient stays in its place.
    """
    bits = np.dtype(f"i{gout.dtype.itemsize}")
    gbits = space.take(gout.shape, gout.dtype)
    xp.copyto(gbits, gout)
    gbits = gbits.view(bits)
    here, left = space.take(gout.shape, bool), space.take(gout.shape, bool)
    mask, value = space.take(gout.shape, bits), space.take(gout.shape, gout.dtype)
    left.fill(True)
    for valid, source in taps:
        met, free, part = here[valid], left[valid], gdata[source]
        xp.equal(data[source], out[valid], out=met)
        xp.logical_and(met, free, out=met)
        xp.logical_xor(free, met, out=free)
        xp.copyto(mask[valid], met)
        xp.negative(mask[valid], out=mask[valid])
        if taps.apart:
            xp.bitwise_and(mask[valid], gbits[valid], out=part.view(bits))
        else:
            xp.bitwise_and(mask[valid], gbits[valid], out=value[valid].view(bits))
            xp.add(part, value[valid], out=part)
