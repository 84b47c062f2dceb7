"""Augmenters: objects that change an image when they are called; sizes, crops, mirrored images, types and sequences."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..imaging import Image
from ..io.host_array import HostArray
from .crops import center_crop, random_crop, random_size_crop, resize_short, sized, without_min_area
from .pixels import like, pixels_of, values_of

__all__ = [
    "Augmenter",
    "CastAug",
    "CenterCropAug",
    "ForceResizeAug",
    "HorizontalFlipAug",
    "HostAugmenter",
    "RandomCropAug",
    "RandomOrderAug",
    "RandomSizedCropAug",
    "ResizeAug",
    "SequentialAug",
    "augmented",
]


def plain_values(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments as `json` writes them: lists for arrays."""
    return {name: values_of(value).tolist() if hasattr(value, "shape") else value for name, value in kwargs.items()}


class Augmenter:
    """Base of augmenters. A subclass defines `__call__`, which takes an image and returns one.

    Args:
        kwargs: what `dumps` writes.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = plain_values(kwargs)

    def dumps(self) -> Any:
        """The augmenter's name and arguments, as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, src: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(src)")


class HostAugmenter(Augmenter):
    """Base of the augmenters here, which compute on this machine: a subclass defines `apply` on NumPy arrays."""

    def __call__(self, src: Any) -> Any:
        return like(src, self.apply(pixels_of(src, f"{type(self).__name__}: src")))

    def apply(self, image: Image) -> Image:
        """The changed image; the one that was passed stays as it is."""
        raise NotImplementedError


def augmented(augmenter: Any, image: Image) -> Image:
    """An image as an augmenter changes it: one of ours on this machine, a user's as an NDArray."""
    if isinstance(augmenter, HostAugmenter) and type(augmenter).__call__ is HostAugmenter.__call__:
        return augmenter.apply(image)
    return values_of(augmenter(HostArray(image)))


class SequentialAug(HostAugmenter):
    """Several augmenters, one after the other."""

    def __init__(self, ts: Sequence[Any]) -> None:
        super().__init__()
        self.ts = ts

    def dumps(self) -> Any:
        """The names and arguments of all."""
        return [type(self).__name__.lower(), [one.dumps() for one in self.ts]]

    def apply(self, image: Image) -> Image:
        for one in self.ts:
            image = augmented(one, image)
        return image


class RandomOrderAug(SequentialAug):
    """Several augmenters, in a random order each time."""

    def __init__(self, ts: list[Any]) -> None:
        super().__init__(ts)

    def apply(self, image: Image) -> Image:
        random.shuffle(self.ts)  # type: ignore[arg-type]
        return super().apply(image)


class ResizeAug(HostAugmenter):
    """`resize_short`: the shorter edge gets a length of `size` pixels."""

    def __init__(self, size: int, interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def apply(self, image: Image) -> Image:
        return resize_short(image, self.size, self.interp)  # type: ignore[no-any-return]


class ForceResizeAug(HostAugmenter):
    """`imresize` to `size`, (width, height), whatever the proportions."""

    def __init__(self, size: Sequence[int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def apply(self, image: Image) -> Image:
        return sized(image, self.size, self.interp)


class RandomCropAug(HostAugmenter):
    """`random_crop` of `size`, (width, height)."""

    def __init__(self, size: Sequence[int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def apply(self, image: Image) -> Image:
        return random_crop(image, self.size, self.interp)[0]  # type: ignore[no-any-return]


class RandomSizedCropAug(HostAugmenter):
    """`random_size_crop` of random area and proportion, resized to `size`, (width, height)."""

    def __init__(self, size: Sequence[int], area: Any, ratio: Sequence[float], interp: int = 2, **kwargs: Any) -> None:
        super().__init__(size=size, area=area, ratio=ratio, interp=interp)
        self.size = size
        self.area = without_min_area(area, kwargs, "RandomSizedCropAug")
        self.ratio = ratio
        self.interp = interp

    def apply(self, image: Image) -> Image:
        return random_size_crop(image, self.size, self.area, self.ratio, self.interp)[0]  # type: ignore[no-any-return]


class CenterCropAug(HostAugmenter):
    """`center_crop` of `size`, (width, height)."""

    def __init__(self, size: Sequence[int], interp: int = 2) -> None:
        super().__init__(size=size, interp=interp)
        self.size = size
        self.interp = interp

    def apply(self, image: Image) -> Image:
        return center_crop(image, self.size, self.interp)[0]  # type: ignore[no-any-return]


class HorizontalFlipAug(HostAugmenter):
    """The mirrored image, with probability `p`."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def apply(self, image: Image) -> Image:
        return image[:, ::-1] if random.random() < self.p else image


class CastAug(HostAugmenter):
    """The image with elements of type `typ`."""

    def __init__(self, typ: str = "float32") -> None:
        super().__init__(type=typ)
        self.typ = typ

    def apply(self, image: Image) -> Image:
        return image.astype(np.dtype(self.typ))
