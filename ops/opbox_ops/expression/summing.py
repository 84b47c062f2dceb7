"""Summing a value to the shape of an array that was repeated to fill it: the gradient of broadcasting.

(channel, 1, 1) repeated to (batch, channel, height, width): summed over batch, height and width
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..accumulation import accumulation_type
from ..compute import Array

__all__ = ["stretched_axes", "sum_to"]


def stretched_axes(small: tuple[int, ...], large: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of `large` along which an array of shape `small` is repeated to fill it."""
    lead = len(large) - len(small)
    return (*range(lead), *(lead + i for i, dim in enumerate(small) if dim == 1 and large[lead + i] != 1))


def sum_to(xp: Any, value: Array, out: Array, wide: Array | None = None) -> None:
    """Sum `value` into `out`, whose shape broadcasts to `value`'s.

    Args:
        wide: scratch of `out`'s shape in the type to add up in, where that is not `out`'s.
    """
    axes = stretched_axes(out.shape, value.shape)
    if not axes:
        xp.copyto(out, value.reshape(out.shape), casting="unsafe")
        return
    dtype = accumulation_type(out.dtype)
    target = out if dtype == out.dtype else wide if wide is not None else xp.empty(out.shape, dtype)
    lead = (1,) * (value.ndim - out.ndim)
    # NumPy's method takes a microsecond less than its function; on a device the function is ours.
    add_up = value.sum if xp is np else partial(xp.sum, value)
    add_up(axis=axes, dtype=dtype, keepdims=True, out=target.reshape(lead + out.shape))
    if target is not out:
        xp.copyto(out, target, casting="unsafe")
