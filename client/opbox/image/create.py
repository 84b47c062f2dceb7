"""CreateAugmenter: the list of augmenters that an image iterator uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base import value_text
from .augmenters import (
    CastAug,
    CenterCropAug,
    HorizontalFlipAug,
    RandomCropAug,
    RandomSizedCropAug,
    ResizeAug,
)
from .color_augmenters import (
    EIGENVALUES,
    EIGENVECTORS,
    ColorJitterAug,
    ColorNormalizeAug,
    HueJitterAug,
    LightingAug,
    RandomGrayAug,
)
from .pixels import values_of

__all__ = ["CreateAugmenter", "by_channel", "color_augmenters"]

_OF_IMAGENET = {"mean": np.array([123.68, 116.28, 103.53]), "std": np.array([58.395, 57.12, 57.375])}


def CreateAugmenter(
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: bool = False,
    rand_resize: bool = False,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    hue: float = 0,
    pca_noise: float = 0,
    rand_gray: float = 0,
    inter_method: int = 2,
) -> list[Any]:
    """The augmenters that make images of any size ones of `data_shape`.

    Args:
        data_shape: (channels, height, width).
        resize: what the shorter edge becomes first.
        rand_crop: crop at random places, not in the middle.
        rand_resize: crop random areas and proportions; needs `rand_crop`.
        rand_mirror: mirror every other image.
        mean, std: arrays of 1 or 3 numbers; True for ImageNet's.
        brightness, contrast, saturation, hue, pca_noise: limits of the random changes of colours.
        rand_gray: the probability of an image in greys.
        inter_method: as `interp` of `resize_short`.

    Raises:
        AssertionError: `rand_resize` without `rand_crop`, or a mean of another kind.

    Example:
        >>> augmenters = mx.image.CreateAugmenter((3, 224, 224), rand_crop=True, rand_mirror=True, mean=True)
    """
    size = (data_shape[2], data_shape[1])
    augmenters: list[Any] = [ResizeAug(resize, inter_method)] if resize > 0 else []
    if rand_resize:
        if not rand_crop:
            raise AssertionError("rand_resize: expected rand_crop=True beside it, got False")
        augmenters.append(RandomSizedCropAug(size, 0.08, (3.0 / 4.0, 4.0 / 3.0), inter_method))
    else:
        augmenters.append((RandomCropAug if rand_crop else CenterCropAug)(size, inter_method))
    if rand_mirror:
        augmenters.append(HorizontalFlipAug(0.5))
    augmenters.append(CastAug())
    mean, std = (  # `dumps` shows ImageNet's numbers as float32 has them, as MXNet's does
        by_channel(name, one).astype(np.float32) if one is True else one for name, one in (("mean", mean), ("std", std))
    )
    return augmenters + color_augmenters(brightness, contrast, saturation, hue, pca_noise, rand_gray, mean, std)


def color_augmenters(
    brightness: float,
    contrast: float,
    saturation: float,
    hue: float,
    pca_noise: float,
    rand_gray: float,
    mean: Any,
    std: Any,
) -> list[Any]:
    """The augmenters of colours, as `CreateAugmenter` takes their arguments."""
    augmenters: list[Any] = []
    if brightness or contrast or saturation:
        augmenters.append(ColorJitterAug(brightness, contrast, saturation))
    if hue:
        augmenters.append(HueJitterAug(hue))
    if pca_noise > 0:
        augmenters.append(LightingAug(pca_noise, EIGENVALUES, EIGENVECTORS))
    if rand_gray > 0:
        augmenters.append(RandomGrayAug(rand_gray))
    mean, std = by_channel("mean", mean), by_channel("std", std)
    if mean is not None or std is not None:
        augmenters.append(ColorNormalizeAug(mean, std))
    return augmenters


def by_channel(name: str, value: Any) -> Any:
    """Return a mean or standard deviation as an array: ImageNet's for True, None for None.

    Raises:
        AssertionError: something else.
    """
    if value is None or value is True:
        return _OF_IMAGENET[name] if value else None
    if not hasattr(value, "shape") or tuple(value.shape)[:1] not in ((1,), (3,)):
        raise AssertionError(f"{name}: expected True, or an array of 1 or 3 numbers, got {value_text(value)}")
    return values_of(value)
