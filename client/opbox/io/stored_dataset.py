"""Datasets that a server has under a name: their arrays, which iterators take by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from opbox_protocol.commands import Dataset

from ..context import current_context
from ..ndarray import NDArray
from .row_source import SMALL_TYPES, Array, RowSource

__all__ = ["StoredDataset", "StoredRows"]

FETCHED_BYTES = 16 << 20
"""About how many bytes of an array one request fetches."""


class StoredRows(RowSource):
    """An array of a named dataset. Its values come from the server when somebody reads them here.

    Args:
        dataset: its reference: "name", or "owner/name".
        array: the array's name in it.
        shape: of all rows.
        dtype: of the values on the server. Batches of small types (uint8, int8, bool, float16) are float32.
    """

    is_named: ClassVar[bool] = True

    def __init__(self, dataset: str, array: str, shape: tuple[int, ...], dtype: Any) -> None:
        self._dataset, self._array = dataset, array
        self._stored_shape = tuple(shape)
        self._stored_dtype: np.dtype[Any] = np.dtype(dtype)
        self.dtype = np.dtype(np.float32) if self._stored_dtype in SMALL_TYPES else self._stored_dtype
        self.scale, self._shared = 1.0, False

    def __repr__(self) -> str:
        return f"<array {self._array} of {self._dataset}: {self._stored_shape}, {self._stored_dtype}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return self._stored_shape

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        return self._stored_dtype

    def asnumpy(self) -> Array:
        """A copy of the values, in the type that the server has."""
        return self._values.copy()

    def opening(self, id: int, known: bool) -> Dataset:
        return {"do": "dataset", "id": id, "name": self._dataset, "array": self._array}

    @cached_property
    def _values(self) -> Array:  # type: ignore[override]  # an attribute of other sources
        """All rows, fetched in slices.

        Raises:
            NotFoundError: the dataset has been deleted.
        """
        session = current_context().session
        values = np.empty(self._stored_shape, self._stored_dtype)
        number = session.new_id()
        session.ask(self.opening(number, True))
        rows = max(1, FETCHED_BYTES // max(1, self.nbytes // max(1, len(values))))
        with contextlib.ExitStack() as stack:
            stack.callback(session.free, number)
            for begin in range(0, len(values), rows):
                end = min(begin + rows, len(values))
                part = NDArray(session, session.new_id(), (end - begin, *values.shape[1:]), self._stored_dtype)
                session.record({"do": "take_rows", "id": part._id, "of": number, "begin": begin, "end": end})
                values[begin:end] = part.asnumpy()
        return values


class StoredDataset(Mapping[str, StoredRows]):
    """A named dataset on the server: its arrays by name.

    Attributes:
        name, owner: its name, and whose it is.
        reference: how you name it: "name", or "owner/name" for another owner's.
        published: whether other owners may read it.
        nbytes: of all arrays.
        saved: when, in seconds since 1970.

    Example:
        >>> train = mx.io.NDArrayIter(mx.datasets.get("mnist"), batch_size=100, shuffle=True)
    """

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.name: str = row["name"]
        self.owner: str = row["owner"]
        self.published: bool = row["published"]
        self.nbytes: int = row["bytes"]
        self.saved: float = row["saved"]
        self.reference = self.name if row["yours"] else f"{self.owner}/{self.name}"
        self._arrays = {
            array["name"]: StoredRows(self.reference, array["name"], tuple(array["shape"]), array["dtype"])
            for array in row["arrays"]
        }

    def __getitem__(self, name: str) -> StoredRows:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        arrays = ", ".join(f"{name} {array.shape} {array.stored_dtype}" for name, array in self.items())
        return f"<dataset {self.name} of {self.owner}: {arrays}>"

    def data_and_labels(self) -> tuple[dict[str, StoredRows], dict[str, StoredRows] | None]:
        """The arrays that are data, and those that are labels: their names end in "label". None without any."""
        labels = {name: array for name, array in self.items() if name.endswith("label")}
        if len(labels) == len(self):
            return dict(self), None
        return {name: array for name, array in self.items() if name not in labels}, labels or None
