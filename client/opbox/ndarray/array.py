"""NDArray: a handle on an array that lives on a device of the engine.

    x = mx.nd.ones((2, 3), ctx=mx.gpu(0))
    y = (x * 2).asnumpy()        # the only line that waits

Shape and element type are known here where they follow without asking; else the first use of them asks the engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from opbox_protocol.datatypes import dtype_of
from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import dtype_name

from ..context import Context
from . import indexing
from .arithmetic import Arithmetic
from .fluent import Fluent
from .invoke import imperative

if TYPE_CHECKING:
    from ..session import Pending, Session

__all__ = ["NDArray", "waitall"]


class NDArray(Arithmetic, Fluent):
    """An array on a device; made by `array`, `zeros` and the like, by operators, and by executors."""

    __slots__ = ("__weakref__", "_dtype", "_id", "_session", "_shape")
    __array_priority__ = 1000.0

    def __init__(
        self, session: Session, id: int, shape: tuple[int, ...] | None = None, dtype: np.dtype[Any] | None = None
    ) -> None:
        self._session = session
        self._id = id
        self._shape = shape
        self._dtype = dtype

    def __del__(self) -> None:
        session = getattr(self, "_session", None)
        if session is not None:
            session.free(self._id)

    # -- what it is -------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        told = self._session.describe(self._id)
        self._shape, self._dtype = tuple(told["shape"]), dtype_of(told["datatype"])

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
        kind, _, number = self._session.device.partition(":")
        return Context(kind, int(number or 0))

    ctx = context

    @property
    def stype(self) -> str:
        """The storage type: every array is dense, "default"."""
        return "default"

    @property
    def T(self) -> NDArray:
        """The transpose: axes in reverse order."""
        return self if self.ndim < 2 else _one(imperative("transpose", [self]))

    @property
    def handle(self) -> int:
        """The array's number in its session."""
        return self._id

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __iter__(self) -> Iterator[NDArray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"\n{self.asnumpy()}\n<{type(self).__name__} {'x'.join(str(d) for d in self.shape)} @{self.context}>"

    # -- its values -------------------------------------------------------------------------------------------

    def asnumpy(self) -> np.ndarray[Any, Any]:
        """The values, as a numpy array of this process; waits for them.

        Raises:
            MXNetError: something that the values rest on failed; the message has the user's line.
        """
        return self._fetch_async().result()  # type: ignore[no-any-return]

    def _fetch_async(self) -> Pending:
        """The values that the array has at this point of the program, when they have come: `.result()` waits."""
        return self._session.fetch(self._id)

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

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = self.asnumpy()
        return values if dtype is None else values.astype(dtype)

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

    __hash__ = object.__hash__

    def __reduce__(self) -> Any:
        return _unpickled, (self.asnumpy(),)

    def __copy__(self) -> NDArray:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> NDArray:
        return self.copy()

    # -- parts and forms --------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> NDArray:
        """A part: shares memory where the part is contiguous (`x[i]`, `x[a:b]`), a copy elsewhere."""
        return indexing.get(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write to a part, in place: a number, an array of either kind, or nested lists; broadcast as numpy does."""
        indexing.put(self, key, value)

    def _view(self, dims: tuple[int, ...], **how: Any) -> NDArray:
        made = NDArray(self._session, self._session.new_id(), dims, self._dtype)
        self._session.record({"do": "view", "id": made._id, "of": self._id, **how})
        return made

    def _slice(self, start: int, stop: int) -> NDArray:
        return self._view((stop - start, *self.shape[1:]), begin=start, end=stop)

    def _at(self, index: int) -> NDArray:
        return self._view(self.shape[1:], at=index)

    def reshape(self, *shape: Any, **kwargs: Any) -> NDArray:
        """The same memory in other dimensions; -1, 0, -2, -3 and -4 mean what they mean for the operator Reshape.

        Args:
            shape: a tuple, or the dimensions; or the keyword `shape`.
            reverse: work the special codes out from the right.

        Raises:
            MXNetError: the number of elements differs.
        """
        wanted = kwargs.pop("shape", None)
        reverse = kwargs.pop("reverse", False)
        if kwargs:
            raise TypeError(f"reshape: unknown arguments {', '.join(kwargs)}: it takes shape and reverse")
        if shape:
            wanted = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
        if wanted is None:
            raise ValueError("reshape: expected the new shape")
        new = indexing.reshaped(
            self.shape, tuple(int(d) for d in np.atleast_1d(wanted)) if len(np.atleast_1d(wanted)) else (), reverse
        )
        return self._view(new, shape=list(new))

    def flatten(self, inplace: bool = False) -> NDArray:
        """A matrix: all axes but the first in one."""
        return self.reshape((self.shape[0], -1)) if inplace else _one(imperative("Flatten", [self]))

    def expand_dims(self, axis: int, inplace: bool = False) -> NDArray:
        """With a new axis of size 1 at `axis`."""
        return _one(imperative("expand_dims", [self], {"axis": axis}))

    def squeeze(self, axis: Any = None, inplace: bool = False) -> NDArray:
        """Without the axes of size 1, or without the given ones of them."""
        return _one(imperative("squeeze", [self], {} if axis is None else {"axis": axis}))

    def broadcast_to(self, shape: Any) -> NDArray:
        """Repeated along axes of size 1, up to `shape`."""
        return _one(imperative("broadcast_to", [self], {"shape": tuple(shape)}))

    def transpose(self, *axes: Any, **kwargs: Any) -> NDArray:
        """With axes in another order; reversed when none is given."""
        wanted = kwargs.get("axes", axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list) else axes)
        return _one(imperative("transpose", [self], {"axes": tuple(wanted)} if wanted else {}))

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
        """Parts along an axis: a number of equal ones, or those between indices."""
        from .creation import split_v2

        return split_v2(self, indices_or_sections, axis, squeeze_axis)

    def diag(self, k: int = 0, **kwargs: Any) -> NDArray:
        """The diagonal `k` of a matrix, or a matrix with this as its diagonal."""
        return _one(imperative("diag", [self], {"k": k, **kwargs}))

    # -- copies -----------------------------------------------------------------------------------------------

    def copy(self) -> NDArray:
        """A copy on the same device."""
        return _one(imperative("_copy", [self]))

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """With another element type; this array itself when `copy` is False and it has the type."""
        name = dtype_name(dtype)
        if not copy and self._numpy_dtype.name == name:
            return self
        return _one(imperative("Cast", [self], {"dtype": name}))

    def copyto(self, other: Any) -> NDArray:
        """Written to another array (of any device and type), or to a new one on a `Context`.

        Raises:
            MXNetError: the shapes differ.
        """
        if isinstance(other, Context):
            return self._moved(other)
        if not isinstance(other, NDArray):
            raise TypeError(f"copyto: expected an NDArray or a Context, got {type(other).__name__}")
        if other is self:
            return other
        if other._session is self._session:
            self._session.record({"do": "copy", "from": self._id, "to": other._id})
        else:
            other._write(self.asnumpy())
        return other

    def as_in_context(self, context: Context) -> NDArray:
        """On a device: this array itself when it is there already."""
        return self if context.device == self._session.device else self._moved(context)

    as_in_ctx = as_in_context
    to_device = as_in_context

    def _moved(self, context: Context) -> NDArray:
        return self.copy() if context.session is self._session else from_host(self.asnumpy(), context.session)

    def _write(self, values: np.ndarray[Any, Any]) -> None:
        """Overwrite with host values of the same shape, which nobody changes afterwards."""
        self._session.record({"do": "write", "id": self._id}, values)

    def detach(self) -> NDArray:
        """This array: there is no recording to detach from."""
        return self

    def tostype(self, stype: str) -> NDArray:
        """This array, for "default".

        Raises:
            MXNetError: another storage type.
        """
        if stype != "default":
            raise MXNetError(f"tostype: expected 'default', got {stype!r}: all arrays are dense")
        return self

    def as_nd_ndarray(self) -> NDArray:
        """This array."""
        return self


def from_host(values: np.ndarray[Any, Any], session: Session) -> NDArray:
    """A new array of host values, which nobody changes afterwards."""
    made = NDArray(session, session.new_id(), values.shape, values.dtype)
    session.record({"do": "put", "id": made._id}, values)
    return made


def _one(result: Any) -> NDArray:
    assert isinstance(result, NDArray)
    return result


def _unpickled(values: np.ndarray[Any, Any]) -> NDArray:
    from ..context import current_context

    return from_host(values, current_context().session)


def waitall() -> None:
    """Wait until every session has run what was asked for; raises the first thing that failed."""
    from ..session import sessions

    for session in sessions().values():
        session.wait()
