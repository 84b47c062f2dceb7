"""CreateDetAugmenter and ImageDetIter: batches of images with boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..base import value_text
from ..imaging import Image
from .augmenters import CastAug, ForceResizeAug, ResizeAug
from .create import by_channel, color_augmenters
from .det_augmenters import (
    DetBorrowAug,
    DetHorizontalFlipAug,
    DetRandomCropAug,
    DetRandomPadAug,
    DetRandomSelectAug,
    augmented_with_boxes,
)
from .image_iter import ImageIter
from .pixels import like, values_of

__all__ = ["CreateDetAugmenter", "CreateMultiRandCropAugmenter", "ImageDetIter"]


def CreateMultiRandCropAugmenter(
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 1.0),
    min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50,
    skip_prob: float = 0,
) -> DetRandomSelectAug:
    """Choose one of several random crops. Arguments are lists with a value for each, or one value for all.

    Args:
        min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts: as of `DetRandomCropAug`.
        skip_prob: the probability of no crop.

    Raises:
        AssertionError: lists of different lengths.
    """
    arguments = (min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts)
    lists = [one if isinstance(one, list) else [one] for one in arguments]
    count = max(map(len, lists))
    if any(len(one) not in (1, count) for one in lists):
        raise AssertionError(
            f"CreateMultiRandCropAugmenter: expected lists of {count} values, got {list(map(len, lists))}"
        )
    rows = zip(*(one if len(one) == count else one * count for one in lists), strict=True)
    return DetRandomSelectAug([DetRandomCropAug(*row) for row in rows], skip_prob=skip_prob)


def CreateDetAugmenter(
    data_shape: Sequence[int],
    resize: int = 0,
    rand_crop: float = 0,
    rand_pad: float = 0,
    rand_gray: float = 0,
    rand_mirror: bool = False,
    mean: Any = None,
    std: Any = None,
    brightness: float = 0,
    contrast: float = 0,
    saturation: float = 0,
    pca_noise: float = 0,
    hue: float = 0,
    inter_method: int = 2,
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 3.0),
    min_eject_coverage: Any = 0.3,
    max_attempts: Any = 50,
    pad_val: Any = (127, 127, 127),
) -> list[Any]:
    """The augmenters that make images with boxes ones of `data_shape`.

    Args:
        data_shape: (channels, height, width).
        resize: what the shorter edge becomes first.
        rand_crop, rand_pad: the probabilities of a random crop and a random border.
        rand_mirror: mirror every other image.
        mean, std, brightness, contrast, saturation, hue, pca_noise, rand_gray, inter_method: as of `CreateAugmenter`.
        min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts: as of `DetRandomCropAug`;
            the greatest area is the border's too.
        pad_val: the border's colour.
    """
    augmenters: list[Any] = [DetBorrowAug(ResizeAug(resize, inter_method))] if resize > 0 else []
    if rand_crop > 0:
        crops = (min_object_covered, aspect_ratio_range, area_range, min_eject_coverage, max_attempts)
        augmenters.append(CreateMultiRandCropAugmenter(*crops, skip_prob=1 - rand_crop))
    if rand_mirror > 0:
        augmenters.append(DetHorizontalFlipAug(0.5))
    if rand_pad > 0:
        border = DetRandomPadAug(aspect_ratio_range, (1.0, area_range[1]), max_attempts, pad_val)
        augmenters.append(DetRandomSelectAug([border], 1 - rand_pad))
    sized = ForceResizeAug((data_shape[2], data_shape[1]), inter_method)
    colours = color_augmenters(brightness, contrast, saturation, hue, pca_noise, rand_gray, mean, std)
    return augmenters + [DetBorrowAug(one) for one in (sized, CastAug(), *colours)]


class ImageDetIter(ImageIter):
    """Batches of images with boxes.

    A sample's label has the width of its head, the width of an object, the rest of the head, and then its objects: a
    class, and left, top, right and bottom in parts of the image's size. A batch's label is (batch, objects, width of
    an object), -1 where an image has fewer.

    Args:
        batch_size, data_shape, path_imgrec, path_imglist, path_root, path_imgidx, shuffle, part_index, num_parts,
            imglist, data_name, label_name, last_batch_handle: as of `ImageIter`.
        aug_list: `DetAugmenter`s; those of `CreateDetAugmenter` with `kwargs` where None.

    Attributes:
        label_shape: (objects, width of an object) of the batches.

    Raises:
        RuntimeError: a label that is none.
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple[int, ...],
        path_imgrec: str | None = None,
        path_imglist: str | None = None,
        path_root: str | None = None,
        path_imgidx: str | None = None,
        shuffle: bool = False,
        part_index: int = 0,
        num_parts: int = 1,
        aug_list: Sequence[Any] | None = None,
        imglist: list[Any] | None = None,
        data_name: str = "data",
        label_name: str = "label",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            batch_size,
            data_shape,
            path_imgrec=path_imgrec,
            path_imglist=path_imglist,
            path_root=path_root,
            path_imgidx=path_imgidx,
            shuffle=shuffle,
            part_index=part_index,
            num_parts=num_parts,
            aug_list=[],
            imglist=imglist,
            data_name=data_name,
            label_name=label_name,
            last_batch_handle=last_batch_handle,
        )
        self.auglist = CreateDetAugmenter(data_shape, **kwargs) if aug_list is None else aug_list
        self.label_shape = self._estimate_label_shape()
        self.provide_label = [(label_name, (batch_size, *self.label_shape))]

    def _estimate_label_shape(self) -> tuple[int, int]:
        """The most objects of an image, and their width."""
        self.reset()
        shapes = []
        try:
            while True:
                shapes.append(self._parse_label(self.next_sample()[0]).shape)
        except StopIteration:
            pass
        self.reset()
        if not shapes:
            raise RuntimeError(f"{type(self).__name__}: expected images, got none")
        return max(shape[0] for shape in shapes), shapes[-1][1]

    def _parse_label(self, label: Any) -> Image:
        """The objects in a label that have an area."""
        raw = values_of(label).ravel()
        if raw.size < 7:
            raise RuntimeError(
                f"label: expected a head of 2 and an object of 5 numbers at least, got {raw.size} numbers"
            )
        head, width = int(raw[0]), int(raw[1])
        if width < 5 or (raw.size - head) % width:
            raise RuntimeError(
                f"label: expected objects of {width} numbers behind a head of {head}, got {raw.size} in all"
            )
        objects = raw[head:].reshape(-1, width)
        objects = objects[(objects[:, 3] > objects[:, 1]) & (objects[:, 4] > objects[:, 2])]
        if not len(objects):
            raise RuntimeError("label: expected an object with an area, got none")
        return objects

    def _empty(self) -> tuple[Image, Image]:
        data, label = super()._empty()
        return data, np.full_like(label, -1)

    def _place_sample(
        self, batch_data: Image, batch_label: Image, position: int, image: Image, label: Any, place: str
    ) -> bool:
        try:
            self.check_valid_image([image])
            changed, objects = self.augmentation_transform(image, self._parse_label(label))
            self._check_valid_label(values_of(objects))
        except RuntimeError:
            return False
        batch_data[position] = self._changed("postprocess_data", values_of(changed))
        objects = values_of(objects)[: self.label_shape[0]]
        batch_label[position] = -1
        batch_label[position, : len(objects)] = objects
        return True

    def _check_valid_label(self, label: Image) -> None:
        """Raise an error for a label without an object; its sample is skipped.

        Raises:
            RuntimeError: it has none.
        """
        if label.ndim != 2 or label.shape[1] < 5:
            raise RuntimeError(f"label: expected objects of 5 numbers at least, got shape {label.shape}")
        if not ((label[:, 0] >= 0) & (label[:, 3] > label[:, 1]) & (label[:, 4] > label[:, 2])).any():
            raise RuntimeError("label: expected an object with an area, got none")

    def augmentation_transform(self, data: Any, label: Any = None) -> Any:
        """An image and its objects as the augmenters change them."""
        image, objects = values_of(data), values_of(label)
        for one in self.auglist:
            image, objects = augmented_with_boxes(one, image, objects)
        return like(data, image), objects

    def reshape(self, data_shape: tuple[int, ...] | None = None, label_shape: tuple[int, int] | None = None) -> None:
        """Use other batch shapes from now on.

        Args:
            data_shape: (3, height, width); the augmenters stay as they are.
            label_shape: (objects, width of an object).

        Raises:
            ValueError: fewer objects than images have, or another width.
        """
        if data_shape is not None:
            self.check_data_shape(data_shape)
            self.provide_data = [(self.provide_data[0][0], (self.batch_size, *data_shape))]
            self.data_shape = tuple(data_shape)
        if label_shape is not None:
            self.check_label_shape(label_shape)
            self.provide_label = [(self.provide_label[0][0], (self.batch_size, *label_shape))]
            self.label_shape = label_shape[0], label_shape[1]

    def check_label_shape(self, label_shape: Sequence[int]) -> None:
        """Raise an error for a shape that labels do not fit into.

        Raises:
            ValueError: fewer objects than images have, or another width.
        """
        if len(label_shape) != 2 or label_shape[0] < self.label_shape[0] or label_shape[1] != self.label_shape[1]:
            raise ValueError(
                f"label_shape: expected at least {self.label_shape[0]} objects of {self.label_shape[1]} numbers, "
                f"got {value_text(label_shape)}"
            )

    def sync_label_shape(self, it: ImageDetIter, verbose: bool = False) -> ImageDetIter:
        """Give this iterator and another, of validation say, batches of as many objects.

        Args:
            it: the other.
            verbose: taken for callers' sake.

        Returns:
            The other.

        Raises:
            AssertionError: it is no such iterator, or its objects have another width.
        """
        if not isinstance(it, ImageDetIter) or it.label_shape[1] != self.label_shape[1]:
            raise AssertionError(
                f"sync_label_shape: expected an ImageDetIter of objects of {self.label_shape[1]} numbers, "
                f"got {value_text(it)}"
            )
        shape = (max(self.label_shape[0], it.label_shape[0]), self.label_shape[1])
        for one in (self, it):
            one.reshape(None, shape)
        return it

    def draw_next(
        self,
        color: Sequence[int] | None = None,
        thickness: int = 2,
        mean: Any = None,
        std: Any = None,
        clip: bool = True,
        waitKey: Any = None,
        window_name: str = "draw_next",
        id2labels: Any = None,
    ) -> Iterator[Image]:
        """The augmented images one after the other, uint8 with blue first, with their boxes drawn in.

        Args:
            color: the boxes' colour (red, green, blue); a random one for each where None.
            thickness: of their lines, in pixels.
            mean, std: what the images were normalized by: arrays, or True for ImageNet's.
            clip: cut values off below 0 and above 255.
            waitKey, window_name, id2labels: taken for callers' sake: no window is opened, and no text is drawn.
        """
        while True:
            try:
                label, data = self.next_sample()
            except StopIteration:
                return
            image, objects = self.augmentation_transform(values_of(self.imdecode(data)), self._parse_label(label))
            deviation, average = by_channel("std", std), by_channel("mean", mean)
            pixels = image * (1 if deviation is None else deviation) + (0 if average is None else average)
            drawn = (np.clip(pixels, 0, 255) if clip else pixels).astype(np.uint8)[:, :, ::-1].copy()
            for one in values_of(objects):
                _draw_box(drawn, one[1:5], color[::-1] if color else np.random.rand(3) * 255, thickness)
            yield drawn


def _draw_box(image: Image, box: Image, color: Any, thickness: int) -> None:
    """Draw a box (left, top, right, bottom), in parts of the image's size, into an image."""
    height, width = image.shape[:2]
    left, top, right, bottom = (int(part * size) for part, size in zip(box, (width, height) * 2, strict=True))
    if left < 0:
        return
    filled = np.zeros((height, width), bool)
    filled[max(0, top) : bottom + 1, left : right + 1] = True
    filled[top + thickness : bottom + 1 - thickness, left + thickness : right + 1 - thickness] = False
    image[filled] = np.asarray(color).astype(np.uint8)
