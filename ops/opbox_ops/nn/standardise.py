"""Standardising along axes: x = (data - mean) / std, and the gradient of that. What the normalisation layers share.

mean and std are taken along the last axis of (…, n) arrays, std = sqrt(variance + eps) of the biased variance. For
g, the gradient of x:

    gdata = (g - mean(g) - x mean(g x)) / std
"""

from __future__ import annotations

from typing import Any

from ..compute import Array

__all__ = ["gradient", "standardise"]


def standardise(xp: Any, data: Array, eps: float, x: Array, square: Array) -> tuple[Array, Array]:
    """Write the standardised `data` (…, n) to `x`, and return mean and std (…, 1).

    `x` and `square`, which is worked in, are arrays of data's shape in its wide type.
    """
    n = max(1, data.shape[-1])
    mean = xp.sum(data, axis=-1, keepdims=True, dtype=x.dtype)
    mean /= n
    xp.subtract(data, mean, out=x)
    xp.multiply(x, x, out=square)
    std = xp.sum(square, axis=-1, keepdims=True)
    std /= n
    std += eps
    xp.sqrt(std, out=std)
    x /= std
    return mean, std


def gradient(xp: Any, g: Array, x: Array, std: Array, product: Array) -> None:
    """Overwrite `g` (…, n), the gradient of `x`, with that of data; `product` is worked in."""
    n = max(1, g.shape[-1])
    xp.multiply(g, x, out=product)
    along = xp.sum(product, axis=-1, keepdims=True)
    along /= n
    middle = xp.sum(g, axis=-1, keepdims=True)
    middle /= n
    xp.multiply(x, along, out=product)
    g -= middle
    g -= product
    g /= std
