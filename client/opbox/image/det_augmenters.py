"""Augmenters of images with boxes: mirrored images, random crops, random borders.

A label is an array with a row for each object: its class, then its box (left, top, right, bottom) in parts of the
image's width and height, then whatever else it has.
"""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ..base import is_number, user_level, value_text
from ..imaging import Image
from ..io.host_array import HostArray
from .augmenters import Augmenter, augmented, plain_values
from .crops import crop_and_resize
from .files import copyMakeBorder
from .pixels import like, pixels_of, values_of

__all__ = [
    "DetAugmenter",
    "DetBorrowAug",
    "DetHorizontalFlipAug",
    "DetRandomCropAug",
    "DetRandomPadAug",
    "DetRandomSelectAug",
    "augmented_with_boxes",
]

Labelled: TypeAlias = tuple[Image, Image]
Range: TypeAlias = Sequence[float] | float
_MIN_PIXELS = 2
"""Minimum size in pixels of a crop, of a box in it, and of a border."""


class DetAugmenter:
    """Base of augmenters of images with boxes. A subclass defines `__call__`, which takes and returns both.

    Args:
        kwargs: what `dumps` writes.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = plain_values(kwargs)

    def dumps(self) -> Any:
        """The augmenter's name and arguments, as JSON."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __call__(self, src: Any, label: Any) -> tuple[Any, Any]:
        raise NotImplementedError(f"{type(self).__name__} must define __call__(src, label)")


class HostDetAugmenter(DetAugmenter):
    """Base of those here, which compute on this machine: a subclass defines `apply` on NumPy arrays."""

    def __call__(self, src: Any, label: Any) -> tuple[Any, Any]:
        image, boxes = self.apply(pixels_of(src, f"{type(self).__name__}: src"), values_of(label))
        return like(src, image), boxes

    def apply(self, image: Image, label: Image) -> Labelled:
        """The changed image and label; those that were passed stay as they are."""
        raise NotImplementedError


def augmented_with_boxes(augmenter: Any, image: Image, label: Image) -> Labelled:
    """An image and its label as an augmenter changes them: a user's gets the image as an NDArray."""
    if isinstance(augmenter, HostDetAugmenter) and type(augmenter).__call__ is HostDetAugmenter.__call__:
        return augmenter.apply(image, label)
    src, boxes = augmenter(HostArray(image), label)
    return values_of(src), values_of(boxes)


class DetBorrowAug(HostDetAugmenter):
    """An augmenter of images that leaves boxes where they are.

    Raises:
        TypeError: it is none.
    """

    def __init__(self, augmenter: Augmenter) -> None:
        if not isinstance(augmenter, Augmenter):
            raise TypeError(f"DetBorrowAug: expected an Augmenter, got {value_text(augmenter)}")
        super().__init__(augmenter=augmenter.dumps())
        self.augmenter = augmenter

    def dumps(self) -> Any:
        """The names and arguments of both."""
        return [type(self).__name__.lower(), self.augmenter.dumps()]

    def apply(self, image: Image, label: Image) -> Labelled:
        return augmented(self.augmenter, image), label


class DetRandomSelectAug(HostDetAugmenter):
    """One of several augmenters at random, or none with probability `skip_prob`.

    Raises:
        ValueError: one of them is none.
    """

    def __init__(self, aug_list: Any, skip_prob: float = 0) -> None:
        super().__init__(skip_prob=skip_prob)
        self.aug_list = list(aug_list) if isinstance(aug_list, list | tuple) else [aug_list]
        for one in self.aug_list:
            if not isinstance(one, DetAugmenter):
                raise ValueError(f"DetRandomSelectAug: expected DetAugmenters, got {value_text(one)}")
        self.skip_prob = skip_prob if self.aug_list else 1

    def dumps(self) -> Any:
        """The names and arguments of all."""
        return [type(self).__name__.lower(), [one.dumps() for one in self.aug_list]]

    def apply(self, image: Image, label: Image) -> Labelled:
        if random.random() < self.skip_prob:
            return image, label
        random.shuffle(self.aug_list)
        return augmented_with_boxes(self.aug_list[0], image, label)


class DetHorizontalFlipAug(HostDetAugmenter):
    """The mirrored image and boxes, with probability `p`."""

    def __init__(self, p: float) -> None:
        super().__init__(p=p)
        self.p = p

    def apply(self, image: Image, label: Image) -> Labelled:
        if random.random() >= self.p:
            return image, label
        mirrored = label.copy()
        mirrored[:, 1], mirrored[:, 3] = 1.0 - label[:, 3], 1.0 - label[:, 1]
        return image[:, ::-1], mirrored


def _range(value: Range) -> tuple[float, float]:
    """Return a minimum and a maximum; one number serves as both."""
    return (value, value) if is_number(value) else tuple(value)  # type: ignore[arg-type,return-value]


def _areas(boxes: Image) -> Image:
    """The areas of boxes (left, top, right, bottom)."""
    areas: Image = np.maximum(0, boxes[:, 2] - boxes[:, 0]) * np.maximum(0, boxes[:, 3] - boxes[:, 1])
    return areas


class DetRandomCropAug(HostDetAugmenter):
    """A random piece of an image, with the boxes that are in it.

    Args:
        min_object_covered: the part of each object in the piece that has to be in it.
        aspect_ratio_range: the least and the greatest proportion of width to height.
        area_range: the least and the greatest part of the image's area.
        min_eject_coverage: objects of which less is in the piece are left out.
        max_attempts: after so many the image stays as it is.
    """

    def __init__(
        self,
        min_object_covered: float = 0.1,
        aspect_ratio_range: Range = (0.75, 1.33),
        area_range: Range = (0.05, 1.0),
        min_eject_coverage: float = 0.3,
        max_attempts: int = 50,
    ) -> None:
        self.aspect_ratio_range, self.area_range = _range(aspect_ratio_range), _range(area_range)
        super().__init__(
            min_object_covered=min_object_covered,
            aspect_ratio_range=self.aspect_ratio_range,
            area_range=self.area_range,
            min_eject_coverage=min_eject_coverage,
            max_attempts=max_attempts,
        )
        self.min_object_covered = min_object_covered
        self.min_eject_coverage = min_eject_coverage
        self.max_attempts = max_attempts
        least, most = self.area_range
        self.enabled = _usable("DetRandomCropAug", self.aspect_ratio_range, least <= most and most > 0, self.area_range)

    def apply(self, image: Image, label: Image) -> Labelled:
        height, width = image.shape[:2]
        for _ in range(self.max_attempts if self.enabled else 0):
            size = self._size(height, width)
            if size is None:
                continue
            h, w = size
            y, x = random.randint(0, max(0, height - h)), random.randint(0, max(0, width - w))
            inside = self._inside(label, x, y, w, h, width, height)
            if inside is not None:
                return crop_and_resize(image, (x, y, w, h), None, 0), inside
        return image, label

    def _size(self, height: int, width: int) -> tuple[int, int] | None:
        """A random (height, width) of a piece; None where it does not fit."""
        ratio = random.uniform(*self.aspect_ratio_range)
        if ratio <= 0:
            return None
        least, most = (area * height * width for area in self.area_range)
        h, highest = round(math.sqrt(least / ratio)), round(math.sqrt(most / ratio))
        if round(highest * ratio) > width:
            highest = int((width + 0.4999999) / ratio)
        highest = min(highest, height)
        h = min(h, highest)
        if h < highest:
            h = random.randint(h, highest)
        for step in (0, 1, -1):  # rounded up or down until its area is allowed
            area = round((h + step) * ratio) * (h + step)
            if least <= area <= most:
                h += step
                w = round(h * ratio)
                return (h, w) if 0 < w <= width and 0 < h <= height else None
        return None

    def _inside(self, label: Image, x: int, y: int, w: int, h: int, width: int, height: int) -> Image | None:
        """The label of a piece; None where too little of its objects is in it."""
        if w * h < _MIN_PIXELS:
            return None
        boxes = label[:, 1:5]
        areas = _areas(boxes)
        seen = areas * width * height > _MIN_PIXELS
        if not seen.any():
            return None
        left, top, right, bottom = x / width, y / height, (x + w) / width, (y + h) / height
        cut = np.clip(boxes, [left, top, left, top], [right, bottom, right, bottom])
        covered = _areas(cut[seen]) / areas[seen]
        covered = covered[covered > 0]
        if not covered.size or covered.min() <= self.min_object_covered:
            return None
        moved = label.copy()
        moved[:, (1, 3)] = np.clip((label[:, (1, 3)] - left) / (w / width), 0, 1)
        moved[:, (2, 4)] = np.clip((label[:, (2, 4)] - top) / (h / height), 0, 1)
        with np.errstate(divide="ignore", invalid="ignore"):  # an object without area is left out
            seen_enough = _areas(moved[:, 1:5]) * (w / width) * (h / height) / areas > self.min_eject_coverage
        seen_enough &= (moved[:, 3] > moved[:, 1]) & (moved[:, 4] > moved[:, 2])
        return moved[seen_enough] if seen_enough.any() else None


class DetRandomPadAug(HostDetAugmenter):
    """An image at a random place of a larger one of one colour.

    Args:
        aspect_ratio_range: the least and the greatest proportion of width to height.
        area_range: the least and the greatest area, in parts of the image's.
        max_attempts: after so many the image stays as it is.
        pad_val: the colour.
    """

    def __init__(
        self,
        aspect_ratio_range: Range = (0.75, 1.33),
        area_range: Range = (1.0, 3.0),
        max_attempts: int = 50,
        pad_val: Any = (128, 128, 128),
    ) -> None:
        self.aspect_ratio_range, self.area_range = _range(aspect_ratio_range), _range(area_range)
        super().__init__(
            aspect_ratio_range=self.aspect_ratio_range,
            area_range=self.area_range,
            max_attempts=max_attempts,
            pad_val=pad_val,
        )
        self.max_attempts = max_attempts
        self.pad_val = pad_val
        least, most = self.area_range
        self.enabled = _usable("DetRandomPadAug", self.aspect_ratio_range, least <= most and most > 1, self.area_range)

    def apply(self, image: Image, label: Image) -> Labelled:
        height, width = image.shape[:2]
        for _ in range(self.max_attempts if self.enabled else 0):
            size = self._size(height, width)
            if size is None:
                continue
            h, w = size
            y, x = random.randint(0, h - height), random.randint(0, w - width)
            moved = label.copy()
            moved[:, (1, 3)] = (label[:, (1, 3)] * width + x) / w
            moved[:, (2, 4)] = (label[:, (2, 4)] * height + y) / h
            colour = [self.pad_val] * 3 if is_number(self.pad_val) else self.pad_val
            bordered = copyMakeBorder(image, y, h - y - height, x, w - x - width, values=colour)
            return bordered, moved
        return image, label

    def _size(self, height: int, width: int) -> tuple[int, int] | None:
        """A random (height, width) around an image; None where it is hardly larger."""
        ratio = random.uniform(*self.aspect_ratio_range)
        if ratio <= 0:
            return None
        h, highest = (round(math.sqrt(area * height * width / ratio)) for area in self.area_range)
        if round(h * ratio) < width:
            h = int((width + 0.499999) / ratio)
        h = min(max(h, height), highest)
        if h < highest:
            h = random.randint(h, highest)
        w = round(h * ratio)
        return (h, w) if h - height >= _MIN_PIXELS and w - width >= _MIN_PIXELS else None


def _usable(subject: str, ratios: tuple[float, float], areas_are: bool, areas: tuple[float, float]) -> bool:
    """Whether ranges leave anything to draw; a warning where they do not."""
    if areas_are and 0 < ratios[0] <= ratios[1]:
        return True
    name, got = ("aspect_ratio_range", ratios) if areas_are else ("area_range", areas)
    warnings.warn(f"{subject}: {name}: expected (least, greatest), got {got}: it does nothing", stacklevel=user_level())
    return False
