"""ImageDetRecordIter: batches of images with boxes from record files."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..imaging import Image
from ..recordio import IRHeader, unpack
from .arguments import read_arguments
from .boxed_augmentation import BoxedAugmentation
from .image_record_iter import RecordReading, RecordsIter, decoded, labels_of, listed_label
from .record_files import RecordFiles

__all__ = ["ImageDetRecordIter"]

_HEAD = 4
"""Length of the header before a label: channels, height, width, label length."""


@dataclass(frozen=True)
class BoxedNormalization:
    """MXNet's arguments of the normalization and of the labels' width, with its defaults."""

    label_pad_width: int = 0
    label_pad_value: float = -1.0
    mean_r: float = 0.0
    mean_g: float = 0.0
    mean_b: float = 0.0
    mean_a: float = 0.0
    std_r: float = 0.0
    std_g: float = 0.0
    std_b: float = 0.0
    std_a: float = 0.0
    scale: float = 1.0

    def write(self, image: Image, out: Image) -> None:
        """Write an image (height, width, channels) into its place (channels, height, width); the rest gets zeros."""
        rows, columns, channels = image.shape
        out[...] = 0
        means = (self.mean_r, self.mean_g, self.mean_b, self.mean_a)
        deviations = (self.std_r, self.std_g, self.std_b, self.std_a)
        for channel in range(channels):
            plane = out[channel, :rows, :columns]
            plane[...] = image[:, :, channel]
            if any(mean > 0 for mean in means):
                plane -= np.float32(means[channel])
            if deviations[channel] > 0:
                plane /= np.float32(deviations[channel])
            if self.scale != 1:
                plane *= np.float32(self.scale)


class _BoxedSample:
    """Fills in a sample of `ImageDetRecordIter`."""

    def __init__(
        self,
        reading: RecordReading,
        augmentation: BoxedAugmentation,
        normalization: BoxedNormalization,
        labels: dict[int, Image] | None,
    ) -> None:
        self.reading = reading
        self.augmentation = augmentation
        self.normalization = normalization
        self.labels = labels

    def label_of(self, header: IRHeader) -> Image:
        """The label of a record.

        Raises:
            MXNetError: it has another width, or none.
        """
        values = listed_label(self.labels, header, self.reading.path_imglist)
        if 0 < self.reading.label_width != len(values):
            raise MXNetError(
                f"label_width: expected {len(values)} as the label has numbers, got {self.reading.label_width}"
            )
        return values

    def __call__(self, header: IRHeader, data: bytes, out: Image, label: Image, draws: Random) -> None:
        raw = self.label_of(header)
        head, width = (int(raw[0]), int(raw[1])) if len(raw) > 1 else (0, 0)
        if len(raw) < 7 or head < 2 or width < 5 or (len(raw) - head) % width:
            raise MXNetError(
                "label: expected a head of at least 2 numbers (its width, an object's) and objects of at least 5, "
                f"got {len(raw)} numbers that begin with {raw[:2].tolist()}"
            )
        objects = raw[head:].reshape(-1, width)
        objects = objects[(objects[:, 3] > objects[:, 1]) & (objects[:, 4] > objects[:, 2])]
        image = decoded(data, self.reading.data_shape[0])
        image, objects = self.augmentation.apply(image, objects, self.reading.data_shape, draws)
        self.normalization.write(image, out)
        values = np.concatenate([raw[:head], objects.ravel()])
        label[0, :_HEAD] = (image.shape[2], *image.shape[:2], len(values))
        label[0, _HEAD : _HEAD + len(values)] = values


class ImageDetRecordIter(RecordsIter):
    """Batches of images with boxes from record files.

    A record's label has the width of its head, the width of an object, the rest of the head, and then its objects: a
    class, and left, top, right and bottom in parts of the image's size. A batch's label has for each sample the
    image's channels, height and width, how many numbers its label has, that label, and `label_pad_value` to the end.
    All arguments are keywords.

    Args:
        path_imgrec, data_shape, batch_size, path_imglist, shuffle, seed, part_index, num_parts, round_batch,
            preprocess_threads, prefetch_buffer, data_name, label_name: as of `ImageRecordIter`.
        label_width: how many numbers each label has; -1 for any.
        label_pad_width: how many numbers labels are padded to; by default as many as the longest has.
        resize, inter_method, resize_mode: sizes; "force" makes images as large as the batch's, "fit" and "shrink" keep
            their proportions and leave zeros.
        rand_mirror_prob, rand_pad_prob, max_pad_scale, fill_value: mirrored images and borders.
        rand_crop_prob, num_crop_sampler, min_crop_scales and the like: random crops, by one of several samplers.
        crop_emit_mode, emit_overlap_thresh: which objects stay in a crop: those whose middle is in it ("center"), or
            of which more than that part is ("overlap").
        max_random_hue, random_hue_prob and the like: changes of the colours, and their probabilities.
        mean_r, mean_g, mean_b, mean_a, std_r, std_g, std_b, std_a, scale: value = (pixel - mean) / std * scale.

    Raises:
        MXNetError: an argument, or from `next` an image or a label.
        ImportError: neither OpenCV nor Pillow is installed.

    Example:
        >>> train = mx.io.ImageDetRecordIter(path_imgrec="voc.rec", data_shape=(3, 300, 300), batch_size=32)
    """

    def __init__(self, **arguments: Any) -> None:
        subject = type(self).__name__
        names = (str(arguments.get("data_name", "data")), str(arguments.get("label_name", "softmax_label")))
        arguments = {"label_width": -1} | arguments
        if arguments.get("dtype", "") is None:
            del arguments["dtype"]
        reading, augmentation, normalization = read_arguments(
            subject, arguments, RecordReading, BoxedAugmentation, BoxedNormalization
        )
        reading.check(subject, "det_aug_default")
        if reading.dtype != "float32":
            raise MXNetError(f"{subject}: dtype: expected float32, got {reading.dtype}")
        augmentation.check(subject)
        labels = labels_of(reading.path_imglist, subject) if reading.path_imglist else None
        sample = _BoxedSample(reading, augmentation, normalization, labels)
        records = RecordFiles(reading.path_imgrec, reading.path_imgidx, reading.part_index, reading.num_parts)
        everything = records
        if reading.num_parts > 1:  # all parts have labels of one width
            everything = RecordFiles(reading.path_imgrec, reading.path_imgidx, 0, 1)
        headers = (unpack(everything.read(row))[0] for row in range(len(everything)))
        widest = max((len(sample.label_of(header)) for header in headers), default=0)
        if 0 < normalization.label_pad_width < widest:
            raise MXNetError(
                f"{subject}: label_pad_width: expected at least {widest} as the longest label has numbers, "
                f"got {normalization.label_pad_width}"
            )
        width = _HEAD + max(widest, normalization.label_pad_width)
        super().__init__(reading, records, (width,), sample, names, normalization.label_pad_value)
