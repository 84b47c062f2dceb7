"""NDArray: a handle on an array that lives on a device of the engine.

    x = mx.nd.ones((2, 3), ctx=mx.gpu(0))
    y = (x * 2).asnumpy()        # the only line that waits

Shape and element type are known here where they follow without asking; else the first use of them asks the engine.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

import numpy as np

from opbox_protocol.commands import ViewPart
from opbox_protocol.errors import MXNetError, ShapeError
from opbox_protocol.mxnet import dtype_name, numpy_dtype

from .. import _schema
from ..base import value_text
from ..context import Context, context_or_current, current_context
from ..foreign import host_numbers, host_values
from ..html import preformatted, shape_text
from ..session import Session
from ..tensor_members import member_error
from . import indexing
from .arithmetic import ArrayArithmetic
from .fluent import ArrayFluent
from .handle import Handle
from .printing import values_text

__all__ = ["NDArray", "array", "from_host"]


class NDArray(Handle, ArrayArithmetic, ArrayFluent):
    """An array on a device; made by `array`, `zeros` and the like, by operators, and by executors."""

    __slots__ = ()
    __array_priority__ = 1000.0
    __hash__ = object.__hash__
    _tensor: ClassVar[type[NDArray]]

    if not TYPE_CHECKING:  # every name would pass

        def __getattr__(self, name: str) -> Any:
            raise member_error(self, name)

    @property
    def T(self) -> NDArray:
        """The transpose: axes in reverse order."""
        return self if self.ndim < 2 else _one(self._imperative("transpose", [self]))

    def __iter__(self) -> Iterator[NDArray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"\n{values_text(self)}\n<{type(self).__name__} {'x'.join(str(d) for d in self.shape)} @{self.context}>"

    def _repr_html_(self) -> str:
        """The values for a notebook; of a large array only the corners are fetched."""
        caption = f"{type(self).__name__} {shape_text(self.shape)}, {self._numpy_dtype.name}, {self.context}"
        return preformatted(values_text(self), caption)

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
        """Write to a part, in place: a number, an array of either kind, or nested lists; broadcast as numpy does.

        Raises:
            ValueShapeError: a value that does not broadcast to the part; it is a ValueError, too.
        """
        indexing.put(self, key, value)

    @property
    def writable(self) -> bool:
        """Whether values can be written: always."""
        return True

    def slice_assign(self, rhs: NDArray, begin: Any, end: Any, step: Any) -> NDArray:
        """Write an array to the part [begin, end) of this one, in steps; returns this array.

        Args:
            rhs: of the part's shape.
            begin, end, step: a number or None for each axis.

        Example:
            >>> x.slice_assign(mx.nd.zeros((1, 2)), (0, 0), (1, 2), (None, None))
        """
        attrs = {"begin": tuple(begin), "end": tuple(end), "step": tuple(step)}
        self._imperative("_slice_assign", [self, rhs], attrs, out=self)
        return self

    def slice_assign_scalar(self, value: float, begin: Any, end: Any, step: Any) -> NDArray:
        """Write a number to the part [begin, end) of this array, in steps; returns this array."""
        attrs = {"scalar": float(value), "begin": tuple(begin), "end": tuple(end), "step": tuple(step)}
        self._imperative("_slice_assign_scalar", [self], attrs, out=self)
        return self

    def _view(self, dims: tuple[int, ...], **part: Unpack[ViewPart]) -> NDArray:
        view = NDArray(self._session, self._session.new_id(), dims, self._dtype)
        self._session.record({"do": "view", "id": view._id, "of": self._id, **part})
        return view

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
        try:
            dims = tuple(map(operator.index, wanted if isinstance(wanted, tuple | list | np.ndarray) else (wanted,)))
        except TypeError:
            raise TypeError(f"reshape: shape: expected integers, got {value_text(wanted)}") from None
        new = indexing.reshaped(self.shape, dims, reverse)
        return self._view(new, shape=list(new))

    def flatten(self, inplace: bool = False) -> NDArray:
        """A matrix: all axes but the first in one."""
        return self.reshape((self.shape[0], -1)) if inplace else _one(self._imperative("Flatten", [self]))

    def expand_dims(self, axis: int, inplace: bool = False) -> NDArray:
        """With a new axis of size 1 at `axis`."""
        return _one(self._imperative("expand_dims", [self], {"axis": axis}))

    def squeeze(self, axis: Any = None, inplace: bool = False) -> NDArray:
        """Remove the axes of size 1: all of them, or those of `axis`."""
        return _one(self._imperative("squeeze", [self], {} if axis is None else {"axis": axis}))

    def broadcast_to(self, shape: Any) -> NDArray:
        """Repeated along axes of size 1, up to `shape`."""
        if not isinstance(shape, tuple | list | np.ndarray):
            raise TypeError(f"broadcast_to: shape: expected a tuple of integers, got {value_text(shape)}")
        return _one(self._imperative("broadcast_to", [self], {"shape": tuple(shape)}))

    def transpose(self, *axes: Any, **kwargs: Any) -> NDArray:
        """With axes in another order; reversed when none is given."""
        wanted = kwargs.get("axes", axes[0] if len(axes) == 1 and isinstance(axes[0], tuple | list | None) else axes)
        return _one(self._imperative("transpose", [self], {"axes": tuple(wanted)} if wanted else {}))

    def split_v2(self, indices_or_sections: Any, axis: int = 0, squeeze_axis: bool = False) -> Any:
        """Parts along an axis: a number of equal ones, or those between indices."""
        if isinstance(indices_or_sections, int):
            indices, sections = [], indices_or_sections
        elif isinstance(indices_or_sections, tuple | list | set):
            indices, sections = [0, *indices_or_sections], 0
        else:
            raise ValueError(f"split_v2: expected a number of parts or a list of indices, got {indices_or_sections!r}")
        params = {"indices": tuple(indices), "axis": axis, "squeeze_axis": squeeze_axis, "sections": sections}
        return self._imperative("_split_v2", [self], params)

    def diag(self, k: int = 0, **kwargs: Any) -> NDArray:
        """The diagonal `k` of a matrix, or a matrix with this as its diagonal."""
        return _one(self._imperative("diag", [self], {"k": k, **kwargs}))

    # -- copies -----------------------------------------------------------------------------------------------

    def copy(self) -> NDArray:
        """A copy on the same device."""
        return _one(self._imperative("_copy", [self]))

    def astype(self, dtype: Any, copy: bool = True) -> NDArray:
        """With another element type; this array itself when `copy` is False and it has the type."""
        name = dtype_name(dtype)
        if not copy and self._numpy_dtype.name == name:
            return self
        return _one(self._imperative("Cast", [self], {"dtype": name}))

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
        if self._shape is not None and other._shape is not None and self._shape != other._shape:
            raise ShapeError(f"copyto: expected a target of shape {self._shape}, got one of shape {other._shape}")
        if self._session.shares_batches(other._session):
            self._session.record({"do": "copy", "from": self._id, "to": other._id})
        else:
            other._write(self.asnumpy())
        return other

    def as_in_context(self, context: Context) -> NDArray:
        """On a device: this array itself when it is there already."""
        context = context_or_current(context, "context")
        return self if context.location == self._session.location else self._moved(context)

    as_in_ctx = as_in_context
    to_device = as_in_context

    def _moved(self, context: Context) -> NDArray:
        session = context.session
        if not self._session.shares_batches(session):
            return from_host(self.asnumpy(), session)
        if session != self._session:
            moved = NDArray(session, session.new_id(), self._shape, self._dtype)
            session.record({"do": "copy", "from": self._id, "to": moved._id})
            return moved
        moved = self.copy()
        moved._session = session
        return moved

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

    # -- what the modules below and beside this one call --------------------------------------------------------

    # `invocation` sets these.
    _imperative: ClassVar[Callable[..., Any]]
    _shortened: ClassVar[Callable[[_schema.Operator, Callable[..., Any]], Callable[..., Any]]]
    _apply: ClassVar[Callable[..., Any]]

    def _fill(self, value: Any, subject: str) -> None:
        """Write an array of the same shape, of any kind; `subject` is what this one is to the user, for the error."""
        indexing.fill(self, value, subject)

    def _new(self, values: np.ndarray[Any, Any]) -> NDArray:
        """Return a new array on this array's device, of host values that must not be changed afterwards."""
        return from_host(values, self._session)

    def _beside(self, values: Any) -> NDArray:
        """A copy of another library's array on this one's device: floats in this one's type, the rest in its own.

        NumPy's floats are float64 unless somebody says otherwise, and `array` makes float32 of them too.
        """
        values = host_values(values)
        dtype = np.dtype(getattr(values, "dtype", np.float32))
        return array(values, self.context, self._numpy_dtype if dtype.kind == self._numpy_dtype.kind == "f" else dtype)


NDArray._tensor = NDArray


def from_host(values: np.ndarray[Any, Any], session: Session) -> NDArray:
    """Return a new array of host values, which must not be changed afterwards."""
    new = NDArray(session, session.new_id(), values.shape, values.dtype)
    session.record({"do": "put", "id": new._id}, values)
    return new


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A new array of the given values, which are copied.

    Args:
        source_array: an array of any library (numpy's, a tensor of torch on any device, a data frame, what speaks
            DLPack), a number, or nested lists.
        ctx: the device; the current one when None.
        dtype: the element type; by default that of an NDArray, and float32 for anything else.

    Raises:
        TypeError: values that are no numbers, or lists of unequal lengths.
    """
    ctx = context_or_current(ctx)
    if isinstance(source_array, NDArray):
        moved = source_array.as_in_context(ctx)
        if dtype is not None and dtype_name(dtype) != source_array._numpy_dtype.name:
            return moved.astype(dtype)
        return moved.copy() if moved is source_array else moved
    if hasattr(source_array, "asnumpy") and dtype is None:
        dtype = getattr(source_array, "dtype", None)
    wanted = numpy_dtype("float32" if dtype is None else dtype_name(dtype))
    values = host_numbers(source_array, "array", wanted)
    return from_host(values, ctx.session)


def _one(result: Any) -> NDArray:
    assert isinstance(result, NDArray)
    return result


def _unpickled(values: np.ndarray[Any, Any]) -> NDArray:
    return from_host(values, current_context().session)
