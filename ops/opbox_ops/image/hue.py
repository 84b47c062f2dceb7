"""Turning the hue of colours, in hue, lightness and saturation (Joblove and Greenberg, 1978)."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compute import Array

__all__ = ["turned"]

# Which of (high, low, falling, rising) red, green and blue are in each sixth of the circle.
SECTORS = np.array(((0, 3, 1), (2, 0, 1), (1, 0, 3), (1, 2, 0), (3, 1, 0), (0, 1, 2)))
LEAST = 1.1920929e-07
"""Colours whose channels differ by less are gray."""


def turned(xp: Any, image: Array, degrees: float) -> Array:
    """An image (…, red, green, blue) of 0 to 255 with its hue turned."""
    red, green, blue = xp.moveaxis(image, -1, 0).reshape(3, -1) / 255
    high, low = xp.maximum(xp.maximum(red, green), blue), xp.minimum(xp.minimum(red, green), blue)
    spread, both = high - low, high + low
    light = both / 2
    coloured = spread > LEAST
    width = xp.where(coloured, spread, 1)
    strength = xp.where(coloured, width / xp.where(light < 0.5, both, 2 - high - low), 0)
    step = 60 / width
    hue = xp.where(
        high == red,
        (green - blue) * step,
        xp.where(high == green, (blue - red) * step + 120, (red - green) * step + 240),
    )
    hue = xp.where(hue < 0, hue + 360, hue) * coloured + degrees
    hue = (hue - 360 * xp.floor(hue / 360)) * image.dtype.type(1 / 60)
    top = xp.where(light <= 0.5, light * (1 + strength), light + strength - light * strength)
    bottom = 2 * light - top
    sector = xp.fmax(xp.fmin(xp.floor(hue), 5), 0)
    rise, distance = hue - sector, top - bottom
    levels = xp.empty((4, light.size), image.dtype)
    levels[0], levels[1] = top, bottom
    levels[2] = bottom + distance * (1 - rise)
    levels[3] = bottom + distance * rise
    channels = levels[xp.asarray(SECTORS)[sector.astype(xp.int64)], xp.arange(light.size)[:, None]]
    return (xp.where((strength > 0)[:, None], channels, light[:, None]) * 255).reshape(image.shape)
