"""CSVIter: rows of comma-separated files as batches."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from opbox_protocol.errors import DamagedFileError

from ..file_errors import file_errors, path_of
from .rows import RowsIter

__all__ = ["CSVIter"]


def _read(path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """All rows of a file, or of a folder's files by name, each reshaped to `shape`."""
    place = path_of(path, "CSVIter: the file")
    with file_errors(place, "read"):
        files = sorted(one for one in place.iterdir() if one.is_file()) if place.is_dir() else [place]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # an empty file is an error of ours, below
        rows = [_rows(file, dtype) for file in files]
    rows = [one for one in rows if one.size]
    if not rows:
        raise DamagedFileError(f"{path}: expected rows of comma-separated values, got none")
    width = int(np.prod(shape))
    for file, one in zip(files, rows, strict=False):
        if one.shape[1] != width:
            raise DamagedFileError(f"{file}: expected {width} values a row for shape {shape}, got {one.shape[1]}")
    return np.concatenate(rows).reshape(-1, *shape)


def _rows(file: Path, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    with file_errors(file, "read"):
        try:
            return np.loadtxt(file, delimiter=",", dtype=dtype, ndmin=2)
        except ValueError as error:
            raise DamagedFileError(f"{file}: expected rows of as many numbers with commas between: {error}") from None


class CSVIter(RowsIter):
    """Batches from CSV files.

    Args:
        data_csv: a file, or a folder of files.
        data_shape: the shape of one row.
        label_csv, label_shape: of the labels; without a file all labels are 0.
        batch_size: rows of one batch.
        round_batch: fill an incomplete last batch from the beginning, and let the next epoch start behind what was
            used; otherwise fill it with the rows before, and start every epoch at the first row.
        dtype: "float32", "int32" or "int64".
        data_name, label_name: names of the batch's arrays.
        prefetch_buffer, ctx: taken for their callers' sake: the rows are in memory.

    Raises:
        FileError, DamagedFileError: the files; both are MXNetErrors.
    """

    def __init__(
        self,
        data_csv: str,
        data_shape: tuple[int, ...],
        label_csv: str | None = None,
        label_shape: tuple[int, ...] = (1,),
        batch_size: int = 1,
        round_batch: bool = True,
        dtype: Any = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        prefetch_buffer: int = 4,
        ctx: Any = None,
    ) -> None:
        element = np.dtype(dtype or "float32")
        data = _read(data_csv, element, tuple(data_shape))
        if label_csv in (None, "NULL"):
            labels = np.zeros((len(data), *label_shape), element)
        else:
            labels = _read(str(label_csv), element, tuple(label_shape))
        if len(labels) != len(data):
            raise DamagedFileError(f"{label_csv}: expected {len(data)} rows as in {data_csv}, got {len(labels)}")
        # One label a row comes as a vector, as from MXNet's reader.
        if tuple(label_shape) == (1,):
            labels = labels.reshape(-1)
        super().__init__(data, labels, batch_size, round_batch, data_name, label_name)
