"""DataDesc, DataBatch and DataIter: the description of an iterator's arrays, its batches, and its base class."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["DataBatch", "DataDesc", "DataIter"]

_NameShape = namedtuple("_NameShape", ["name", "shape"])


class DataDesc(_NameShape):
    """Name, shape, element type and layout of one array of a batch; compares as the pair (name, shape).

    Example:
        >>> mx.io.DataDesc("data", (100, 1, 28, 28), layout="NCHW")
    """

    dtype: Any
    layout: str | None

    def __new__(cls, name: str, shape: Sequence[int], dtype: Any = np.float32, layout: str | None = "NCHW") -> DataDesc:
        desc = super().__new__(cls, name, shape)
        desc.dtype = dtype
        desc.layout = layout
        return desc

    def __repr__(self) -> str:
        return f"DataDesc[{self.name},{self.shape},{self.dtype},{self.layout}]"

    @staticmethod
    def get_batch_axis(layout: str | None) -> int:
        """The axis of the batch: where the layout has its N; 0 without a layout, -1 when it has none."""
        return 0 if layout is None else layout.find("N")

    @staticmethod
    def get_list(shapes: Sequence[tuple[str, Any]], types: Sequence[tuple[str, Any]] | None) -> list[DataDesc]:
        """Descriptions from pairs (name, shape) and pairs (name, dtype)."""
        dtypes: Mapping[str, Any] = dict(types or ())
        return [DataDesc(name, shape, dtypes[name]) if types else DataDesc(name, shape) for name, shape in shapes]


class DataBatch:
    """A batch of data and labels.

    Attributes:
        data, label: lists of arrays (`label` may be None).
        pad: how many samples at the end only fill the batch up.
        index: the samples' numbers, or None.
        bucket_key, provide_data, provide_label: for batches whose shapes differ from the iterator's.
    """

    def __init__(
        self,
        data: Sequence[Any] | None,
        label: Sequence[Any] | None = None,
        pad: int | None = None,
        index: Any = None,
        bucket_key: Any = None,
        provide_data: Any = None,
        provide_label: Any = None,
    ) -> None:
        if data is not None and not isinstance(data, (list, tuple)):
            raise AssertionError(f"data: expected a list of arrays, got {type(data).__name__}")
        if label is not None and not isinstance(label, (list, tuple)):
            raise AssertionError(f"label: expected a list of arrays, got {type(label).__name__}")
        self.data = data
        self.label = label
        self.pad = pad
        self.index = index
        self.bucket_key = bucket_key
        self.provide_data = provide_data
        self.provide_label = provide_label

    def __str__(self) -> str:
        data = [one.shape for one in self.data or ()]
        label = [one.shape for one in self.label] if self.label else None
        return f"{type(self).__name__}: data shapes: {data} label shapes: {label}"


class DataIter:
    """Base of iterators. A subclass has `provide_data` and `provide_label` (lists of `DataDesc`) and defines `next`,
    or `iter_next` and `getdata`, with `getlabel` where there are labels and `getpad` where batches are padded.
    """

    provide_data: Any
    provide_label: Any

    def __init__(self, batch_size: int = 0) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> DataIter:
        return self

    def reset(self) -> None:
        """Start again from the beginning."""

    def next(self) -> DataBatch:
        """The next batch.

        Raises:
            StopIteration: the data is at its end.
        """
        if not self.iter_next():
            raise StopIteration
        return DataBatch(data=self.getdata(), label=self.getlabel(), pad=self.getpad(), index=self.getindex())

    def __next__(self) -> DataBatch:
        return self.next()

    def iter_next(self) -> bool:
        """Go to the next batch; False at the end."""
        raise NotImplementedError(f"{type(self).__name__} must define next(), or iter_next() and the getters")

    def getdata(self) -> Any:
        """The current batch's data."""
        raise NotImplementedError(f"{type(self).__name__} must define getdata()")

    def getlabel(self) -> Any:
        """The current batch's labels, or None."""
        return None

    def getindex(self) -> Any:
        """The numbers of the current batch's samples, or None."""
        return None

    def getpad(self) -> int | None:
        """Return the number of padding samples in the current batch, or None."""
        return None
