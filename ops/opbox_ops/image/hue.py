"""Turning the hue of colours, in hue, lightness and saturation (Joblove and Greenberg, 1978)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cache import elements
from ..compute import Array, Arrays, Temp

__all__ = ["turn_hue", "turn_temps"]

# Which of (high, low, falling, rising) red, green and blue are in each sixth of the circle.
SECTORS = ((0, 3, 1), (2, 0, 1), (1, 0, 3), (1, 2, 0), (3, 1, 0), (0, 1, 2))
LEAST = 1.1920929e-07
"""Colours whose channels differ by less are gray."""
PLANES = 10
"""Numbers of a pixel that are worked out beside its colour."""


def turn_temps(pixels: int, dtype: np.dtype[Any], device: str) -> list[Temp]:
    """What `turn_hue` needs: numbers and two masks for a piece of the pixels, which on a GPU is all of them."""
    piece = min(pixels, elements((PLANES + 3) * dtype.itemsize)) if device == "cpu" else pixels
    return [Temp((PLANES + 3, piece), dtype), Temp((2, piece), "bool")]


def turn_hue(xp: Any, pixels: Array, degrees: float, temps: Arrays) -> None:
    """Turn the hue of pixels (n, 3), red, green and blue of 0 to 255, in place; `temps` is what `turn_temps` says."""
    planes, masks = temps
    step = max(planes.shape[1], 1)
    for start in range(0, len(pixels), step):
        piece = pixels[start : start + step]
        _turn(xp, piece, degrees, planes[:, : len(piece)], masks[:, : len(piece)])


def _turn(xp: Any, pixels: Array, degrees: float, planes: Array, masks: Array) -> None:
    """One piece."""
    red, green, blue, high, low, width, light, strength, step, hue, other, falling, rising = planes
    gray, mask = masks
    xp.divide(pixels.T, 255, out=planes[:3])
    xp.maximum(xp.maximum(red, green, out=high), blue, out=high)
    xp.minimum(xp.minimum(red, green, out=low), blue, out=low)
    xp.subtract(high, low, out=width)
    xp.greater(width, LEAST, out=gray)
    xp.logical_not(gray, out=gray)
    xp.copyto(width, 1, where=gray)

    both = rising
    xp.add(high, low, out=both)
    xp.divide(both, 2, out=light)
    xp.subtract(2, high, out=other)
    other -= low
    xp.copyto(other, both, where=xp.less(light, 0.5, out=mask))
    xp.divide(width, other, out=strength)
    xp.copyto(strength, 0, where=gray)

    xp.divide(60, width, out=step)
    _sixth(xp, red, green, step, 240, hue)
    xp.copyto(hue, _sixth(xp, blue, red, step, 120, other), where=xp.equal(high, green, out=mask))
    xp.copyto(hue, _sixth(xp, green, blue, step, 0, other), where=xp.equal(high, red, out=mask))
    xp.copyto(hue, xp.add(hue, 360, out=other), where=xp.less(hue, 0, out=mask))
    xp.copyto(hue, 0, where=gray)
    hue += degrees
    xp.floor(xp.divide(hue, 360, out=other), out=other)
    other *= 360
    hue -= other
    hue *= hue.dtype.type(1 / 60)

    top, bottom = high, low
    xp.add(light, strength, out=top)
    top -= xp.multiply(light, strength, out=other)
    xp.add(1, strength, out=other)
    other *= light
    xp.copyto(top, other, where=xp.less_equal(light, 0.5, out=mask))
    xp.multiply(2, light, out=bottom)
    bottom -= top
    sector, distance = step, width
    xp.floor(hue, out=sector)
    xp.fmax(xp.fmin(sector, 5, out=sector), 0, out=sector)
    hue -= sector
    xp.subtract(top, bottom, out=distance)
    xp.multiply(distance, hue, out=rising)
    rising += bottom
    xp.subtract(1, hue, out=falling)
    falling *= distance
    falling += bottom

    xp.greater(strength, 0, out=gray)
    xp.logical_not(gray, out=gray)
    levels = (top, bottom, falling, rising)
    for number, picks in enumerate(SECTORS):
        xp.equal(sector, number, out=mask)
        for channel, level in zip((red, green, blue), picks, strict=True):
            xp.copyto(channel, levels[level], where=mask)
    for k, channel in enumerate((red, green, blue)):
        xp.copyto(channel, light, where=gray)
        xp.multiply(channel, 255, out=pixels[:, k])


def _sixth(xp: Any, more: Array, less: Array, step: Array, degrees: int, out: Array) -> Array:
    """Write (more - less) step + degrees to `out`, and return it."""
    xp.subtract(more, less, out=out)
    out *= step
    out += degrees
    return out
