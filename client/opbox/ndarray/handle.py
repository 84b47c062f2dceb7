"""Handle: the number of an array in its session, and what can be learnt of the array without running an operator."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from opbox_protocol.datatypes import dtype_of

from ..context import Context
from ..freed import Freed
from ..session import Pending, Session

__all__ = ["Handle"]


class Handle(Freed):
    """An array on a device, by its number there.

    Args:
        session: the session that has the array.
        id: its number in the session.
        shape, dtype: as far as they are known here; else the first use of them asks the engine.
    """

    __slots__ = ("__weakref__", "_dtype", "_id", "_session", "_shape")

    def __init__(
        self, session: Session, id: int, shape: tuple[int, ...] | None = None, dtype: np.dtype[Any] | None = None
    ) -> None:
        self._session = session
        self._id = id
        self._shape = shape
        self._dtype = dtype
        self.__del__ = partial(session.free, id)

    # -- what it is -------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        description = self._session.describe(self._id)
        self._shape, self._dtype = tuple(description["shape"]), dtype_of(description["datatype"])

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        if self._shape is None:
            self._describe()
        assert self._shape is not None
        return self._shape

    @property
    def _numpy_dtype(self) -> np.dtype[Any]:
        if self._dtype is None:
            self._describe()
        assert self._dtype is not None
        return self._dtype

    @property
    def dtype(self) -> Any:
        """The element type, as numpy's scalar class."""
        return self._numpy_dtype.type

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def context(self) -> Context:
        """The device."""
        return Context(*self._session.location)

    @property
    def ctx(self) -> Context:
        """The device."""
        return self.context

    @property
    def stype(self) -> str:
        """The storage type: every array is dense, "default"."""
        return "default"

    @property
    def handle(self) -> int:
        """The array's number in its session."""
        return self._id

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    # -- its values -------------------------------------------------------------------------------------------

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """Return the values as a numpy array of this process; waits until they are computed.

        Raises:
            MXNetError: something that the values rest on failed; the message has the user's line.
        """
        values: np.ndarray[Any, Any] = self._fetch_async().result()
        return values

    def _fetch_async(self) -> Pending:
        """The values that the array has at this point of the program, when they have come: `.result()` waits."""
        return self._session.fetch(self._id)

    def _write(self, values: np.ndarray[Any, Any]) -> None:
        """Overwrite with host values of the same shape, which must not be changed afterwards."""
        self._session.record({"do": "write", "id": self._id}, values)

    def asscalar(self) -> Any:
        """The value of an array of one element.

        Raises:
            ValueError: there are more.
        """
        values = self.asnumpy()
        if values.size != 1:
            raise ValueError(f"asscalar: expected an array of one element, got shape {self.shape}")
        return values.reshape(-1)[0]

    item = asscalar

    def wait_to_read(self) -> None:
        """Wait until everything that was asked for has run; raises what failed."""
        self._session.wait()

    wait_to_write = wait_to_read

    # -- other libraries --------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The values for numpy, which are always a copy.

        Raises:
            ValueError: `copy` is False.
        """
        if copy is False:
            raise ValueError("array: expected leave to copy, got copy=False: the values are on a device of the engine")
        values = self.asnumpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """The values for another library by DLPack, `torch.from_dlpack(x)`: always a copy, in this process's memory.

        Raises:
            BufferError: `copy` is False, `dl_device` is no CPU, or DLPack has no such element type.
        """
        if copy is False:
            raise BufferError("dlpack: expected leave to copy, got copy=False: the values are on the engine")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"dlpack: expected device {self.__dlpack_device__()}, the CPU, got {tuple(dl_device)}")
        values = np.array(self.asnumpy(), copy=True)
        if values.dtype.kind == "V":
            raise BufferError(
                f"dlpack: expected an element type of numpy's own, got {values.dtype}: cast it with astype"
            )
        return values.__dlpack__() if max_version is None else values.__dlpack__(max_version=max_version)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the device of DLPack's copy of the values: (1, 0), the CPU."""
        return (1, 0)

    def to_dlpack_for_read(self) -> Any:
        """A DLPack capsule of a copy of the values; newer libraries take the array itself."""
        return self.__dlpack__()

    def __bool__(self) -> bool:
        if self.size == 0:
            return False
        if self.size == 1:
            return bool(self.asscalar())
        raise ValueError(f"bool: expected an array of one element, got shape {self.shape}: compare and reduce it first")

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __index__(self) -> int:
        if self._numpy_dtype.kind not in "iu":
            raise TypeError(f"only integer arrays can be an index, got {self._numpy_dtype}")
        return int(self.asscalar())
