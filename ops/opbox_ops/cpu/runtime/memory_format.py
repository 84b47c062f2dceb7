"""How an array lies in memory, as kernels for images are told: shape and strides with the channels second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compute import PLAIN, ArraySpec
from ...layout import physical_shape

__all__ = ["MemoryFormat", "memory_of"]


@dataclass(frozen=True, slots=True)
class MemoryFormat:
    """An array's shape and strides, in elements, in the order of axes that kernels take: channels second."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @classmethod
    def plain(cls, shape: Sequence[int], dtype: Any, order: Sequence[int] | None = None) -> MemoryFormat:
        """An array of `shape`, row-major, whose axes a kernel takes in `order`."""
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        axes = range(len(shape)) if order is None else order
        return cls(tuple(shape[i] for i in axes), tuple(strides[i] for i in axes), np.dtype(dtype).name)

    @property
    def channels_last(self) -> bool:
        """True if it is of images, two dimensions each, whose channels lie last."""
        return len(self.shape) == 4 and self.strides[1] == 1 and self.strides[3] == self.shape[1]


def memory_of(spec: ArraySpec, order: Sequence[int] | None = None) -> MemoryFormat:
    """Describe an array to come, whose axes a kernel takes in `order`; one whose layout is not "plain" has its own."""
    if spec.layout != PLAIN:
        ndim = len(spec.shape)
        order = (0, ndim - 1, *range(1, ndim - 1))
    return MemoryFormat.plain(physical_shape(spec), spec.dtype, order)
