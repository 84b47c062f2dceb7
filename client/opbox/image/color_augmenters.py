"""Augmenters of colours. They take float32 images, as `CastAug` makes them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from ..imaging import Image
from .augmenters import HostAugmenter, RandomOrderAug
from .crops import color_normalize
from .pixels import float_image, values_of

__all__ = [
    "EIGENVALUES",
    "EIGENVECTORS",
    "BrightnessJitterAug",
    "ColorJitterAug",
    "ColorNormalizeAug",
    "ContrastJitterAug",
    "HueJitterAug",
    "LightingAug",
    "RandomGrayAug",
    "SaturationJitterAug",
]

EIGENVALUES = np.array([55.46, 4.794, 1.148])
EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
"""Principal components of photographs' colours (Krizhevsky and others, 2012)."""
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_GREY = np.array([0.21, 0.72, 0.07], np.float32)
_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.321], [0.211, -0.523, 0.311]])
_FROM_YIQ = np.array([[1.0, 0.956, 0.621], [1.0, -0.272, -0.647], [1.0, -1.107, 1.705]])


def _factor(limit: float) -> float:
    return 1.0 + random.uniform(-limit, limit)


class BrightnessJitterAug(HostAugmenter):
    """The image times a random factor, from 1 - brightness to 1 + brightness."""

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness=brightness)
        self.brightness = brightness

    def apply(self, image: Image) -> Image:
        return (image * _factor(self.brightness)).astype(image.dtype, copy=False)


class ContrastJitterAug(HostAugmenter):
    """The image nearer to its mean grey or farther from it, by a random factor."""

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast=contrast)
        self.contrast = contrast

    def apply(self, image: Image) -> Image:
        alpha = _factor(self.contrast)
        grey = float_image(image, "ContrastJitterAug: src") * _LUMA
        result: Image = image * alpha + (3.0 * (1.0 - alpha) / grey.size) * grey.sum()
        return result


class SaturationJitterAug(HostAugmenter):
    """The image nearer to its greys or farther from them, by a random factor."""

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation=saturation)
        self.saturation = saturation

    def apply(self, image: Image) -> Image:
        alpha = _factor(self.saturation)
        grey = (float_image(image, "SaturationJitterAug: src") * _LUMA).sum(axis=2, keepdims=True)
        result: Image = image * alpha + grey * (1.0 - alpha)
        return result


class HueJitterAug(HostAugmenter):
    """The image with its hues turned by a random part of a half circle, up to `hue` either way."""

    def __init__(self, hue: float) -> None:
        super().__init__(hue=hue)
        self.hue = hue

    def apply(self, image: Image) -> Image:
        alpha = random.uniform(-self.hue, self.hue)
        u, w = np.cos(alpha * np.pi), np.sin(alpha * np.pi)
        rotated = np.array([[1.0, 0.0, 0.0], [0.0, u, -w], [0.0, w, u]])
        matrix = (_FROM_YIQ @ rotated @ _TO_YIQ).T.astype(np.float32)
        result: Image = float_image(image, "HueJitterAug: src") @ matrix
        return result


class ColorJitterAug(RandomOrderAug):
    """Brightness, contrast and saturation, each where its limit is above 0, in a random order."""

    def __init__(self, brightness: float, contrast: float, saturation: float) -> None:
        kinds = (
            (BrightnessJitterAug, brightness),
            (ContrastJitterAug, contrast),
            (SaturationJitterAug, saturation),
        )
        super().__init__([kind(limit) for kind, limit in kinds if limit > 0])


class LightingAug(HostAugmenter):
    """The image plus a colour from the directions in which colours differ (PCA noise).

    Args:
        alphastd: the standard deviation of the three random factors.
        eigval, eigvec: how much, and in which directions.
    """

    def __init__(self, alphastd: float, eigval: Any, eigvec: Any) -> None:
        super().__init__(alphastd=alphastd, eigval=eigval, eigvec=eigvec)
        self.alphastd = alphastd
        self.eigval = eigval
        self.eigvec = eigvec

    def apply(self, image: Image) -> Image:
        alpha = np.random.normal(0, self.alphastd, size=(3,))
        colour = np.dot(values_of(self.eigvec) * alpha, values_of(self.eigval)).astype(np.float32)
        result: Image = float_image(image, "LightingAug: src") + colour
        return result


class ColorNormalizeAug(HostAugmenter):
    """`color_normalize` by `mean` and `std`."""

    def __init__(self, mean: Any, std: Any) -> None:
        super().__init__(mean=mean, std=std)
        self.mean, self.std = (None if one is None else values_of(one).astype(np.float32) for one in (mean, std))

    def apply(self, image: Image) -> Image:
        return color_normalize(image, self.mean, self.std)  # type: ignore[no-any-return]


class RandomGrayAug(HostAugmenter):
    """The image in greys, with probability `p`."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def apply(self, image: Image) -> Image:
        if random.random() >= self.p:
            return image
        grey = float_image(image, "RandomGrayAug: src") @ _GREY
        return np.repeat(grey[:, :, None], 3, axis=2)
