"""What ImageDetRecordIter does with an image and its boxes: MXNet's `det_aug_default`.

Labels are arrays of a row for each object: a class, and left, top, right and bottom in parts of the image's size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any, TypeAlias

import numpy as np

from opbox_protocol.errors import MXNetError

from ..imaging import Image, interpolation, library, shorter_edge

__all__ = ["BoxedAugmentation"]

Box: TypeAlias = tuple[float, float, float, float]
"""Left, top, width and height, as fractions of an image's size."""
_SMALLEST_BORDER = 1.05
"""Borders that enlarge an image by less than this factor are not drawn."""
_BY_SAMPLER = (
    "crop_scales",
    "crop_aspect_ratios",
    "crop_overlaps",
    "crop_sample_coverages",
    "crop_object_coverages",
)


@dataclass(frozen=True)
class BoxedAugmentation:
    """MXNet's arguments of `det_aug_default`, with its defaults."""

    resize: int = -1
    rand_crop_prob: float = 0.0
    min_crop_scales: tuple[float, ...] = (0.0,)
    max_crop_scales: tuple[float, ...] = (1.0,)
    min_crop_aspect_ratios: tuple[float, ...] = (1.0,)
    max_crop_aspect_ratios: tuple[float, ...] = (1.0,)
    min_crop_overlaps: tuple[float, ...] = (0.0,)
    max_crop_overlaps: tuple[float, ...] = (1.0,)
    min_crop_sample_coverages: tuple[float, ...] = (0.0,)
    max_crop_sample_coverages: tuple[float, ...] = (1.0,)
    min_crop_object_coverages: tuple[float, ...] = (0.0,)
    max_crop_object_coverages: tuple[float, ...] = (1.0,)
    num_crop_sampler: int = 1
    crop_emit_mode: str = "center"
    emit_overlap_thresh: float = 0.3
    max_crop_trials: tuple[int, ...] = (25,)
    rand_pad_prob: float = 0.0
    max_pad_scale: float = 1.0
    max_random_hue: int = 0
    random_hue_prob: float = 0.0
    max_random_saturation: int = 0
    random_saturation_prob: float = 0.0
    max_random_illumination: int = 0
    random_illumination_prob: float = 0.0
    max_random_contrast: float = 0.0
    random_contrast_prob: float = 0.0
    rand_mirror_prob: float = 0.0
    fill_value: int = 127
    inter_method: int = 1
    resize_mode: str = "force"

    def check(self, subject: str) -> None:
        """Raise an error for arguments that fit no image.

        Raises:
            MXNetError: they have values that they cannot have.
        """
        for name, modes in (("resize_mode", ("force", "shrink", "fit")), ("crop_emit_mode", ("center", "overlap"))):
            if getattr(self, name) not in modes:
                raise MXNetError(f"{subject}: {name}: expected one of {', '.join(modes)}, got {getattr(self, name)!r}")
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple) and len(value) not in (1, self.num_crop_sampler):
                raise MXNetError(
                    f"{subject}: {field.name}: expected a value for each of {self.num_crop_sampler} crop samplers, "
                    f"got {len(value)}"
                )
        for name in _BY_SAMPLER:
            for number in range(self.num_crop_sampler):
                least, most = self._range(name, number)
                if least > most:
                    raise MXNetError(f"{subject}: min_{name}: expected at most max_{name} {most}, got {least}")
        interpolation(self.inter_method, (1, 1), (1, 1), lambda least, _: least)

    def _range(self, name: str, number: int) -> tuple[float, float]:
        """The least and the greatest value of a crop sampler."""
        return _of(getattr(self, f"min_{name}"), number), _of(getattr(self, f"max_{name}"), number)

    def apply(self, image: Image, label: Image, shape: Sequence[int], draws: Random) -> tuple[Image, Image]:
        """The changed image and label.

        Args:
            image: uint8 (height, width, channels).
            label: a row for each object.
            shape: (channels, height, width) of the batch.
            draws: the sample's random numbers.
        """
        if self.resize != -1:
            image = self._resized(image, shorter_edge(image.shape, self.resize), draws)
        image = self._recoloured(image, draws)
        if draws.random() < self.rand_mirror_prob:
            image, label = image[:, ::-1], label.copy()
            label[:, 1], label[:, 3] = 1.0 - label[:, 3], 1.0 - label[:, 1]
        if draws.random() < self.rand_pad_prob and self.max_pad_scale > 1:
            image, label = self._bordered(image, label, draws)
        if draws.random() < self.rand_crop_prob:
            image, label = self._cropped(image, label, draws)
        return self._fitted(image, shape, draws), label

    def _resized(self, image: Image, size: Sequence[int], draws: Random) -> Image:
        interp = interpolation(self.inter_method, image.shape, size, draws.randint)
        return library().resize(image, size[1], size[0], interp)

    def _recoloured(self, image: Image, draws: Random) -> Image:
        kinds = ("hue", "illumination", "saturation", "contrast")
        limits = (getattr(self, f"max_random_{kind}") for kind in kinds)
        moves = [draws.uniform(-limit, limit) if limit else 0.0 for limit in limits]
        chances = (getattr(self, f"random_{kind}_prob") for kind in kinds)
        hue, light, saturation, contrast = (
            move if draws.random() < chance else 0.0 for move, chance in zip(moves, chances, strict=True)
        )
        if int(hue) or int(light) or int(saturation):
            image = library().hls_moved(np.ascontiguousarray(image), (int(hue), int(light), int(saturation)))
        if abs(contrast) > 1e-3:
            image = np.clip(np.rint(image * np.float32(contrast + 1)), 0, 255).astype(np.uint8)
        return image

    def _bordered(self, image: Image, label: Image, draws: Random) -> tuple[Image, Image]:
        """The image at a random place of a larger one of one colour."""
        scale = draws.uniform(1.0, self.max_pad_scale)
        if scale < _SMALLEST_BORDER:
            return image, label
        x, y = draws.uniform(0, scale - 1), draws.uniform(0, scale - 1)
        rows, columns = image.shape[:2]
        around = (
            (int(y * rows), int((scale - y - 1) * rows)),
            (int(x * columns), int((scale - x - 1) * columns)),
            (0, 0),
        )
        bordered = np.pad(image, around, constant_values=self.fill_value)
        return bordered, _projected(label, (-x, -y, scale, scale))

    def _cropped(self, image: Image, label: Image, draws: Random) -> tuple[Image, Image]:
        """A random piece by one of the crop samplers; the whole image where none finds one."""
        rows, columns = image.shape[:2]
        for number in draws.sample(range(self.num_crop_sampler), self.num_crop_sampler):
            for _ in range(_of(self.max_crop_trials, number)):
                box = self._box(number, columns / rows, draws)
                objects = self._objects(label, box, number)
                if objects is None:
                    continue
                x, y, w, h = (int(part * size) for part, size in zip(box, (columns, rows) * 2, strict=True))
                if w and h:
                    return image[y : y + h, x : x + w], objects
        return image, label

    def _box(self, number: int, image_ratio: float, draws: Random) -> Box:
        scale = draws.uniform(*self._range("crop_scales", number)) + 1e-12
        least, most = (ratio / image_ratio for ratio in self._range("crop_aspect_ratios", number))
        ratio = draws.uniform(max(least, scale * scale), min(most, 1 / (scale * scale))) ** 0.5
        width, height = min(1.0, scale * ratio), min(1.0, scale / ratio)
        return draws.uniform(0, 1 - width), draws.uniform(0, 1 - height), width, height

    def _objects(self, label: Image, box: Box, number: int) -> Image | None:
        """The objects in a piece; None where the piece does not have what it should."""
        if not len(label):
            return label
        x, y, w, h = box
        sides = np.minimum(label[:, 3:5], (x + w, y + h)) - np.maximum(label[:, 1:3], (x, y))
        common = np.maximum(sides, 0).prod(axis=1)
        areas = (label[:, 3:5] - label[:, 1:3]).prod(axis=1)
        ratios = (common / (w * h + areas - common), common / (w * h), common / areas)
        limits = [self._range(name, number) for name in _BY_SAMPLER[2:]]
        fits = np.ones(len(label), bool)
        for values, (least, most) in zip(ratios, limits, strict=True):
            if least > 0 or most < 1:
                fits &= (values >= least) & (values <= most)
        if not fits.any():
            return None
        if self.crop_emit_mode == "center":
            middles = (label[:, 1:3] + label[:, 3:5]) / 2
            inside = ((middles >= (x, y)) & (middles < (x + w, y + h))).all(axis=1)
        else:
            inside = ratios[2] > self.emit_overlap_thresh
        return _projected(label[inside], box) if inside.any() else None

    def _fitted(self, image: Image, shape: Sequence[int], draws: Random) -> Image:
        """The image at the size of the batch, or within it."""
        _, height, width = shape
        if self.resize_mode == "force":
            return self._resized(image, (height, width), draws)
        rows, columns = image.shape[:2]
        if self.resize_mode == "shrink" and rows <= height and columns <= width:
            return image
        ratio = np.minimum(np.float32(height) / np.float32(rows), np.float32(width) / np.float32(columns))
        return self._resized(image, (max(1, int(ratio * rows)), max(1, int(ratio * columns))), draws)


def _of(values: Sequence[Any], number: int) -> Any:
    """The value of a crop sampler: its own, or that of all."""
    return values[number] if len(values) > 1 else values[0]


def _projected(label: Image, box: Box) -> Image:
    """A label in parts of a box, cut at its edges."""
    moved = label.copy()
    moved[:, 1:3] = np.maximum(0, (label[:, 1:3] - box[:2]) / box[2:])
    moved[:, 3:5] = np.minimum(1, (label[:, 3:5] - box[:2]) / box[2:])
    return moved
