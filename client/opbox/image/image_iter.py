"""ImageIter: batches of images from record files, lists of files, or lists in a program."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from opbox_protocol.errors import DamagedFileError, MXNetError

from ..base import is_number, value_text
from ..file_errors import file_errors, path_of, text_of
from ..imaging import Image, library
from ..io.desc import DataBatch, DataIter
from ..io.host_array import HostArray
from ..recordio import MXIndexedRecordIO, MXRecordIO, unpack
from .augmenters import augmented
from .create import CreateAugmenter
from .files import imdecode
from .pixels import like, values_of
from .samples_ahead import SamplesAhead

__all__ = ["ImageIter"]

_LABEL_TYPES = ("int32", "float32", "int64", "float64")
_LAST = ("pad", "discard", "roll_over")


class ImageIter(DataIter):
    """Batches of images, with augmenters of one's own. `mx.io.ImageRecordIter` is faster, and has fewer of them.

    Images are decoded by threads (MXNET_CPU_WORKER_NTHREADS says how many), one batch ahead of the one that is taken,
    and augmented on this machine when it is taken; a batch reaches a server in the request of the step that uses it.
    A subclass with a `next_sample` or `read_image` of its own has nothing read ahead.

    Args:
        batch_size: images of one batch.
        data_shape: (3, height, width) of an image.
        label_width: how many numbers a label has.
        path_imgrec: a record file; `path_imgidx` is its index, which parts and shuffling need.
        path_imglist: a list of images (.lst): a number, labels and a path, with tabs between.
        imglist: a list of [label, path] or [label, …, path].
        path_root: the folder that paths begin in.
        shuffle: draw a new order at each reset, with Python's global generator.
        part_index, num_parts: read only this part of the images.
        aug_list: augmenters; those of `CreateAugmenter` with `kwargs` where None. What is none of `mx.image`'s own gets
            NDArrays.
        data_name, label_name: names of the batch's arrays.
        dtype: the type that labels are read as.
        last_batch_handle: what becomes of an incomplete last batch: "pad" (filled from the beginning, `batch.pad` says
            by how much), "discard", or "roll_over" (kept for the next epoch).

    Raises:
        AssertionError: no images are named, or shuffling and parts without an index.
        ValueError: a data_shape of another kind.
        RuntimeError (from `next`): an image cannot be decoded.
        ImportError: neither OpenCV nor Pillow is installed.

    Example:
        >>> train = mx.image.ImageIter(32, (3, 224, 224), path_imglist="train.lst", path_root="photos", mean=True)
    """

    def __init__(
        self,
        batch_size: int,
        data_shape: tuple[int, ...],
        label_width: int = 1,
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
        label_name: str = "softmax_label",
        dtype: str = "float32",
        last_batch_handle: str = "pad",
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size)
        subject = type(self).__name__
        if not (path_imgrec or path_imglist or isinstance(imglist, list)):
            raise AssertionError(f"{subject}: expected path_imgrec, path_imglist or imglist, got none of them")
        if dtype not in _LABEL_TYPES:
            raise AssertionError(f"{subject}: dtype: expected one of {', '.join(_LABEL_TYPES)}, got {dtype!r}")
        if last_batch_handle not in _LAST:
            raise ValueError(
                f"{subject}: last_batch_handle: expected one of {', '.join(_LAST)}, got {last_batch_handle!r}"
            )
        library()  # whoever lacks it hears so here
        self.imgrec: MXRecordIO | None = None
        self.imgidx: list[Any] | None = None
        if path_imgrec:
            with file_errors(path_of(path_imgrec, f"{subject}: path_imgrec"), "read"):
                if path_imgidx:
                    indexed = MXIndexedRecordIO(path_imgidx, path_imgrec, "r")
                    self.imgrec, self.imgidx = indexed, list(indexed.keys)
                else:
                    self.imgrec = MXRecordIO(path_imgrec, "r")
        self.imglist: Mapping[Any, tuple[Image, str]] | None = None
        if path_imglist:
            self.imglist = _listed_file(path_of(path_imglist, f"{subject}: path_imglist"), dtype)
        elif isinstance(imglist, list):
            self.imglist = {str(number): _listed(item, dtype) for number, item in enumerate(imglist, 1)}
        self.path_root = path_root
        self.check_data_shape(data_shape)
        self.data_shape = tuple(data_shape)
        self.label_width = label_width
        self.provide_data = [(data_name, (batch_size, *self.data_shape))]
        self.provide_label = [(label_name, (batch_size, label_width) if label_width > 1 else (batch_size,))]
        self.shuffle = shuffle
        self.seq = self._sequence(subject, shuffle or num_parts > 1 or bool(path_imgidx))
        if num_parts > 1:
            if not 0 <= part_index < num_parts:
                raise AssertionError(f"{subject}: part_index: expected 0 to {num_parts - 1}, got {part_index}")
            assert self.seq is not None
            size = len(self.seq) // num_parts
            self.seq = self.seq[part_index * size : (part_index + 1) * size]
        self.num_image = None if self.seq is None else len(self.seq)
        self.auglist = CreateAugmenter(data_shape, **kwargs) if aug_list is None else aug_list
        self.last_batch_handle = last_batch_handle
        self._ahead = SamplesAhead(self, _reads_itself(type(self)))
        self._ended = False
        self._rolled_over: tuple[Image, Image, int] | None = None
        self.reset()

    def _sequence(self, subject: str, ordered: bool) -> list[Any] | None:
        """The keys of the images in their order; None for a record file that is read as it comes."""
        if self.imgrec is None:
            return list(self.imglist or ())
        if ordered and self.imgidx is None:
            raise AssertionError(
                f"{subject}: path_imgidx: expected the record file's index, got none: tools/rec2idx.py makes it"
            )
        return self.imgidx if ordered else None

    def reset(self) -> None:
        """Begin at the first image again; what was rolled over opens the epoch."""
        if self.seq is not None and self.shuffle:
            random.shuffle(self.seq)
        if self.last_batch_handle != "roll_over" or self._rolled_over is None:
            if self.imgrec is not None:
                self.imgrec.reset()
            self.cur = 0
            self._ended = False

    @property
    def cur(self) -> int:
        """How many samples of the epoch were taken; setting it goes on at another one."""
        return self._ahead.taken

    @cur.setter
    def cur(self, position: int) -> None:
        self._ahead.go_to(position)

    def hard_reset(self) -> None:
        """Begin at the first image again, without what was rolled over."""
        self._rolled_over = None
        self.reset()

    def next_sample(self) -> tuple[Any, bytes]:
        """The label and the encoded image of the next sample.

        Raises:
            StopIteration: there is none.
        """
        if self._ended:
            raise StopIteration
        return self._ahead.next_sample()

    def place_of_sample(self) -> str:
        """Which sample `next_sample` of a subclass has returned, for errors."""
        if self.seq is None or not 0 < self.cur <= len(self.seq):
            return "image of a record"
        key = self.seq[self.cur - 1]
        return f"image {self.imglist[key][1] if self.imglist and self.imgrec is None else key}"

    def read_sample(self, position: int) -> tuple[Any, bytes, str, int]:
        """The label, the encoded image and the place of a sample, and the position of the one behind it.

        Raises:
            StopIteration: there is none at this position; its value is where the next epoch begins.
        """
        if self.seq is None:
            assert self.imgrec is not None
            record = self.imgrec.read()
            if record is None:
                if self.last_batch_handle != "discard":
                    self.imgrec.reset()
                raise StopIteration(position)
            header, data = unpack(record)
            return header.label, data, "image of a record", position
        if position >= len(self.seq):
            raise StopIteration(0 if self.last_batch_handle != "discard" else position)
        key = self.seq[position]
        if self.imgrec is None:
            assert self.imglist is not None
            label, name = self.imglist[key]
            return label, self.read_image(name), f"image {name}", position + 1
        record = self.imgrec.read_idx(key)  # type: ignore[attr-defined]
        header, data = unpack(record)
        if self.imglist is None:
            return header.label, data, f"image {key}", position + 1
        if key not in self.imglist:
            raise MXNetError(f"path_imglist: expected a line for the image of number {key}, got none")
        return self.imglist[key][0], data, f"image {key}", position + 1

    def _batchify(self, batch_data: Image, batch_label: Image, start: int = 0) -> int:
        """Fill a batch from a position on; returns how much of it is filled then."""
        position = start
        ended = False
        while position < self.batch_size and not ended:
            # What only fills a batch up comes of the beginning, where nothing is read ahead: the next epoch may differ.
            ahead = 0 if start else self.batch_size
            samples, ended = ([], True) if self._ended else self._ahead.take(self.batch_size - position, ahead)
            for label, place, image in samples:
                position += self._place_sample(batch_data, batch_label, position, image, label, place)
        if not position:
            raise StopIteration
        return position

    def decode_sample(self, data: bytes, place: str) -> Image:
        """A decoded image, in one of the threads."""
        try:
            return values_of(self.imdecode(data))
        except MXNetError as error:
            raise RuntimeError(f"broken {place}: {error}") from error

    def _place_sample(
        self, batch_data: Image, batch_label: Image, position: int, image: Image, label: Any, place: str
    ) -> bool:
        """Put a sample into a batch; return False for an invalid one."""
        try:
            self.check_valid_image([image])
        except RuntimeError:
            return False
        image = self._changed("augmentation_transform", image)
        image = self._changed("postprocess_data", image)
        if image.shape != batch_data.shape[1:]:
            raise MXNetError(
                f"{place}: expected shape {batch_data.shape[1:]} after the augmenters, got {image.shape}: "
                "the last of them that changes sizes has to make that size"
            )
        batch_data[position] = image
        numbers = np.asarray(values_of(label), np.float32).ravel()
        if numbers.size != self.label_width:
            raise MXNetError(f"{place}: expected a label of label_width={self.label_width} numbers, got {numbers.size}")
        batch_label[position] = numbers if self.label_width > 1 else numbers[0]
        return True

    def _changed(self, method: str, image: Image) -> Image:
        """An image as a method changes it; one that a subclass defines gets an NDArray."""
        ours = getattr(type(self), method) is getattr(ImageIter, method)
        return values_of(getattr(self, method)(image if ours else HostArray(image)))

    def _empty(self) -> tuple[Image, Image]:
        """The arrays of a batch."""
        return np.zeros(self.provide_data[0][1], np.float32), np.zeros(self.provide_label[0][1], np.float32)

    def next(self) -> DataBatch:
        if self._rolled_over is not None:
            data, label, filled = self._rolled_over
        else:
            data, label = self._empty()
            filled = self._batchify(data, label)
        pad = self.batch_size - filled
        if pad:
            if self.last_batch_handle == "discard":
                raise StopIteration
            if self.last_batch_handle == "roll_over" and self._rolled_over is None:
                self._rolled_over = data, label, filled
                raise StopIteration
            self._batchify(data, label, filled)
            self._ended = self.last_batch_handle == "pad"
            self._rolled_over = None
        return DataBatch([HostArray(data)], [HostArray(label)], pad=pad)

    def check_data_shape(self, data_shape: Sequence[int]) -> None:
        """Raise an error for a shape that images cannot have.

        Raises:
            ValueError: it is not (3, height, width).
        """
        if len(data_shape) != 3 or data_shape[0] != 3:
            raise ValueError(f"data_shape: expected (3, height, width), got {value_text(data_shape)}")

    def check_valid_image(self, data: Any) -> None:
        """Raise an error for a value that is no image; its sample is skipped.

        Raises:
            RuntimeError: it has no dimensions.
        """
        if not data[0].shape:
            raise RuntimeError("expected an image, got an array without dimensions")

    def imdecode(self, s: bytes) -> Any:
        """Decode an image."""
        return imdecode(s)

    def read_image(self, fname: str) -> bytes:
        """The bytes of an image file below `path_root`."""
        path = Path(self.path_root or "", fname)
        with file_errors(path, "read"):
            return path.read_bytes()

    def augmentation_transform(self, data: Any) -> Any:
        """An image as the augmenters change it."""
        image = values_of(data)
        for one in self.auglist:
            image = augmented(one, image)
        return like(data, image)

    def postprocess_data(self, datum: Any) -> Any:
        """An image as it goes into a batch: (channels, height, width)."""
        return like(datum, values_of(datum).transpose(2, 0, 1))


def _reads_itself(kind: type[ImageIter]) -> bool:
    """Return whether samples come from this file's methods alone, so that reading them early changes nothing."""
    return all(getattr(kind, name) is getattr(ImageIter, name) for name in ("next_sample", "read_image"))


def _listed(item: Any, dtype: str) -> tuple[Image, str]:
    """The label and the path of an item of `imglist`."""
    if not isinstance(item, list | tuple) or len(item) < 2 or not isinstance(item[-1], str | os.PathLike):
        raise ValueError(f"imglist: expected items [label, path], got {value_text(item)}")
    label = item[:-1] if len(item) > 2 or is_number(item[0]) else item[0]
    return np.asarray(values_of(label), dtype), os.fspath(item[-1])


def _listed_file(path: Path, dtype: str) -> dict[Any, tuple[Image, str]]:
    """Labels and paths in a list of images, by their numbers."""
    lines = text_of(path, "lines of a number, labels and a path").splitlines()
    listed: dict[Any, tuple[Image, str]] = {}
    for number, line in enumerate(lines, 1):
        cells = line.strip().split("\t")
        try:
            if line.strip():
                listed[int(cells[0])] = np.asarray([float(cell) for cell in cells[1:-1]], dtype), cells[-1]
        except ValueError:
            raise DamagedFileError(
                f"{path}, line {number}: expected a number, labels and a path with tabs between, got {line.strip()!r}"
            ) from None
    return listed
