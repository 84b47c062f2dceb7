"""CuPy as computes call it: its sums, products and extremes over axes are made by the kernels of `fold`.

CuPy makes each result in one block, so that few results of many elements leave a device idle. What the kernels do not
take is CuPy's: arrays that are not contiguous, no array to write to, a type that is added up in another way.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from .. import trust
from ..compute import LEVELS, highest_level
from .fold import Fold, How
from .kernel import computed_type
from .stream_scratch import SCRATCH_BYTES, stream_scratch

__all__ = ["ArrayModule"]

_CHECKED = {how: f"{name}/cuda.reductions" for how, name in zip(How, ("sum", "prod", "max", "min"), strict=False)}
"""The computes whose self-check speaks for these kernels (`trust`)."""
_MIN_ELEMENTS = 1 << 13
"""Fewer elements are one block's work."""


@lru_cache(4096)
def _fold_of(shape: tuple[int, ...], axes: tuple[int, ...], dtype: np.dtype[Any], least: int) -> Fold | None:
    """The fold of axes of at least so many elements, whose slices have their scratch in a stream's."""
    fold = Fold.of(shape, [axis % len(shape) for axis in axes], dtype)
    if fold is None or fold.n * fold.results < least:
        return None
    return fold if fold.parts.shape[0] * fold.parts.dtype.itemsize <= SCRATCH_BYTES else None


class ArrayModule:
    """The module `cupy`, but for reductions that a device is made for.

    Args:
        cupy: the module.
    """

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cupy, name)

    def sum(self, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """See numpy.sum."""
        if self._fold(How.SUM, a, axis, dtype, out):
            return out
        return self._cupy.sum(a, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def sum_rounded(self, a: Any, axis: int, out: Any) -> bool:
        """Add up an axis in the type that `a` is computed in, and round the sums to `out`, which has a's own type.

        CuPy takes two calls for it, and an array between them.

        Returns:
            Whether it is done: False leaves it to CuPy.
        """
        return self._fold(How.SUM, a, axis, computed_type(a.dtype), out)

    def prod(self, a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """See numpy.prod."""
        if self._fold(How.PRODUCT, a, axis, dtype, out):
            return out
        return self._cupy.prod(a, axis=axis, dtype=dtype, out=out, keepdims=keepdims)

    def max(self, a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """See numpy.max."""
        if self._fold(How.MAX, a, axis, None, out):
            return out
        return self._cupy.max(a, axis=axis, out=out, keepdims=keepdims)

    def min(self, a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        """See numpy.min."""
        if self._fold(How.MIN, a, axis, None, out):
            return out
        return self._cupy.min(a, axis=axis, out=out, keepdims=keepdims)

    def _fold(self, how: How, a: Any, axis: Any, dtype: Any, out: Any) -> bool:
        """Fold `a` into `out`; False: that is left to CuPy."""
        if out is None or highest_level() == LEVELS[0] or not (a.flags.c_contiguous and out.flags.c_contiguous):
            return False
        added = out.dtype if dtype is None else np.dtype(dtype)
        wide, whole = computed_type(a.dtype), a.dtype.kind in "iub"
        exact = added == wide or (added == a.dtype and (a.dtype.kind in "iu" or how >= How.MAX))
        converted = whole and added.kind == "f" and how == How.SUM
        rounded = added == wide != out.dtype == a.dtype
        if not rounded and (added != out.dtype or not (exact or converted)):
            return False
        axes = range(a.ndim) if axis is None else axis if isinstance(axis, Iterable) else (axis,)
        fold = _fold_of(a.shape, tuple(axes), a.dtype, 1 if rounded else _MIN_ELEMENTS)
        if fold is None or out.size != fold.results or not trust.is_trusted(_CHECKED[how], a.dtype.name):
            return False
        parts_bytes = fold.parts.shape[0] * wide.itemsize
        if converted and parts_bytes + fold.results * wide.itemsize > SCRATCH_BYTES:
            return False
        memory = stream_scratch(self._cupy)
        if memory is None:
            return False
        parts = self._cupy.ndarray(fold.parts.shape, wide, memptr=memory)
        target = self._cupy.ndarray((fold.results,), wide, memptr=memory + parts_bytes) if converted else out
        fold.bind(self._cupy, how, a, target, parts)()
        if converted:
            self._cupy.copyto(out, target.reshape(out.shape), casting="unsafe")
        return True
