"""Sizes of images: interpolation by them, the size of a crop that fits, of an image whose shorter edge has a length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Image", "crop_within", "interpolation", "shorter_edge"]

Image: TypeAlias = np.ndarray[Any, Any]
"""An image as an array (height, width, channels)."""

AUTOMATIC, RANDOM = 9, 10


def interpolation(interp: int, old: Sequence[int], new: Sequence[int], draw: Callable[[int, int], int]) -> int:
    """OpenCV's number of an interpolation.

    Args:
        interp: that number, 0 to 4; 9 for cubic where an image grows, area where it shrinks, bilinear otherwise; 10
            for any of the five.
        old, new: (height, width, …).
        draw: draws an integer between two, for 10.

    Raises:
        ValueError: another number.
    """
    if interp == AUTOMATIC:
        if new[0] > old[0] and new[1] > old[1]:
            return 2
        return 3 if new[0] < old[0] and new[1] < old[1] else 1
    if interp == RANDOM:
        return draw(0, 4)
    if interp not in range(5):
        raise ValueError(f"interp: expected 0 to 4, 9 (automatic) or 10 (random), got {interp!r}")
    return interp


def shorter_edge(shape: Sequence[int], size: int) -> tuple[int, int]:
    """The (height, width) of an image of `shape` whose shorter edge becomes `size`, in the same proportions."""
    height, width = shape[:2]
    return (size * height // width, size) if height > width else (size, size * width // height)


def crop_within(shape: Sequence[int], crop: tuple[int, int], draws: Random | None) -> tuple[int, int]:
    """The (y, x) of a crop of size (height, width): in the middle of an image, or anywhere where `draws` is passed."""
    down, right = shape[0] - crop[0], shape[1] - crop[1]
    return (draws.randint(0, down), draws.randint(0, right)) if draws else (down // 2, right // 2)
