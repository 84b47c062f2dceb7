"""Windows over data cut into phases, so that each tap of a window is a shift of flat memory.

With a stride of s, tap t of a window meets elements t, t + s, t + 2 s, …: those of phase t mod s, from number t div s
on. Cut into its phases, each a plane a little larger than the output, the data meets all windows at once in one run of
memory a tap, which is what vector instructions want. A plane's surplus at the end of each line is computed with and
never read.

    reduce    out = f(f(data at tap 0, data at tap 1), …), one dimension after the other
    spread    data = the sum of what each window over an element has: reduce's transpose for a sum
    route     the same, but only to the first element of each window that equals its maximum
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..compute import Array
from ..pausing import pause
from .space import ALIGNED, Space
from .taps import Taps
from .window import under

__all__ = ["Phases"]


class Phases:
    """A pooling's data cut into phases, for some samples and channels.

    Args:
        xp: numpy or cupy.
        taps: the pooling's sizes.
        outer: samples and channels.
        space: what its arrays are cut from: `needs` says how many bytes; None only to ask that.
    """

    def __init__(self, xp: Any, taps: Taps, outer: tuple[int, int], space: Space | None = None) -> None:
        self._xp = xp
        self._space = space
        self._taps = taps
        self._outer = outer
        self._counts = tuple(min(s, k) for s, k in zip(taps.stride, taps.kernel, strict=True))
        self._plane = tuple(o + (k - 1) // s for o, k, s in zip(taps.out, taps.kernel, taps.stride, strict=True))
        self._steps = tuple(math.prod(self._plane[axis + 1 :]) for axis in range(len(self._plane)))
        # Whether every element of the data is in some window.
        self._whole = all(
            s <= k and (o - 1) * s + k >= n + q
            for n, o, k, s, q in zip(taps.data, taps.out, taps.kernel, taps.stride, taps.pad, strict=True)
        )
        self._length = math.prod(outer) * math.prod(self._plane)

    @staticmethod
    def pay(taps: Taps) -> bool:
        """Return whether phases are faster than tap by tap: windows share elements, and a plane has little surplus."""
        plane = math.prod(o + (k - 1) // s for o, k, s in zip(taps.out, taps.kernel, taps.stride, strict=True))
        return not taps.apart and plane <= 2 * math.prod(taps.out)

    def needs(self, *dtypes: Any) -> int:
        """Bytes for any of the methods, one after another, on arrays of these types."""
        reach = sum(map(self._reach, range(len(self._plane))))
        size = max(np.dtype(dtype).itemsize for dtype in dtypes)
        flat = (self._length + reach) * size
        phases = math.prod(self._counts) * flat
        partial = sum(math.prod(self._counts[:axis]) for axis in range(len(self._plane))) * flat
        # Either cut and reduce, or widen and spread, or what route has: two of phases, and seven of windows.
        total: int = 2 * phases + max(partial, 7 * flat) + 16 * ALIGNED
        return total

    def _taken(self, shape: tuple[int, ...], dtype: Any) -> Array:
        assert self._space is not None
        return self._space.take(shape, dtype)

    def _reach(self, axis: int) -> int:
        """The farthest shift along a dimension."""
        return (self._taps.kernel[axis] - 1) // self._taps.stride[axis] * self._steps[axis]

    def _shift(self, axis: int, tap: int) -> tuple[int, int]:
        """The phase that a tap meets along a dimension, and how far on."""
        ahead, phase = divmod(tap, self._taps.stride[axis])
        return phase, ahead * self._steps[axis]

    def _planes(self, flat: Array) -> Array:
        """Return a flat array (…, length or more) in the shape (…, batch, channel, *plane)."""
        return flat[..., : self._length].reshape(*flat.shape[:-1], *self._outer, *self._plane)

    def _places(self) -> Iterator[tuple[tuple[int, ...], tuple[Any, ...], tuple[Any, ...]]]:
        """For each phase: where it is inside the data, in its plane, and the data there."""
        taps = self._taps
        for phase in itertools.product(*map(range, self._counts)):
            met = [
                under(p - q, m, s, n)
                for p, q, m, s, n in zip(phase, taps.pad, self._plane, taps.stride, taps.data, strict=True)
            ]
            yield phase, (..., *(valid for valid, _ in met)), (..., *(source for _, source in met))

    def cut(self, data: Array, margin: Any, dtype: Any) -> Array:
        """The phases of `data` (batch, channel, *data), with `margin` around them: (*phases, flat)."""
        reach = sum(map(self._reach, range(len(self._plane))))
        flat = self._taken((*self._counts, self._length + reach), dtype)
        flat[...] = margin
        planes = self._planes(flat)
        for phase, valid, source in self._places():
            planes[phase][valid] = data[source]
        return flat

    def join(self, flat: Array, gdata: Array) -> None:
        """Write the phases to the data that they were cut from: `cut`'s transpose."""
        planes = self._planes(flat)
        if not self._whole:
            gdata[...] = 0
        for phase, valid, source in self._places():
            gdata[source] = planes[phase][valid]

    def widened(self, out: Array) -> Array:
        """Return an array of the windows, (batch, channel, *out), padded with zeros to the layout of a plane."""
        flat = self._taken((self._length,), out.dtype)
        flat[...] = 0
        self._planes(flat)[(..., *map(slice, self._taps.out))] = out
        return flat

    def narrowed(self, flat: Array) -> Array:
        """The inverse of `widened`, as a view."""
        view: Array = self._planes(flat)[(..., *map(slice, self._taps.out))]
        return view

    def reduce(self, function: Callable[..., Any], flat: Array) -> Array:
        """The windows' results: (*phases, flat) to (flat,)."""
        for axis in reversed(range(len(self._plane))):
            size = flat.shape[-1] - self._reach(axis)
            result = None
            for tap in range(self._taps.kernel[axis]):
                pause()
                phase, shift = self._shift(axis, tap)
                part = flat[..., phase, shift : shift + size]
                if tap == 0:
                    result = part
                elif tap == 1:
                    result = function(result, part, out=self._taken(part.shape, part.dtype))
                else:
                    function(result, part, out=result)
            flat = result
        return flat

    def spread(self, flat: Array) -> Array:
        """For each element the sum of `flat` over the windows that have it: (flat,) to (*phases, flat)."""
        for axis in range(len(self._plane)):
            size = flat.shape[-1]
            target = self._taken((*flat.shape[:-1], self._counts[axis], size + self._reach(axis)), flat.dtype)
            for tap in range(self._taps.kernel[axis]):
                pause()
                phase, shift = self._shift(axis, tap)
                if shift == 0:
                    target[..., phase, :size] = flat
                    target[..., phase, size:] = 0
                else:
                    part = target[..., phase, shift : shift + size]
                    self._xp.add(part, flat, out=part)
            flat = target
        return flat

    def route(self, gout: Array, data: Array, out: Array, dtype: Any) -> Array:
        """gout at the first element of each window that equals its maximum: (*phases, flat).

        Chosen by masks on the bits, not by products, so that an infinite gradient stays in its place.
        """
        xp = self._xp
        phases, top = self.cut(data, np.nan, data.dtype), self.widened(out)
        sums = self._taken(phases.shape, dtype)
        sums[...] = 0
        bits = np.dtype(f"i{gout.dtype.itemsize}")
        gbits = self.widened(gout).view(bits)
        here, left, mask, value = (self._taken((self._length,), dtype) for dtype in (bool, bool, bits, gout.dtype))
        left[...] = True
        signs = here.view("i1")
        for tap in itertools.product(*map(range, self._taps.kernel)):
            pause()
            met = [self._shift(axis, one) for axis, one in enumerate(tap)]
            phase, shift = tuple(p for p, _ in met), sum(ahead for _, ahead in met)
            run = slice(shift, shift + self._length)
            xp.equal(phases[phase][run], top, out=here)
            xp.logical_and(here, left, out=here)
            xp.logical_xor(left, here, out=left)
            mask[...] = xp.negative(signs, out=signs)
            xp.bitwise_and(mask, gbits, out=value.view(bits))
            part = sums[phase][run]
            xp.add(part, value, out=part)
        return sums
