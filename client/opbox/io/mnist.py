"""MNISTIter: the files of the MNIST digits, idx format (http://yann.lecun.com/exdb/mnist), plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from opbox_protocol.errors import DamagedFileError, MissingFileError

from ..file_errors import file_errors
from .arguments import warn_of_unused
from .ndarray_iter import NDArrayIter
from .row_source import RowSource

__all__ = ["MNISTIter", "read_idx"]

_MAX_RANK = 32
_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: str | Path) -> np.ndarray[Any, Any]:
    """The array in an idx file: two zero bytes, an element type, a rank, the dimensions (big-endian), the values.

    `path` may name the file with or without its `.gz`.

    Raises:
        MissingFileError: neither is there.
        DamagedFileError: the file is no idx file, or not as long as it says.
    """
    file = Path(path)
    if not file.exists():
        other = file.with_suffix("") if file.suffix == ".gz" else Path(f"{file}.gz")
        if not other.exists():
            raise MissingFileError(f"{file}: expected a file to read, got none, with or without .gz")
        file = other
    with file_errors(file, "read"):
        raw = file.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error) as error:
            raise DamagedFileError(f"{file}: expected a gzipped file, got one that is damaged: {error}") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES:
        raise DamagedFileError(f"{file}: expected an idx file, got bytes that begin with {raw[:4]!r}")
    start = 4 + 4 * raw[3]
    if not 1 <= raw[3] <= _MAX_RANK:
        raise DamagedFileError(f"{file}: expected 1 to {_MAX_RANK} dimensions, got {raw[3]}")
    if len(raw) < start:
        raise DamagedFileError(f"{file}: expected {raw[3]} dimensions, got {len(raw)} bytes in all")
    shape = tuple(int(d) for d in np.frombuffer(raw[4:start], ">u4"))
    dtype = np.dtype(_TYPES[raw[2]])
    if len(raw) - start != math.prod(shape) * dtype.itemsize:
        raise DamagedFileError(
            f"{file}: expected {math.prod(shape)} values for shape {shape}, got {len(raw) - start} bytes"
        )
    try:
        return np.frombuffer(raw, dtype, offset=start).reshape(shape)
    except ValueError:  # one size is 0, and the product of the others is too large
        raise DamagedFileError(f"{file}: expected dimensions that an array can have, got {shape}") from None


class MNISTIter(NDArrayIter):
    """Batches of MNIST images in [0, 1) (pixels / 256, as MXNet's reader has them) and labels; whole batches only.

    Args:
        image, label: the idx files.
        batch_size: samples of one batch.
        shuffle: whether to shuffle once, by `seed`.
        flat: (batch, 784) rather than (batch, 1, 28, 28).
        seed: of the order.
        silent, prefetch_buffer, ctx, data_shape: taken for their callers' sake, as by MXNet: nothing is printed, the
            images are in memory, the files say their shape. A name that is none of these is a warning.
        num_parts, part_index: read only this part of the files.
        input_shape: the shape of one image, where another view of its pixels is wanted.
        data_name, label_name: names of the batch's arrays.
        dtype: float32, or None.

    Raises:
        FileError, DamagedFileError: the files; both are MXNetErrors.
    """

    def __init__(
        self,
        image: str = "./train-images-idx3-ubyte",
        label: str = "./train-labels-idx1-ubyte",
        batch_size: int = 128,
        shuffle: bool = True,
        flat: bool = False,
        seed: int = 0,
        silent: bool = False,
        num_parts: int = 1,
        part_index: int = 0,
        input_shape: tuple[int, ...] | None = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        prefetch_buffer: int = 4,
        ctx: Any = None,
        dtype: Any = None,
        data_shape: Any = None,
        **unused: Any,
    ) -> None:
        warn_of_unused("MNISTIter", unused, ("image", "label", "batch_size", "shuffle", "flat", "seed", "input_shape"))
        images, labels = read_idx(image), read_idx(label)
        if len(images) != len(labels):
            raise DamagedFileError(f"{label}: expected {len(images)} labels as in {image}, got {len(labels)}")
        if not 0 <= part_index < num_parts:
            raise ValueError(f"part_index: expected 0 to {num_parts - 1}, got {part_index}")
        part = slice(len(images) * part_index // num_parts, len(images) * (part_index + 1) // num_parts)
        images, labels = images[part], labels[part]
        if shuffle:
            order = np.random.RandomState(seed).permutation(len(images))
            images, labels = images[order], labels[order]
        shape = input_shape or ((math.prod(images.shape[1:]),) if flat else (1, *images.shape[1:]))
        pixels = RowSource(images.reshape(len(images), *shape), np.float32, 1 / 256)
        if dtype is not None and np.dtype(dtype) != np.float32:
            raise ValueError(f"dtype: expected float32, as NDArrayIter has all host data, got {dtype}")
        super().__init__(
            {data_name: pixels},
            {label_name: RowSource(labels, np.float32)},
            batch_size,
            last_batch_handle="discard",
            data_name=data_name,
            label_name=label_name,
        )
