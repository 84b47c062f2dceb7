"""Crops of images, their shorter edge at a length, and normalized colours."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

from opbox_protocol.errors import MXNetError

from ..base import is_number, user_level
from ..imaging import Image, interpolation, shorter_edge
from .files import resized
from .pixels import float_image, like, pixels_of, values_of

__all__ = [
    "center_crop",
    "color_normalize",
    "crop_and_resize",
    "fixed_crop",
    "random_crop",
    "random_size_crop",
    "resize_short",
    "scale_down",
    "sized",
    "without_min_area",
]

Box: TypeAlias = tuple[int, int, int, int]
_ATTEMPTS = 10


def scale_down(src_size: Sequence[int], size: Sequence[int]) -> tuple[int, int]:
    """The size of a crop, made smaller in proportion until it fits into an image.

    Args:
        src_size: the image's (width, height).
        size: the crop's (width, height).

    Example:
        >>> mx.image.scale_down((640, 480), (720, 120))
        (640, 106)
    """
    width, height = size
    image_width, image_height = src_size
    fitting: tuple[float, float] = (width, height)
    if image_height < fitting[1]:
        fitting = fitting[0] * image_height / fitting[1], image_height
    if image_width < fitting[0]:
        fitting = image_width, fitting[1] * image_width / fitting[0]
    return int(fitting[0]), int(fitting[1])


def resize_short(src: Any, size: int, interp: int = 2) -> Any:
    """An image whose shorter edge has a length, in the same proportions.

    Args:
        src: the image.
        size: the length, in pixels.
        interp: as of `imresize`; 9 for cubic where it grows and area where it shrinks, 10 for any.

    Raises:
        ValueError: another interpolation.
    """
    image = pixels_of(src, "resize_short: src")
    height, width = shorter_edge(image.shape, size)
    return like(src, sized(image, (width, height), interp))


def sized(image: Image, size: Sequence[int], interp: int) -> Image:
    """An image of a size (width, height)."""
    method = interpolation(interp, image.shape, (size[1], size[0]), random.randint)
    return resized(image, size[0], size[1], method)


def crop_and_resize(image: Image, box: Box, size: Sequence[int] | None, interp: int) -> Image:
    """The piece of an image in a box (x, y, width, height), at a size (width, height)."""
    x, y, w, h = box
    if not (0 <= x < image.shape[1] and 0 <= y < image.shape[0] and w > 0 and h > 0):
        raise MXNetError(
            f"fixed_crop: expected a box within an image of {image.shape[1]} x {image.shape[0]} pixels, "
            f"got x0={x}, y0={y}, w={w}, h={h}"
        )
    piece = image[y : y + h, x : x + w]
    return piece if size is None or (w, h) == tuple(size) else sized(piece, size, interp)


def fixed_crop(src: Any, x0: int, y0: int, w: int, h: int, size: Sequence[int] | None = None, interp: int = 2) -> Any:
    """Crop the box out of an image.

    Args:
        src: the image.
        x0, y0, w, h: the box, in pixels.
        size: the (width, height) that the piece is resized to.
        interp: as of `resize_short`.

    Raises:
        MXNetError: the box begins outside of the image.
    """
    return like(src, crop_and_resize(pixels_of(src, "fixed_crop: src"), (x0, y0, w, h), size, interp))


def random_crop(src: Any, size: Sequence[int], interp: int = 2) -> tuple[Any, Box]:
    """A piece of an image at a random place.

    Args:
        src: the image; one smaller than the piece is enlarged.
        size: the piece's (width, height).
        interp: as of `resize_short`.

    Returns:
        The piece, and its box (x, y, width, height).
    """
    image = pixels_of(src, "random_crop: src")
    height, width = image.shape[:2]
    w, h = scale_down((width, height), size)
    box = (random.randint(0, width - w), random.randint(0, height - h), w, h)
    return like(src, crop_and_resize(image, box, size, interp)), box


def center_crop(src: Any, size: Sequence[int], interp: int = 2) -> tuple[Any, Box]:
    """The middle of an image.

    Args:
        src: the image; one smaller than the piece is enlarged.
        size: the piece's (width, height).
        interp: as of `resize_short`.

    Returns:
        The piece, and its box (x, y, width, height).
    """
    image = pixels_of(src, "center_crop: src")
    height, width = image.shape[:2]
    w, h = scale_down((width, height), size)
    box = ((width - w) // 2, (height - h) // 2, w, h)
    return like(src, crop_and_resize(image, box, size, interp)), box


def random_size_crop(
    src: Any, size: Sequence[int], area: Any, ratio: Sequence[float], interp: int = 2, **kwargs: Any
) -> tuple[Any, Box]:
    """A piece of an image of a random place, area and proportion; its middle where ten attempts find none that fits.

    Args:
        src: the image.
        size: the (width, height) that the piece is resized to.
        area: the least and greatest part of the image's area, or the least alone.
        ratio: the least and greatest proportion of width to height.
        interp: as of `resize_short`.

    Returns:
        The piece, and its box (x, y, width, height).
    """
    area = without_min_area(area, kwargs, "random_size_crop")
    image = pixels_of(src, "random_size_crop: src")
    height, width = image.shape[:2]
    least, greatest = (area, 1.0) if is_number(area) else area
    for _ in range(_ATTEMPTS):
        target = random.uniform(least, greatest) * (height * width)
        proportion = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(target * proportion)), round(math.sqrt(target / proportion))
        if w <= width and h <= height:
            box = (random.randint(0, width - w), random.randint(0, height - h), w, h)
            return like(src, crop_and_resize(image, box, size, interp)), box
    return center_crop(src, size, interp)


def without_min_area(area: Any, kwargs: dict[str, Any], subject: str) -> Any:
    """`area`, or `min_area`, its name of old.

    Raises:
        AssertionError: other keywords.
    """
    if "min_area" in kwargs:
        warnings.warn(f"{subject}: min_area is deprecated: use area", DeprecationWarning, stacklevel=user_level())
        area = kwargs.pop("min_area")
    if kwargs:
        raise AssertionError(f"{subject}: expected no other keywords, got {', '.join(sorted(kwargs))}")
    return area


def color_normalize(src: Any, mean: Any, std: Any = None) -> Any:
    """(src - mean) / std, as a new image.

    Args:
        src: a float32 image.
        mean, std: numbers, or arrays of a number for each channel; None to leave it out.

    Raises:
        MXNetError: an image of integers.
    """
    image = float_image(values_of(src), "color_normalize: src")
    if mean is not None:
        image = image - values_of(mean).astype(image.dtype)
    if std is not None:
        image = image / values_of(std).astype(image.dtype)
    return like(src, image)
