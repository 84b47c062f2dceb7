"""RowsIter: batches of rows that are in memory, as the iterators over files of text have them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .dataset_rows import SharedRows
from .desc import DataBatch, DataDesc, DataIter
from .row_source import RowSource
from .rows_array import RowsArray

__all__ = ["RowsIter"]


class RowsIter(DataIter):
    """Batches of rows.

    Args:
        data, label: equally many rows.
        batch_size: rows of one batch.
        round_batch: fill an incomplete last batch from the beginning, and let the next epoch start behind what was
            used; otherwise fill it with the rows before, and start every epoch at the first row.
        data_name, label_name: names of the batch's arrays.
    """

    def __init__(
        self,
        data: np.ndarray[Any, Any],
        label: np.ndarray[Any, Any],
        batch_size: int,
        round_batch: bool,
        data_name: str,
        label_name: str,
    ) -> None:
        super().__init__(batch_size)
        self._data = RowSource(data)
        self._label = RowSource(label)
        self._count = len(data)
        self._shared = SharedRows([self._data, self._label])
        self.round_batch = round_batch
        self._next = 0
        self._begin = 0
        self.provide_data = [DataDesc(data_name, (batch_size, *data.shape[1:]), data.dtype.type)]
        self.provide_label = [DataDesc(label_name, (batch_size, *label.shape[1:]), label.dtype.type)]

    def reset(self) -> None:
        self._shared.end_pass()
        self._next = self._begin

    def iter_next(self) -> bool:
        return self._next < self._count

    def next(self) -> DataBatch:
        total = self._count
        if self._next >= total:
            self._shared.end_pass()
            raise StopIteration
        rows = np.arange(self._next, self._next + self.batch_size)
        pad = max(0, int(rows[-1]) + 1 - total)
        if pad and self.round_batch:
            self._begin = pad % total
        elif pad:
            # The buffer of MXNet's reader still holds the batch before in the places that are not filled.
            rows[-pad:] -= self.batch_size
        else:
            self._begin = 0
        self._next += self.batch_size
        rows %= total
        part = rows if pad else slice(int(rows[0]), int(rows[0]) + self.batch_size)
        arrays = [RowsArray(source, part, self._shared) for source in (self._data, self._label)]
        return DataBatch(arrays[:1], arrays[1:], pad=pad, index=rows)
