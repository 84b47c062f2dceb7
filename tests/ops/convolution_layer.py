"""A convolution over arrays whose channels lie last, for tests of its kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from opbox_ops.compute import Array
from opbox_ops.cpu.runtime.memory_format import MemoryFormat

__all__ = ["LAST", "Layer", "Pair"]

LAST = (0, 3, 1, 2)
Pair = tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """A convolution."""

    data: tuple[int, int, int, int]
    filters: int
    kernel: Pair = (3, 3)
    stride: Pair = (2, 2)
    dilate: Pair = (1, 1)
    pad: Pair = (1, 1)

    @property
    def window(self) -> tuple[Pair, Pair, Pair]:
        return self.stride, self.dilate, self.pad

    @property
    def out(self) -> tuple[int, int, int, int]:
        height, width = (
            (n + 2 * p - (k - 1) * d - 1) // s + 1
            for n, k, s, d, p in zip(self.data[1:3], self.kernel, *self.window, strict=True)
        )
        return self.data[0], height, width, self.filters

    @property
    def weight(self) -> tuple[int, int, int, int]:
        return (self.filters, self.data[3], *self.kernel)

    @property
    def memories(self) -> tuple[MemoryFormat, MemoryFormat, MemoryFormat]:
        """Data, weight and out."""
        data, out = (MemoryFormat.plain(shape, "float32", LAST) for shape in (self.data, self.out))
        return data, MemoryFormat.plain(self.weight, "float32"), out

    def arrays(self) -> list[Array]:
        """Data, weight and a gradient of out."""
        rng = np.random.default_rng(5)
        return [rng.normal(size=shape).astype(np.float32) for shape in (self.data, self.weight, self.out)]

    def places(self) -> list[tuple[int, int, slice, slice]]:
        """Rows and columns of the kernel, and where in padded data they are."""
        (down, across), (_, height, width, _) = self.stride, self.out
        return [
            (i, j, slice(y, y + (height - 1) * down + 1, down), slice(x, x + (width - 1) * across + 1, across))
            for i, y in enumerate(range(0, self.kernel[0] * self.dilate[0], self.dilate[0]))
            for j, x in enumerate(range(0, self.kernel[1] * self.dilate[1], self.dilate[1]))
        ]

    def padded(self) -> Array:
        (above, before), (batch, height, width, channels) = self.pad, self.data
        return np.zeros((batch, height + 2 * above, width + 2 * before, channels))

    def inside(self, padded: Array) -> Array:
        (above, before), (_, height, width, _) = self.pad, self.data
        return padded[:, above : above + height, before : before + width]
