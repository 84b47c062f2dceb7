"""NDArrayIter: batches from arrays in memory.

A batch names rows of the arrays (`RowsArray`). In this process its values are a view of the arrays, or a gathered copy
once they are shuffled. A server gets each row once, and afterwards the rows' numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..base import is_number, value_text
from ..foreign import host_values, is_array
from .dataset_rows import SharedRows
from .desc import DataBatch, DataDesc, DataIter
from .host_array import HostArray
from .row_source import RowSource
from .rows_array import RowsArray
from .stored_dataset import StoredDataset

__all__ = ["NDArrayIter"]

Array = np.ndarray[Any, Any]
LAST = ("pad", "discard", "roll_over")


def named_sources(arrays: Any, allow_empty: bool, default_name: str) -> list[tuple[str, RowSource]]:
    """Copies of arrays by name, sorted, from an array, a list or a dict; those of other libraries become float32.

    Raises:
        TypeError: something else was given.
    """
    if arrays is None:
        if not allow_empty:
            raise AssertionError(f"{default_name}: expected arrays, got None")
        return []
    if is_array(arrays):
        arrays = [arrays]
    if isinstance(arrays, (list, tuple)):
        if not arrays and not allow_empty:
            raise AssertionError(f"{default_name}: expected at least one array, got an empty list")
        if arrays and isinstance(arrays[0], str):
            raise TypeError(_no_number(default_name, arrays[0]))
        if arrays and is_number(arrays[0]):
            raise TypeError(
                f"{default_name}: expected an array or a list of arrays, got a list of numbers: "
                "np.array(…) makes it one"
            )
        if len(arrays) == 1:
            arrays = {default_name: arrays[0]}
        else:
            arrays = {f"_{position}_{default_name}": one for position, one in enumerate(arrays)}
    if not isinstance(arrays, Mapping):
        raise TypeError(
            f"{default_name}: expected an NDArray, a numpy.ndarray, a list of them or a dict with them as values, "
            f"got {type(arrays).__name__}"
        )
    return [(name, _source(name, arrays[name])) for name in sorted(arrays)]


def _init_data(data: Any, allow_empty: bool, default_name: str) -> list[tuple[str, HostArray]]:
    """Arrays by name as an iterator of the user's own keeps them; see `named_sources`.

    Example:
        >>> mx.io._init_data(images, allow_empty=False, default_name="data")
    """
    return [(name, HostArray(_whole(source))) for name, source in named_sources(data, allow_empty, default_name)]


def _whole(source: RowSource) -> Array:
    return source.batch(slice(None))


def _source(name: str, value: Any) -> RowSource:
    if isinstance(value, RowSource):
        return value
    if hasattr(value, "asnumpy"):
        return RowSource(np.ascontiguousarray(value.asnumpy()))
    try:
        return RowSource.of(host_values(value))
    except (TypeError, ValueError):
        raise TypeError(_refusal(name, value)) from None


def _refusal(name: str, value: Any) -> str:
    """Why a value is no array of numbers, and what would be one."""
    values = host_values(value)
    if isinstance(values, np.ndarray) and values.size and values.dtype.kind in "OSU":
        return _no_number(name, values.flat[0])
    return f"{name}: expected an NDArray or a numpy.ndarray, got {value_text(value)}"


def _one_of_several(name: str) -> str:
    """Return advice for a list of rows that was taken for several arrays."""
    return ": a list stands for several arrays, np.array(…) makes it one" if name.startswith("_") else ""


def _no_number(name: str, value: Any) -> str:
    """Return the error for a value that is no number, with advice for names of classes."""
    remedy = ": np.unique(labels, return_inverse=True)[1] numbers classes" if isinstance(value, str | bytes) else ""
    return f"{name}: expected numbers, got {value_text(value)} among them{remedy}"


class NDArrayIter(DataIter):
    """Iterate over arrays in memory.

    Args:
        data, label: an array, a list of arrays or a dict of them by name; all equally many samples. An array is what
            numpy can read: NDArrays, numpy arrays, pandas data frames and series, tensors of torch; or an array of a
            dataset on the server. Do not change it while you iterate. A whole dataset (`mx.datasets.get`) as `data`
            brings its labels along: the arrays whose names end in "label".
        batch_size: samples of one batch.
        shuffle: draw a new order at each reset, with numpy's global generator (the same orders as MXNet's).
        last_batch_handle: what becomes of an incomplete last batch: "pad" (filled from the beginning, `batch.pad`
            says by how much), "discard", or "roll_over" (kept for the next epoch).
        data_name, label_name: names where none are given.
        layout: of the batches; its N is the batch axis.

    Raises:
        TypeError: data that is no array.
        ValueError: arrays of different lengths, a batch of no samples, or an unknown `last_batch_handle`.

    Example:
        >>> train = mx.io.NDArrayIter(images, labels, batch_size=100, shuffle=True)
    """

    def __init__(
        self,
        data: Any,
        label: Any = None,
        batch_size: int = 1,
        shuffle: bool = False,
        last_batch_handle: str = "pad",
        data_name: str = "data",
        label_name: str = "softmax_label",
        layout: str = "NCHW",
    ) -> None:
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ValueError(f"batch_size: expected an integer of at least 1, got {batch_size!r}")
        super().__init__(int(batch_size))
        if last_batch_handle not in LAST:
            raise ValueError(f"last_batch_handle: expected one of {', '.join(LAST)}, got {last_batch_handle!r}")
        if label is None and isinstance(data, StoredDataset):
            data, label = data.data_and_labels()
        self._data = named_sources(data, False, data_name)
        self._label = named_sources(label, True, label_name)
        self.layout = layout
        self._axis = max(layout.find("N"), 0)
        self.num_data = int(self._data[0][1].shape[self._axis])
        self._batch_rows: tuple[int, slice | Array] | None = None
        self._share()
        self.shuffle = shuffle
        self.last_batch_handle = last_batch_handle
        self.idx = np.arange(self.num_data)
        # MXNet shuffles arrays that are shuffled already, by an index that is shuffled already: two permutations.
        self._order: Array | None = None
        self._left_over: Array | None = None
        self.cursor = -batch_size
        self.reset()

    def _share(self) -> None:
        """Check that all arrays have as many samples, and send their rows from now on."""
        for name, array in self._data + self._label:
            if len(array.shape) <= self._axis or array.shape[self._axis] != self.num_data:
                raise ValueError(
                    f"{name}: expected {self.num_data} samples along axis {self._axis} as in {self._data[0][0]}, "
                    f"got shape {array.shape}{_one_of_several(name)}"
                )
        self._shared = SharedRows([source for _, source in self._data + self._label])

    @property
    def data(self) -> list[tuple[str, Any]]:
        """The data as (name, array) in the current order; others that a program sets have as many samples."""
        return [(name, HostArray(self._ordered(array))) for name, array in self._data]

    @data.setter
    def data(self, arrays: Sequence[tuple[str, Any]]) -> None:
        self._replace(arrays, self.label)

    @property
    def label(self) -> list[tuple[str, Any]]:
        """The labels as (name, array) in the current order; see `data`."""
        return [(name, HostArray(self._ordered(array))) for name, array in self._label]

    @label.setter
    def label(self, arrays: Sequence[tuple[str, Any]]) -> None:
        self._replace(self.data, arrays)

    @property
    def data_list(self) -> list[Any]:
        """The arrays of data and label."""
        return [array for _, array in self.data + self.label]

    def _replace(self, data: Sequence[tuple[str, Any]], label: Sequence[tuple[str, Any]]) -> None:
        """Iterate over other arrays, in the order that they have."""
        before = self._data, self._label
        self._data, self._label = ([(name, _source(name, array)) for name, array in pairs] for pairs in (data, label))
        try:
            self._share()
        except ValueError:
            self._data, self._label = before
            raise
        self._order = self._batch_rows = None

    @property
    def num_source(self) -> int:
        """The number of arrays, labels included."""
        return len(self._data) + len(self._label)

    def _ordered(self, source: RowSource) -> Array:
        return _whole(source) if self._order is None else source.batch(self._order, self._axis)

    def _described(self, arrays: Sequence[tuple[str, RowSource]]) -> list[DataDesc]:
        axis = self._axis
        return [
            DataDesc(
                name,
                (*array.shape[:axis], self.batch_size, *array.shape[axis + 1 :]),
                array.dtype.type,
                layout=self.layout,
            )
            for name, array in arrays
        ]

    @property
    def provide_data(self) -> list[DataDesc]:
        """Names and shapes of the data of a batch."""
        return self._described(self._data)

    @property
    def provide_label(self) -> list[DataDesc]:
        """Names and shapes of the labels of a batch."""
        return self._described(self._label)

    def _shuffle(self) -> None:
        np.random.shuffle(self.idx)
        self._order = self.idx.copy() if self._order is None else self._order[self.idx]

    def hard_reset(self) -> None:
        """Start again, without what `roll_over` kept."""
        self._shared.end_pass()
        if self.shuffle:
            self._shuffle()
        self.cursor = -self.batch_size
        self._left_over = self._batch_rows = None

    def reset(self) -> None:
        """Start again; with `roll_over`, an incomplete last batch opens the new epoch."""
        self._shared.end_pass()
        if self.last_batch_handle == "roll_over" and self.num_data - self.batch_size < self.cursor < self.num_data:
            self._left_over = self._rows(self.cursor, self.num_data)
            self.cursor = self.cursor - self.num_data - self.batch_size
        else:
            self.cursor = -self.batch_size
        self._batch_rows = None
        if self.shuffle:
            self._shuffle()

    def iter_next(self) -> bool:
        self.cursor += self.batch_size
        return self.cursor < self.num_data

    def next(self) -> DataBatch:
        if not self.iter_next() or (self._is_incomplete() and self.last_batch_handle != "pad"):
            self._shared.end_pass()
            raise StopIteration
        return DataBatch(data=self.getdata(), label=self.getlabel(), pad=self.getpad(), index=None)

    def _is_incomplete(self) -> bool:
        """Whether fewer samples than a batch has are left from the current position on."""
        return self.cursor + self.batch_size > self.num_data

    def _rows(self, begin: int, end: int) -> Array:
        """The numbers of the samples at positions begin to end of the current order."""
        return np.arange(begin, end) if self._order is None else self._order[begin:end]

    def _batch(self, arrays: Sequence[tuple[str, RowSource]]) -> list[HostArray]:
        if self.cursor >= self.num_data:
            raise AssertionError("DataIter needs reset.")
        if self._batch_rows is None or self._batch_rows[0] != self.cursor:
            self._batch_rows = self.cursor, self._rows_at(self.cursor, self.cursor + self.batch_size)
        rows = self._batch_rows[1]  # one object for data and labels, so that a request has it once
        if self._axis:
            return [HostArray(source.batch(rows, self._axis)) for _, source in arrays]
        return [RowsArray(source, rows, self._shared) for _, source in arrays]

    def _rows_at(self, begin: int, end: int) -> slice | Array:
        """The numbers of the samples of the batch at positions `begin` to `end`, which may lie outside of the epoch."""
        if self._order is None and begin >= 0 and end <= self.num_data:
            return slice(begin, end)
        if begin < 0:
            left_over = (
                self._left_over if self._left_over is not None else self._rows(begin + self.num_data, self.num_data)
            )
            return np.concatenate([left_over, self._rows(0, end)])
        if end > self.num_data:
            filler = np.arange(end - self.num_data) % self.num_data
            return np.concatenate([self._rows(begin, self.num_data), self._rows(0, self.num_data)[filler]])
        return self._rows(begin, end)

    def getdata(self) -> list[HostArray]:
        return self._batch(self._data)

    def getlabel(self) -> list[HostArray]:
        return self._batch(self._label)

    def getpad(self) -> int:
        if self.last_batch_handle == "pad" and self.cursor + self.batch_size > self.num_data:
            return self.cursor + self.batch_size - self.num_data
        if self.last_batch_handle == "roll_over" and -self.batch_size < self.cursor < 0:
            return -self.cursor
        return 0
