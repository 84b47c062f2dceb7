"""Turning the hue of colours, in hue, lightness and saturation (Joblove and Greenberg, 1978)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..cache import elements
from ..compute import Array, Arrays, Temp
from ..index.counting import count_up
from ..index.positions import take_rows

__all__ = ["turn_hue", "turn_temps"]

# Which of (high, low, falling, rising) red, green and blue are in each sixth of the circle.
SECTORS = ((0, 3, 1), (2, 0, 1), (1, 0, 3), (1, 2, 0), (3, 1, 0), (0, 1, 2))
MIN_DIFFERENCE = 1.1920929e-07
"""Minimum difference of two channels: colours below it are gray."""
LEVELS = 3
"""The plane of high, which those of low, falling and rising follow."""
PLANES = 10
"""Numbers of a pixel that are worked out beside its colour."""


def turn_temps(pixels: int, dtype: np.dtype[Any], device: str) -> list[Temp]:
    """Temporaries of `turn_hue`: numbers, masks and positions for a piece of the pixels (on a GPU for all of them)."""
    piece = min(pixels, elements((PLANES + 3) * dtype.itemsize)) if device == "cpu" else pixels
    return [
        *(Temp((PLANES + 3, piece), dtype), Temp((2, piece), "bool")),
        *(Temp((3, piece), "int64"), Temp((3, len(SECTORS)), "int64")),
    ]


def turn_hue(xp: Any, pixels: Array, degrees: float, temps: Arrays) -> None:
    """Turn the hue of pixels (n, 3), red, green and blue of 0 to 255, in place; `temps` is what `turn_temps` says."""
    planes, masks, places, table = temps
    step = planes.shape[1]
    for number, picks in enumerate(SECTORS):
        for channel, level in enumerate(picks):
            table[channel, number] = level * step
    count_up(xp, places[0])
    levels = planes[LEVELS : LEVELS + 4].reshape(-1)
    for start in range(0, len(pixels), step):
        piece = pixels[start : start + step]
        count = len(piece)
        _work_out(xp, piece, degrees, planes[:, :count], masks[:, :count])
        _colour(xp, levels, planes[:, :count], places[:, :count], table)
        xp.multiply(planes[:3, :count].T, 255, out=piece)


def _work_out(xp: Any, pixels: Array, degrees: float, planes: Array, masks: Array) -> None:
    """Write the four levels, the light and the number of each pixel's sixth."""
    red, green, blue, high, low, falling, rising, light, sector, width, strength, hue, other = planes
    gray, mask = masks
    xp.divide(pixels.T, 255, out=planes[:3])
    xp.maximum(xp.maximum(red, green, out=high), blue, out=high)
    xp.minimum(xp.minimum(red, green, out=low), blue, out=low)
    xp.subtract(high, low, out=width)
    xp.greater(width, MIN_DIFFERENCE, out=gray)
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

    degree = sector
    xp.divide(60, width, out=degree)
    _sixth(xp, red, green, degree, 240, hue)
    xp.copyto(hue, _sixth(xp, blue, red, degree, 120, other), where=xp.equal(high, green, out=mask))
    xp.copyto(hue, _sixth(xp, green, blue, degree, 0, other), where=xp.equal(high, red, out=mask))
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
    distance = width
    xp.floor(hue, out=sector)
    xp.fmax(xp.fmin(sector, 5, out=sector), 0, out=sector)
    hue -= sector
    xp.subtract(top, bottom, out=distance)
    xp.multiply(distance, hue, out=rising)
    rising += bottom
    xp.subtract(1, hue, out=falling)
    falling *= distance
    falling += bottom

    # All levels of a gray pixel are its light.
    xp.greater(strength, 0, out=gray)
    xp.logical_not(gray, out=gray)
    for level in (top, bottom, falling, rising):
        xp.copyto(level, light, where=gray)


def _colour(xp: Any, levels: Array, planes: Array, places: Array, table: Array) -> None:
    """Write red, green and blue, of the planes, from the levels that `table` says for each sixth."""
    position, sector, place = places
    xp.copyto(sector, planes[8], casting="unsafe")
    for channel, row in zip(planes[:3], table, strict=True):
        take_rows(xp, row, sector, place)
        place += position
        take_rows(xp, levels, place, channel)


def _sixth(xp: Any, more: Array, less: Array, degree: Array, degrees: int, out: Array) -> Array:
    """Write (more - less) degree + degrees to `out`, and return it."""
    xp.subtract(more, less, out=out)
    out *= degree
    out += degrees
    return out
