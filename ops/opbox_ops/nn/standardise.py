"""Standardising along axes: x = (data - mean) / std, and the gradient of that. What the normalisation layers share.

mean and std are taken along the last axis of (…, n) arrays, std = sqrt(variance + eps) of the biased variance. For
g, the gradient of x:

    gdata = (g - mean(g) - x mean(g x)) / std
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..accumulation import widened
from ..compute import Array

__all__ = ["Work", "gradient", "standardise"]


class Work(NamedTuple):
    """Arrays to work in, of data's wide type.

    Attributes:
        x, product: of data's shape (…, n).
        mean, std: (…, 1).
    """

    x: Array
    product: Array
    mean: Array
    std: Array


def standardise(xp: Any, data: Array, eps: float, work: Work) -> None:
    """Write the standardised `data` to `work.x`, its mean and std to `work.mean` and `work.std`."""
    n, x, mean, std = max(1, data.shape[-1]), work.x, work.mean, work.std
    data = widened(data, x)
    xp.sum(data, axis=-1, keepdims=True, out=mean)
    mean /= n
    xp.subtract(data, mean, out=x)
    xp.multiply(x, x, out=work.product)
    xp.sum(work.product, axis=-1, keepdims=True, out=std)
    std /= n
    std += eps
    xp.sqrt(std, out=std)
    x /= std


def gradient(xp: Any, g: Array, work: Work, middle: Array) -> None:
    """Overwrite `g` (…, n), the gradient of `work.x`, with that of data.

    `middle` (…, 1) is worked in, and so are the mean and the product of `work`.
    """
    n, product, along = max(1, g.shape[-1]), work.product, work.mean
    xp.multiply(g, work.x, out=product)
    xp.sum(product, axis=-1, keepdims=True, out=along)
    along /= n
    xp.sum(g, axis=-1, keepdims=True, out=middle)
    middle /= n
    xp.multiply(work.x, along, out=product)
    g -= middle
    g -= product
    g /= work.std
