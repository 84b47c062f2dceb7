"""Rotated images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base import is_number
from ..imaging import Image
from .pixels import like, values_of

__all__ = ["imrotate", "random_rotate"]


def imrotate(src: Any, rotation_degrees: Any, zoom_in: bool = False, zoom_out: bool = False) -> Any:
    """Images rotated around their middle, of the same size; 0 where nothing of them comes to lie.

    Args:
        src: float32 (channels, height, width), or (batch, channels, height, width).
        rotation_degrees: an angle, or an array of one for each image of a batch.
        zoom_in: enlarge them until no corner is empty.
        zoom_out: make them smaller until all of them is seen.

    Raises:
        ValueError: both zooms, an array of another rank, or another number of angles.
        TypeError: images of another type, or several angles for one.
    """
    if zoom_in and zoom_out:
        raise ValueError("imrotate: expected zoom_in or zoom_out, got both")
    images = values_of(src)
    if images.dtype != np.float32:
        raise TypeError(f"imrotate: src: expected float32 images, got {images.dtype}")
    if images.ndim not in (3, 4):
        raise ValueError(f"imrotate: src: expected 3 or 4 dimensions, got shape {images.shape}")
    if images.ndim == 3 and not is_number(rotation_degrees):
        raise TypeError("imrotate: rotation_degrees: expected a number for a single image, got several")
    batch = images[None] if images.ndim == 3 else images
    degrees = np.full(len(batch), rotation_degrees) if is_number(rotation_degrees) else values_of(rotation_degrees)
    if len(degrees) != len(batch):
        raise ValueError(
            f"imrotate: rotation_degrees: expected {len(batch)} angles as there are images, got {len(degrees)}"
        )
    radians = (np.pi * degrees / 180).astype(np.float32)
    rotated = np.stack([_rotated(one, angle, zoom_in, zoom_out) for one, angle in zip(batch, radians, strict=True)])
    return like(src, rotated[0] if images.ndim == 3 else rotated)


def _rotated(image: Image, angle: Any, zoom_in: bool, zoom_out: bool) -> Image:
    """An image (channels, height, width) rotated by an angle in radians."""
    height, width = image.shape[1:]
    y, x = np.ogrid[:height, :width]
    middle = (height - 1) / 2, (width - 1) / 2
    right, down = (x - middle[1]).astype(np.float32), (y - middle[0]).astype(np.float32)
    scale = _zoom(height, width, abs(float(angle)), zoom_in) if zoom_in or zoom_out else 1.0
    cos, sin = np.cos(angle), np.sin(angle)
    return _sampled(
        image, (right * sin + down * cos) * scale + middle[0], (right * cos - down * sin) * scale + middle[1]
    )


def _zoom(height: int, width: int, angle: float, zoom_in: bool) -> float:
    """The factor by which places are moved, so that the rotated image fills the old one, or fits into it."""
    diagonal, slope = np.hypot(height, width), np.arctan(height / width)
    across = max(abs(diagonal * np.cos(slope + angle)), abs(diagonal * np.cos(slope - angle)))
    along = max(abs(diagonal * np.sin(slope + angle)), abs(diagonal * np.sin(slope - angle)))
    return float(min(width / across, height / along) if zoom_in else max(across / width, along / height))


def _sampled(image: Image, y: Image, x: Image) -> Image:
    """The values of an image at places between its pixels, bilinear; 0 outside."""
    height, width = image.shape[1:]
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    result = np.zeros((image.shape[0], *y.shape), np.float32)
    for down in (0, 1):
        for right in (0, 1):
            row, column = top + down, left + right
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            weight = (1 - abs(y - row)) * (1 - abs(x - column)) * inside
            result += image[:, row.clip(0, height - 1), column.clip(0, width - 1)] * weight.astype(np.float32)
    return result


def random_rotate(src: Any, angle_limits: Sequence[float], zoom_in: bool = False, zoom_out: bool = False) -> Any:
    """`imrotate` by random angles.

    Args:
        src: as of `imrotate`.
        angle_limits: the least and the greatest angle, in degrees.
        zoom_in, zoom_out: as of `imrotate`.
    """
    degrees = np.random.uniform(angle_limits[0], angle_limits[1], size=None if src.ndim == 3 else src.shape[0])
    return imrotate(src, degrees, zoom_in=zoom_in, zoom_out=zoom_out)
