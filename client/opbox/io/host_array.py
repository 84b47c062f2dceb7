"""HostArray: an array of a batch, in this machine's memory, with the methods that scripts call on a batch's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..context import Context, cpu

__all__ = ["HostArray"]


class HostArray:
    """A numpy array with an NDArray's reading methods. Whoever needs it on a device passes it to `nd.array`.

    Example:
        >>> batch.data[0].asnumpy().shape
        (100, 1, 28, 28)
    """

    __slots__ = ("_value",)
    __array_priority__ = 1000.0

    def __init__(self, value: Any) -> None:
        self._value = value if isinstance(value, np.ndarray) else np.asarray(value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self._value.shape

    @property
    def dtype(self) -> Any:
        """The element type, as numpy's scalar class."""
        return self._value.dtype.type

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._value.size

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._value.ndim

    @property
    def context(self) -> Context:
        """This machine's memory: the CPU."""
        return cpu()

    ctx = context

    @property
    def stype(self) -> str:
        """The storage type: dense."""
        return "default"

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """The values; not a copy."""
        return self._value

    def asscalar(self) -> Any:
        """The value of an array of one element.

        Raises:
            ValueError: there are more.
        """
        if self._value.size != 1:
            raise ValueError("The current array is not a scalar")
        return self._value.reshape(-1)[0]

    def wait_to_read(self) -> None:
        """Nothing: the values are here."""

    def astype(self, dtype: Any, copy: bool = True) -> HostArray:
        """With another element type."""
        return HostArray(self._value.astype(dtype, copy=copy))

    def reshape(self, *shape: Any) -> HostArray:
        """With other dimensions of the same size."""
        return HostArray(self._value.reshape(*shape))

    def copy(self) -> HostArray:
        """A copy."""
        return HostArray(self._value.copy())

    def as_in_context(self, context: Context) -> Any:
        """On a device."""
        from ..ndarray import array

        return array(self._value, ctx=context, dtype=self._value.dtype)

    def copyto(self, other: Any) -> Any:
        """Written to an NDArray, or to a new one on a device."""
        if isinstance(other, Context):
            return self.as_in_context(other)
        other[:] = self._value
        return other

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if dtype is not None and np.dtype(dtype) != self._value.dtype:
            return self._value.astype(dtype)
        return self._value.copy() if copy else self._value

    def __len__(self) -> int:
        return len(self._value)

    def __getitem__(self, key: Any) -> HostArray:
        return HostArray(self._value[key])

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __repr__(self) -> str:
        shape = "x".join(str(d) for d in self.shape)
        return f"\n{self._value}\n<HostArray {shape} @{self.context}>"
