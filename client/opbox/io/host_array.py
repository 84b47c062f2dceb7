"""HostArray: an array of a batch, in this machine's memory until something needs it on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import Context, cpu, current_context
from ..ndarray import NDArray
from ..ndarray.array import from_host

__all__ = ["HostArray"]


class HostArray(NDArray):
    """An NDArray whose values are here: reading it asks no engine.

    Used with operators, or written to, it becomes an array of the current context's device, once, and is that from
    then on. A module takes the values as they are, into the request of its step.

    Args:
        value: the values; not copied, so nobody may change them.

    Example:
        >>> batch.data[0].asnumpy().shape
        (100, 1, 28, 28)
    """

    __slots__ = ("_array", "_value")

    def __init__(self, value: Any) -> None:  # what the base class keeps is asked of the device's array, if ever
        self._value = value if isinstance(value, np.ndarray) else np.asarray(value)
        self._array: NDArray | None = None

    def _there(self) -> NDArray:
        if self._array is None:
            self._array = from_host(self._value, current_context().session)
        return self._array

    @property
    def _id(self) -> int:  # type: ignore[override]  # an attribute of other arrays, as the next three
        return self._there()._id

    @property
    def _session(self) -> Any:  # type: ignore[override]
        return self._there()._session

    @property
    def _shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._value.shape

    @property
    def _dtype(self) -> np.dtype[Any]:  # type: ignore[override]
        return self._value.dtype

    def host(self) -> np.ndarray[Any, Any]:
        """The values, not copied; fetched if a device's array has taken over."""
        return self._value if self._array is None else self._array.asnumpy()

    @property
    def here(self) -> bool:
        """True if the values are still this machine's."""
        return self._array is None

    @property
    def host_bytes(self) -> int:
        """Bytes of the values in this machine's memory that are there for this array."""
        return self._value.nbytes if self._array is None else 0

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """A copy of the values."""
        return self._value.copy() if self._array is None else self._array.asnumpy()

    @property
    def context(self) -> Context:
        """The device; the CPU for as long as there is none."""
        return cpu() if self._array is None else self._array.context

    ctx = context

    def wait_to_read(self) -> None:
        """Wait for a device's array; values that are here need no waiting."""
        if self._array is not None:
            self._array.wait_to_read()

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """With another element type."""
        return HostArray(self._value.astype(dtype, copy=copy)) if self.here else super().astype(dtype, copy)
