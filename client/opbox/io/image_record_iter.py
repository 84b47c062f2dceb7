"""ImageRecordIter: batches of images from record files, decoded by threads while the step before computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError
from opbox_protocol.signal_shield import shielded

from ..file_errors import file_errors, path_of
from ..imaging import Image, library
from ..recordio import IRHeader, unpack
from .arguments import read_arguments
from .decoding_threads import DecodingThreads, DecodingWork
from .desc import DataDesc, DataIter
from .host_array import HostArray
from .record_augmentation import Augmentation, Normalization
from .record_files import RecordFiles

__all__ = [
    "ImageRecordInt8Iter",
    "ImageRecordIter",
    "ImageRecordUInt8Iter",
    "RecordReading",
    "RecordsIter",
    "decoded",
    "labels_of",
    "listed_label",
]

_DTYPES = ("float32", "uint8", "int8")
_CHANNELS = {1: 1, 3: 3, 4: None}
"""Decoding flag by the number of channels in data_shape."""


@dataclass(frozen=True)
class RecordReading:
    """MXNet's arguments of what is read, and in which order."""

    data_shape: tuple[int, ...] = ()
    batch_size: int = 0
    path_imglist: str = ""
    path_imgrec: str = ""
    path_imgidx: str = ""
    aug_seq: str = ""
    label_width: int = 1
    preprocess_threads: int = 4
    num_parts: int = 1
    part_index: int = 0
    shuffle_chunk_size: int = 0
    shuffle_chunk_seed: int = 0
    seed_aug: int | None = None
    shuffle: bool = False
    seed: int = 0
    round_batch: bool = True
    prefetch_buffer: int = 4
    dtype: str = "float32"

    def check(self, subject: str, augmenter: str) -> None:
        """Raise an error for arguments with which no batch can be read.

        Raises:
            MXNetError: an argument is missing, or has a value that it cannot have.
        """
        for name in ("path_imgrec", "data_shape", "batch_size"):
            if not getattr(self, name):
                raise MXNetError(f"{subject}: {name}: expected a value, got none")
        if len(self.data_shape) != 3 or self.data_shape[0] not in _CHANNELS or min(self.data_shape) < 1:
            raise MXNetError(
                f"{subject}: data_shape: expected (channels, height, width) "
                f"with 1, 3 or 4 channels, got {self.data_shape}"
            )
        if self.aug_seq not in ("", augmenter):
            raise MXNetError(f"{subject}: aug_seq: expected {augmenter!r}, got {self.aug_seq!r}")
        if self.dtype not in _DTYPES:
            raise MXNetError(f"{subject}: dtype: expected one of {', '.join(_DTYPES)}, got {self.dtype}")
        for name in ("batch_size", "preprocess_threads", "label_width"):
            if getattr(self, name) < 1 and not (name == "label_width" and augmenter == "det_aug_default"):
                raise MXNetError(f"{subject}: {name}: expected at least 1, got {getattr(self, name)}")


class _Batch:
    """A batch that threads fill.

    Attributes:
        data, label: its arrays.
        pad: how many samples at the end only fill it up.
        index: the images' numbers in their records.
        work: what the threads do for it.
    """

    __slots__ = ("data", "index", "label", "pad", "work")
    work: DecodingWork[None]

    def __init__(self, data: Image, label: Image, pad: int) -> None:
        self.data = data
        self.label = label
        self.pad = pad
        self.index = np.zeros(len(data), np.int64)


class RecordsIter(DataIter):
    """Base of the iterators over images in record files.

    Args:
        reading: what is read, and in which order.
        label_shape: of one sample, () for one number.
        sample: fills in one sample. It gets the header and the encoded image of a record, the sample's places in the
            batch's data and label, and its random numbers.
        names: of the batch's data and label.
        fill: what labels are where a batch has no sample.

    Attributes:
        records: the record files.
    """

    def __init__(
        self,
        reading: RecordReading,
        records: RecordFiles,
        label_shape: tuple[int, ...],
        sample: Callable[[IRHeader, bytes, Image, Image, Random], None],
        names: tuple[str, str],
        fill: float = 0.0,
    ) -> None:
        super().__init__(reading.batch_size)
        library()  # whoever lacks it hears so here
        self._reading = reading
        self.records = records
        self._label_shape = label_shape
        self._fill = fill
        self._job = _Job(records, sample, reading.seed if reading.seed_aug is None else reading.seed_aug)
        dtype = np.dtype(reading.dtype)
        self.provide_data = [DataDesc(names[0], (self.batch_size, *reading.data_shape), dtype.type)]
        self.provide_label = [DataDesc(names[1], (self.batch_size, *label_shape), np.float32)]
        self._threads = DecodingThreads(reading.preprocess_threads)
        self._orders = np.random.RandomState(reading.seed & 0xFFFFFFFF)
        self._batch: _Batch | None = None
        self._drawn = 0
        self._next_order = self._new_order()
        self._next_begin = 0
        self._begin_epoch(continues=True)

    def _new_order(self) -> Image:
        """The numbers of the records, as an epoch takes them."""
        total = len(self.records)
        return self._orders.permutation(total) if self._reading.shuffle else np.arange(total)

    def _begin_epoch(self, continues: bool) -> None:
        """Begin an epoch: behind what filled up the last batch, or at the first record."""
        self._order, self._begin = (self._next_order, self._next_begin) if continues else (self._new_order(), 0)
        rest = len(self._order) - self._begin
        self._left = -(-rest // self.batch_size)
        self._pad = self._left * self.batch_size - rest
        self._next_order, self._next_begin = self._new_order(), 0
        if self._reading.round_batch:
            self._next_begin = self._pad % max(1, len(self._order))
        self._coming: deque[_Batch] = deque()
        self._ask()

    def _ask(self) -> None:
        """Let threads fill batches ahead."""
        while self._left and len(self._coming) < max(1, self._reading.prefetch_buffer):
            self._left -= 1
            begin = self._begin
            self._begin += self.batch_size
            rows = self._order[begin : self._begin]
            pad = self.batch_size - len(rows)
            if pad and self._reading.round_batch:
                rows = np.concatenate([rows, np.resize(self._next_order, pad)])
            (_, shape), (_, label_shape) = self.provide_data[0], self.provide_label[0]
            data = np.empty(shape, self.provide_data[0].dtype)
            data[len(rows) :] = 0
            batch = _Batch(data, np.full(label_shape, self._fill, np.float32), pad)
            samples = [(position, int(row), self._drawn + position) for position, row in enumerate(rows)]
            self._drawn += len(rows)
            batch.work = self._threads.begin(_Fill(self._job, batch), samples)
            self._coming.append(batch)

    def reset(self) -> None:
        """Begin a new epoch. One that was taken to its end goes on behind the samples that filled up its last batch."""
        ended = not self._coming and not self._left
        shielded(self._begin_epoch, ended)

    def iter_next(self) -> bool:
        if not self._coming:
            return False
        batch = self._coming[0]
        batch.work.done.wait()
        shielded(self._take)
        batch.work.results()
        self._batch = batch
        return True

    def _take(self) -> None:
        self._coming.popleft()
        self._ask()

    def _current(self) -> _Batch:
        if self._batch is None:
            raise AssertionError("no batch yet: call iter_next() first")
        return self._batch

    def getdata(self) -> Any:
        return [HostArray(self._current().data)]

    def getlabel(self) -> Any:
        return [HostArray(self._current().label)]

    def getpad(self) -> int | None:
        return self._current().pad

    def getindex(self) -> Any:
        return self._current().index


class _Job:
    """What is the same for all samples: the records, what fills in a sample, and the seed of its random numbers."""

    __slots__ = ("records", "sample", "seed")

    def __init__(self, records: RecordFiles, sample: Any, seed: int) -> None:
        self.records = records
        self.sample = sample
        self.seed = seed


class _Fill:
    """Fills samples into a batch."""

    __slots__ = ("batch", "job")

    def __init__(self, job: _Job, batch: _Batch) -> None:
        self.job = job
        self.batch = batch

    def __call__(self, sample: tuple[int, int, int]) -> None:
        """Fill in one sample: its position in the batch, the number of its record, and how many were drawn before."""
        position, row, drawn = sample
        job, batch = self.job, self.batch
        try:
            header, data = unpack(job.records.read(row))
            batch.index[position] = header.id
            draws = Random((job.seed << 40) + drawn)
            job.sample(header, data, batch.data[position], batch.label[position : position + 1], draws)
        except (MXNetError, ValueError) as error:
            raise MXNetError(f"{job.records.name(row)}: {error}") from error


def decoded(data: bytes, channels: int) -> Image:
    """The image of a record, RGB.

    Raises:
        MXNetError: it is none, or has another number of channels.
    """
    image = library().decode(data, _CHANNELS[channels])
    if image is None:
        raise MXNetError(f"expected an image, got {len(data)} bytes that are none: see if the file was copied whole")
    if image.shape[2] != channels:
        raise MXNetError(f"expected an image of {channels} channels as data_shape says, got {image.shape[2]}")
    return image


def labels_of(path: str, subject: str) -> dict[int, Image]:
    """The labels in a list of images (.lst), by the images' numbers.

    Raises:
        MXNetError: the file is missing, or no list.
    """
    file = path_of(path, f"{subject}: path_imglist")
    with file_errors(file, "read"):
        lines = file.read_text(encoding="utf-8").splitlines()
    labels = {}
    for number, line in enumerate(lines, 1):
        cells = line.strip().split("\t")
        try:
            if line.strip():
                labels[int(cells[0])] = np.array(cells[1:-1], np.float32)
        except ValueError:
            raise MXNetError(
                f"{file}, line {number}: expected a number, labels and a path with tabs between, got {line.strip()!r}"
            ) from None
    return labels


def listed_label(labels: dict[int, Image] | None, header: IRHeader, path: str) -> Image:
    """The label of a record: from the list of images, where there is one.

    Raises:
        MXNetError: the list lacks the image.
    """
    if labels is None:
        return np.atleast_1d(np.asarray(header.label, np.float32))
    if header.id not in labels:
        raise MXNetError(f"{path}: expected a line for the image of number {header.id}, got none")
    return labels[header.id]


class _Sample:
    """Fills in a sample of `ImageRecordIter`."""

    def __init__(
        self,
        reading: RecordReading,
        augmentation: Augmentation,
        normalization: Normalization,
        labels: dict[int, Image] | None,
    ) -> None:
        self.reading = reading
        self.augmentation = augmentation
        self.normalization = normalization
        self.labels = labels
        self.mean_image: Image | None = None

    def __call__(self, header: IRHeader, data: bytes, out: Image, label: Image, draws: Random) -> None:
        reading = self.reading
        values = listed_label(self.labels, header, reading.path_imglist)
        if len(values) != reading.label_width:
            raise MXNetError(f"label_width: expected {len(values)} as the label has numbers, got {reading.label_width}")
        label[...] = values
        image = decoded(data, reading.data_shape[0])
        channels, height, width = reading.data_shape
        image = self.augmentation.apply(image, (channels, height, width), draws)
        self.normalization.write(image, out, self.mean_image, draws)


class ImageRecordIter(RecordsIter):
    """Batches of images from record files, as tools/im2rec.py or `mx.recordio` write them.

    Images are decoded and augmented by threads ahead of whoever takes the batches; a batch reaches a server in the
    request of the step that uses it. All arguments are keywords.

    Args:
        path_imgrec: the record file, or a folder of them.
        data_shape: (channels, height, width) of an image; 1 channel for grey, 3 for RGB.
        batch_size: images of one batch.
        path_imgidx: the record file's index; without it the file is looked through once.
        path_imglist: a list of images (.lst) whose labels are taken for those in the records.
        label_width: how many numbers a label has.
        shuffle, seed: whether each epoch has an order of its own, and what it comes of.
        part_index, num_parts: read only this part of the records.
        round_batch: fill an incomplete last batch from the beginning, and let the next epoch begin behind that;
            otherwise leave zeros in it. `batch.pad` says how many.
        preprocess_threads: threads that decode, at most one for each core.
        prefetch_buffer: batches that are ready ahead.
        dtype: "float32"; "uint8" for pixels as they are; "int8" for their difference from the mean.
        resize: what the shorter edge becomes before anything else.
        rand_crop, rand_mirror, mirror, pad, fill_value, inter_method: crops, mirrored images, borders, interpolation.
        random_resized_crop, min_random_area, max_random_area, min_aspect_ratio, max_aspect_ratio: random pieces.
        max_rotate_angle, rotate, max_shear_ratio, min_random_scale, max_random_scale, min_img_size, max_img_size:
            rotations and scales, in degrees and factors.
        min_crop_size, max_crop_size: square crops of random size.
        brightness, contrast, saturation, pca_noise, random_h, random_s, random_l: changes of the colours.
        mean_r, mean_g, mean_b, mean_a, std_r, std_g, std_b, std_a, scale: value = (pixel - mean) / std * scale.
        mean_img: a file with the mean image, which is subtracted; it is written where it is missing.
        max_random_contrast, max_random_illumination: random factors and summands of the values.
        seed_aug: what the random numbers of the augmentation come of; `seed` where None.
        data_name, label_name: names of the batch's arrays.
        ctx, device_id, verbose, shuffle_chunk_size, shuffle_chunk_seed, aug_seq: taken for their callers' sake.

    Raises:
        MXNetError: an argument, or from `next` an image.
        ImportError: neither OpenCV nor Pillow is installed.

    Example:
        >>> train = mx.io.ImageRecordIter(
        ...     path_imgrec="train.rec", data_shape=(3, 224, 224), batch_size=64, rand_crop=True, rand_mirror=True
        ... )
    """

    _DTYPE = ""

    def __init__(self, **arguments: Any) -> None:
        subject = type(self).__name__
        names = (str(arguments.get("data_name", "data")), str(arguments.get("label_name", "softmax_label")))
        if arguments.get("dtype", "") is None:
            del arguments["dtype"]
        if self._DTYPE:
            arguments["dtype"] = self._DTYPE
        elif "dtype" in arguments:
            arguments["dtype"] = _dtype_name(arguments["dtype"])
        reading, augmentation, normalization = read_arguments(
            subject, arguments, RecordReading, Augmentation, Normalization
        )
        reading.check(subject, "aug_default")
        augmentation.check(subject, reading.data_shape[0])
        labels = labels_of(reading.path_imglist, subject) if reading.path_imglist else None
        sample = _Sample(reading, augmentation, normalization, labels)
        records = RecordFiles(reading.path_imgrec, reading.path_imgidx, reading.part_index, reading.num_parts)
        if normalization.mean_img and reading.dtype != "uint8":
            sample.mean_image = _mean_image(Path(normalization.mean_img), records, sample)
        label_shape = (reading.label_width,) if reading.label_width > 1 else ()
        super().__init__(reading, records, label_shape, sample, names)


def _dtype_name(dtype: Any) -> str:
    try:
        return str(np.dtype(dtype))
    except TypeError:
        return str(dtype)


def _mean_image(path: Path, records: RecordFiles, sample: _Sample) -> Image:
    """The mean image of a file; where it is missing, that of all records, which is written there."""
    from ..ndarray import load, save

    shape = sample.reading.data_shape
    if path.exists():
        arrays = load(path)
        array = next(iter(arrays.values() if isinstance(arrays, dict) else arrays))
        if array.shape != shape:
            raise MXNetError(f"{path}: expected a mean image of data_shape {shape}, got {array.shape}")
        return np.asarray(array.asnumpy(), np.float32)
    total, out = np.zeros(shape, np.float64), np.empty(shape, np.float32)
    label = np.empty((1, *((sample.reading.label_width,) if sample.reading.label_width > 1 else ())), np.float32)
    for row in range(len(records)):
        header, data = unpack(records.read(row))
        sample(header, data, out, label, Random(row))
        total += out
    mean = (total / max(1, len(records))).astype(np.float32)
    save(path, {"mean_img": HostArray(mean)})
    return mean


class ImageRecordUInt8Iter(ImageRecordIter):
    """`ImageRecordIter` with pixels as they are, uint8."""

    _DTYPE = "uint8"


class ImageRecordInt8Iter(ImageRecordIter):
    """`ImageRecordIter` with the pixels' differences from the mean, int8."""

    _DTYPE = "int8"
