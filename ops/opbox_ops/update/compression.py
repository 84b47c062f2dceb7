"""2-bit gradient compression: what is sent of a gradient is -threshold, 0 or threshold; the rest waits in a residual.

As MXNet 1.9.1 does it: the gradient is added to the residual; where that reaches the threshold, the threshold is sent
and subtracted from it (https://mxnet.apache.org/versions/1.9.1/api/faq/gradient_compression).
"""

from __future__ import annotations

from typing import Any

from opbox_protocol.errors import DTypeError, ShapeError

from ..compute import Array

__all__ = ["quantize_2bit"]


def quantize_2bit(xp: Any, gradient: Array, residual: Array, threshold: float, out: Array) -> None:
    """Write what is sent of a gradient to `out`, and keep the rest in `residual`.

    Args:
        xp: numpy or cupy.
        gradient, residual, out: float32 arrays of one shape. NaN is never sent, and stays in the residual.
        threshold: above 0.

    Raises:
        DTypeError: an array of another type.
        ShapeError: arrays of several shapes.
    """
    for name, array in (("gradient", gradient), ("residual", residual)):
        if array.dtype != xp.float32:
            raise DTypeError(f"2-bit compression: {name}: expected float32, got {array.dtype}")
    if gradient.shape != residual.shape:
        raise ShapeError(f"2-bit compression: gradient: expected shape {residual.shape}, got {gradient.shape}")
    step = xp.float32(threshold)
    xp.add(residual, gradient, out=residual)
    out[...] = residual >= step
    out -= residual <= -step
    out *= step
    xp.subtract(residual, out, out=residual)
