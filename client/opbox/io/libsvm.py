"""LibSVMIter: rows of files in the format of LibSVM, whose zeros are left out, as dense batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from opbox_protocol.errors import MXNetError

from ..base import value_text
from ..file_errors import file_errors, path_of, text_of
from .arguments import PARTS
from .rows import RowsIter

__all__ = ["LibSVMIter"]


def _read(path: str, width: int, argument: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The first numbers and the rows of a file, or of a folder's files by name."""
    place = path_of(path, f"LibSVMIter: {argument}")
    with file_errors(place, "read"):
        files = sorted(one for one in place.iterdir() if one.is_file()) if place.is_dir() else [place]
    texts = [(file, text_of(file, "lines of a label and pairs index:value")) for file in files]
    firsts: list[float] = []
    rows: list[np.ndarray[Any, Any]] = []
    for file, text in texts:
        for number, line in enumerate(text.splitlines(), 1):
            cells = line.partition("#")[0].split()
            if cells:
                first, row = _row(cells, width, file, number)
                firsts.append(first)
                rows.append(row)
    if not rows:
        raise MXNetError(f"{path}: expected rows of a label and pairs index:value, got none")
    return np.array(firsts, np.float32), np.stack(rows)


def _row(cells: list[str], width: int, file: Path, number: int) -> tuple[float, np.ndarray[Any, Any]]:
    """The label and the values of a line."""
    row = np.zeros(width, np.float32)
    try:
        for cell in cells[1:]:
            index, _, value = cell.partition(":")
            place = int(index)
            if not 0 <= place < width:
                raise MXNetError(f"{file}, line {number}: expected indices from 0 to {width - 1}, got {place}")
            row[place] = float(value)
        return float(cells[0]), row
    except ValueError:
        raise MXNetError(
            f"{file}, line {number}: expected a label and pairs index:value, got {value_text(' '.join(cells))}"
        ) from None


class LibSVMIter(RowsIter):
    """Batches from files in the format of LibSVM: lines of a label and pairs index:value, indices from 0.

    Arrays are dense (MXNet's are sparse, of the same values).

    Args:
        data_libsvm: a file, or a folder of files.
        data_shape: (width,) of a row.
        label_libsvm: a file of that format whose rows are the labels; without it they are the lines' first numbers.
        label_shape: (width,) of such a row.
        batch_size: rows of one batch.
        num_parts, part_index: read only this part of the rows.
        round_batch: True: an incomplete last batch is filled from the beginning, and the next epoch begins behind that.
        data_name, label_name: names of the batch's arrays.
        dtype: "float32", or None.
        prefetch_buffer, ctx: taken for their callers' sake: the rows are in memory.

    Raises:
        MXNetError: the files, or an argument.

    Example:
        >>> train = mx.io.LibSVMIter(data_libsvm="a9a.t", data_shape=(123,), batch_size=100)
    """

    def __init__(
        self,
        data_libsvm: str,
        data_shape: tuple[int, ...] | int,
        batch_size: int,
        label_libsvm: str | None = None,
        label_shape: tuple[int, ...] | int = (1,),
        num_parts: int = 1,
        part_index: int = 0,
        round_batch: bool = True,
        dtype: Any = None,
        data_name: str = "data",
        label_name: str = "softmax_label",
        prefetch_buffer: int = 4,
        ctx: Any = None,
    ) -> None:
        if not round_batch:
            raise MXNetError("LibSVMIter: round_batch: expected True, got False")
        if dtype is not None and np.dtype(dtype) != np.float32:
            raise MXNetError(f"LibSVMIter: dtype: expected float32, got {dtype}")
        if not 0 <= part_index < num_parts:
            raise MXNetError(PARTS.format(last=num_parts - 1, got=part_index))
        label, data = _read(data_libsvm, _width(data_shape, "data_shape"), "data_libsvm")
        if label_libsvm not in (None, "NULL"):
            label = _read(str(label_libsvm), _width(label_shape, "label_shape"), "label_libsvm")[1]
        if len(label) != len(data):
            raise MXNetError(f"{label_libsvm}: expected {len(data)} rows as in {data_libsvm}, got {len(label)}")
        part = slice(len(data) * part_index // num_parts, len(data) * (part_index + 1) // num_parts)
        super().__init__(data[part], label[part], batch_size, True, data_name, label_name)


def _width(shape: Any, argument: str) -> int:
    """The width that a shape of one dimension says."""
    sizes = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if len(sizes) != 1 or not isinstance(sizes[0], int) or sizes[0] < 1:
        raise MXNetError(f"LibSVMIter: {argument}: expected (width,), got {value_text(shape)}")
    return sizes[0]
