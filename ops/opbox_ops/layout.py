"""Memory layouts of an array: in the order of its axes, or with the channels last.

An array (batch, channel, *spatial) of the layout "channels_last" has that shape for everybody who computes with it; its
memory is (batch, *spatial, channel), row-major. `physical` is the array as it lies, `logical` the way back.
"""

from __future__ import annotations

from .compute import PLAIN, Array, ArraySpec

__all__ = ["CHANNELS_LAST", "as_laid", "logical", "physical"]

CHANNELS_LAST = "channels_last"


def as_laid(spec: ArraySpec) -> tuple[int, ...]:
    """The shape of the memory: of a "plain" array, its own.

    Example:
        >>> as_laid(ArraySpec((8, 64, 56, 28), np.dtype("float32"), CHANNELS_LAST))
        (8, 56, 28, 64)
    """
    shape = spec.shape
    return shape if spec.layout == PLAIN else (shape[0], *shape[2:], shape[1])


def physical(array: Array, layout: str) -> Array:
    """The array as it lies, contiguous: a view."""
    return array if layout == PLAIN else array.transpose(0, *range(2, array.ndim), 1)


def logical(array: Array, layout: str) -> Array:
    """An array as it lies, seen as (batch, channel, *spatial)."""
    return array if layout == PLAIN else array.transpose(0, array.ndim - 1, *range(1, array.ndim - 1))
