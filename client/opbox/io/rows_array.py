"""RowsArray: an array of a batch that is some rows of a larger array, which the server may have already."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import current_context
from ..ndarray import NDArray
from .dataset_rows import SharedRows
from .host_array import HostArray
from .row_source import RowSource

__all__ = ["RowsArray"]


class RowsArray(HostArray):
    """Rows of a source, with values that are gathered when somebody reads them here.

    For arrays on a server's device it names the rows instead, once the server has them.

    Args:
        source: the array that the rows are of.
        rows: their numbers, or a slice of them.
        shared: which rows of the source, and of those beside it, servers have.
    """

    __slots__ = ("_gathered", "_rows", "_shared", "_source")

    def __init__(self, source: RowSource, rows: slice | np.ndarray[Any, Any], shared: SharedRows) -> None:
        self._source, self._rows, self._shared = source, rows, shared
        self._gathered: np.ndarray[Any, Any] | None = None
        self._array: NDArray | None = None

    @property
    def _value(self) -> np.ndarray[Any, Any]:  # type: ignore[override]  # an attribute of other host arrays
        if self._gathered is None:
            self._gathered = self._source.batch(self._rows)
        return self._gathered

    @property
    def _shape(self) -> tuple[int, ...]:  # type: ignore[override]
        rows = self._rows
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        return (count, *self._source.shape[1:])

    @property
    def _dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        return self._source.dtype

    @property
    def host_bytes(self) -> int:
        return 0 if self._gathered is None else self._gathered.nbytes

    def part(self, rows: slice) -> RowsArray:
        """A part of the rows, by their positions."""
        return RowsArray(self._source, self._shared.part(self._rows, rows.start, rows.stop), self._shared)

    def write_to(self, target: NDArray) -> bool:
        """Write the rows to an array of their shape by naming them; False where they have to travel themselves."""
        if not self.here or not self._shared.can_feed(target._session, self._source, target._numpy_dtype):
            return False
        self._shared.take(target._session, self._source, self._rows, target._id)
        return True

    def _there(self) -> NDArray:
        if self._array is None:
            session = current_context().session
            if self._shared.can_feed(session, self._source, self._source.dtype):
                array = NDArray(session, session.new_id(), self._shape, self._source.dtype)
                self._shared.take(session, self._source, self._rows, array._id, self._source.dtype)
                self._array = array
        return super()._there()
