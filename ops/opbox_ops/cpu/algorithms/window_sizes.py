"""The sizes of a convolution's or a pooling's windows over an array whose channels lie last, for C kernels."""

from __future__ import annotations

import math
from ctypes import Structure, c_long
from dataclasses import dataclass

__all__ = ["WindowSizes"]


class _WindowStructure(Structure):
    _fields_ = [
        (name, c_long)
        for name in (
            *("batch", "height", "width", "channels", "out_height", "out_width", "down_kernel", "across_kernel"),
            *("down", "across", "dilate_down", "dilate_across", "above", "before", "first"),
        )
    ]


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Windows over an array whose channels lie last; as a matrix, a row for each position of out.

    Attributes:
        data: the shape of the array as it lies: (batch, height, width, channels).
        out: height and width of out.
        kernel, stride, dilate, pad: the windows', of rows and of columns.
        first: the position that the matrix begins with.
    """

    data: tuple[int, int, int, int]
    out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilate: tuple[int, int]
    pad: tuple[int, int]
    first: int = 0

    @property
    def columns(self) -> int:
        return math.prod(self.kernel) * self.data[3]

    @property
    def structure(self) -> _WindowStructure:
        sizes = (*self.data, *self.out, *self.kernel, *self.stride, *self.dilate, *self.pad)
        return _WindowStructure(*sizes, self.first)
