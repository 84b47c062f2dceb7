"""The gradient of broadcasting: a sum over the axes along which an array was repeated."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Array, OpReq, assign

__all__ = ["stretched_axes", "sum_to"]


def stretched_axes(small: tuple[int, ...], large: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of `large` along which an array of shape `small` is repeated to fill it."""
    lead = len(large) - len(small)
    return (*range(lead), *(lead + i for i, dim in enumerate(small) if dim == 1 and large[lead + i] != 1))


def sum_to(xp: Any, value: Array, req: OpReq, out: Array) -> None:
    """Sum `value` into `out`, whose shape broadcasts to `value`'s, as `req` says; half precision adds in float32."""
    if req == OpReq.NULL:
        return
    axes = stretched_axes(out.shape, value.shape)
    if not axes:
        assign(out, req, value)
        return
    wide = np.dtype(np.float32) if out.dtype.kind not in "iub" and out.dtype.itemsize < 4 else out.dtype
    if req != OpReq.ADD and out.dtype == wide and out.flags.c_contiguous:
        lead = len(value.shape) - len(out.shape)
        value.sum(axis=axes, dtype=wide, keepdims=True, out=out.reshape((1,) * lead + out.shape))
    else:
        assign(out, req, value.sum(axis=axes, dtype=wide, keepdims=True).reshape(out.shape))
