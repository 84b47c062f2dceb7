"""NDArray: a handle on an array that lives on a device of the engine.

    x = mx.nd.ones((2, 3), ctx=mx.gpu(0))
    y = (x * 2).asnumpy()        # the only line that waits

Shape and element type are known here where they follow without asking; else the first use of them asks the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Unpack

import numpy as np

from opbox_protocol.commands import ViewPart
from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import NP_SHAPE, attribute_text, dtype_name

from .. import _schema
from ..context import Context, current_context
from ..session import Session, sessions
from ..util import is_np_shape
from . import indexing
from .arithmetic import Arithmetic
from .fluent import Fluent
from .handle import Handle
from .invoke_form import InvokeForm, form_of, plain_form
from .printing import values_text

__all__ = ["NDArray", "array", "imperative", "invoke", "session_of", "waitall"]


class NDArray(Handle, Arithmetic, Fluent):
    """An array on a device; made by `array`, `zeros` and the like, by operators, and by executors."""

    __slots__ = ()
    __array_priority__ = 1000.0
    __hash__ = object.__hash__
    _tensor: ClassVar[type[NDArray]]

    @property
    def T(self) -> NDArray:
        """The transpose: axes in reverse order."""
        return self if self.ndim < 2 else _one(imperative("transpose", [self]))

    def __iter__(self) -> Iterator[NDArray]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"\n{values_text(self)}\n<{type(self).__name__} {'x'.join(str(d) for d in self.shape)} @{self.context}>"

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
        if isinstance(indices_or_sections, int):
            indices, sections = [], indices_or_sections
        elif isinstance(indices_or_sections, tuple | list | set):
            indices, sections = [0, *indices_or_sections], 0
        else:
            raise ValueError(f"split_v2: expected a number of parts or a list of indices, got {indices_or_sections!r}")
        params = {"indices": tuple(indices), "axis": axis, "squeeze_axis": squeeze_axis, "sections": sections}
        return imperative("_split_v2", [self], params)

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

    _imperative: ClassVar[Callable[..., Any]]

    @staticmethod
    def _plain(op: _schema.Operator) -> tuple[int, Callable[[Sequence[Any]], Any]] | None:
        """The number of inputs that `op` has without parameters, and what runs it on so many arrays; None: it must
        have parameters, or its result depends on more than its arrays."""
        if op.count is not None or op.required or op.result_shape == "given" or not op.tensors:
            return None
        names = op.input_names({})
        return (len(names), partial(_record, InvokeForm(op, {}))) if names == op.tensors[: len(names)] else None

    @classmethod
    def _apply(
        cls,
        op: _schema.Operator,
        hint: str,
        tensors: Sequence[Any],
        named: Mapping[str, Any],
        params: Mapping[str, Any],
        keywords: Mapping[str, Any],
    ) -> Any:
        """What the functions made from the catalogue call."""
        attrs = dict(params)
        ctx = _context(attrs.pop("ctx", None))
        attrs, inputs = op.arranged(tensors, named, attrs)
        arrays = [x if isinstance(x, NDArray) else array(x, ctx, getattr(x, "dtype", None)) for x in inputs]
        return invoke(op, attrs, arrays, keywords.get("out"), ctx)

    def _new(self, values: np.ndarray[Any, Any]) -> NDArray:
        """A new array on this one's device, of host values that nobody changes afterwards."""
        return from_host(values, self._session)

    def _beside(self, values: Any) -> NDArray:
        """A copy of an array of another library on this one's device, in its own type."""
        return array(values, self.context, getattr(values, "dtype", None))


NDArray._tensor = NDArray


def from_host(values: np.ndarray[Any, Any], session: Session) -> NDArray:
    """A new array of host values, which nobody changes afterwards."""
    new = NDArray(session, session.new_id(), values.shape, values.dtype)
    session.record({"do": "put", "id": new._id}, values)
    return new


def array(source_array: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """A new array of the given values, which are copied.

    Args:
        source_array: an array of any kind, a number, or nested lists.
        ctx: the device; the current one when None.
        dtype: the element type; by default that of an NDArray, and float32 for anything else.
    """
    ctx = ctx if ctx is not None else current_context()
    if isinstance(source_array, NDArray):
        moved = source_array.as_in_context(ctx)
        if dtype is not None and dtype_name(dtype) != source_array._numpy_dtype.name:
            return moved.astype(dtype)
        return moved.copy() if moved is source_array else moved
    if hasattr(source_array, "asnumpy"):
        source_array, dtype = source_array.asnumpy(), dtype or source_array.dtype
    wanted = np.dtype(np.float32 if dtype is None else dtype)
    return from_host(np.array(source_array, dtype=wanted, order="C", copy=True), ctx.session)


def imperative(
    op: str, inputs: Sequence[Handle], params: Mapping[str, Any] | None = None, out: Any = None, ctx: Any = None
) -> Any:
    """Run the operator of that name; see `invoke`."""
    if not params:
        form = plain_form(op)
        if form.op.result_shape != "given":
            return _record(form, inputs, out, ctx)
    attrs = {key: attribute_text(value) for key, value in (params or {}).items()}
    return invoke(_schema.get(op), attrs, inputs, out, ctx)


NDArray._imperative = staticmethod(imperative)


def invoke(
    op: _schema.Operator, attrs: Mapping[str, str], inputs: Sequence[Handle], out: Any = None, ctx: Any = None
) -> Any:
    """Run an operator.

    Args:
        op: the operator.
        attrs: its parameters, as strings.
        inputs: its inputs in order.
        out: an array, or several, to write to.
        ctx: the device, when there are no inputs.

    Returns:
        The visible output, or a list when there are several; `out` when it was given.

    Raises:
        MXNetError: inputs on different devices. What the operator itself refuses is raised at the next wait.
    """
    if op.result_shape == "given" and is_np_shape():
        attrs = {**attrs, NP_SHAPE: "True"}
    return _record(form_of(op, attrs), inputs, out, ctx)


def _record(form: InvokeForm, inputs: Sequence[Handle], out: Any = None, ctx: Any = None) -> Any:
    """Have the session run an operator; see `invoke`."""
    session = inputs[0]._session if inputs and out is None else session_of(form.op, inputs, out, ctx)
    numbers = []
    for array in inputs:
        if array._session is not session:
            session_of(form.op, inputs, out, ctx)  # raises
        numbers.append(array._id)
    if out is not None:
        targets = [array._id for array in (out if isinstance(out, list | tuple) else [out])]
        session.record(form.command(numbers, targets, into=True))
        return out
    shape, dtype = form.result(inputs)
    if form.outputs == 1:
        id = session.new_id()
        session.record(form.command(numbers, [id]))
        return NDArray(session, id, shape, dtype)
    count = form.op.visible_outputs(form.attrs)
    outputs = [NDArray(session, session.new_id(), shape, dtype) for _ in range(count)]
    session.record(form.command(numbers, [array._id for array in outputs]))
    return outputs[0] if count == 1 else outputs


def session_of(op: _schema.Operator, inputs: Sequence[Handle], out: Any, ctx: Any) -> Session:
    """The session that runs an operator: that of its arrays, or of `ctx` when there are none.

    Raises:
        MXNetError: the arrays are on different devices.
    """
    arrays = list(inputs)
    if out is not None:
        arrays += list(out) if isinstance(out, list | tuple) else [out]
    if not arrays:
        context: Context = ctx if ctx is not None else current_context()
        return context.session
    session = arrays[0]._session
    for other in arrays:
        if other._session is not session:
            raise MXNetError(
                f"{op.name}: expected all arrays on {session.device}, got one on {other._session.device}; move it with "
                "as_in_context"
            )
    return session


def _context(ctx: Any) -> Context | None:
    if ctx is None or isinstance(ctx, Context):
        return ctx
    kind, _, number = str(ctx).rstrip(")").partition("(")
    return Context(kind, int(number or 0))


def _one(result: Any) -> NDArray:
    assert isinstance(result, NDArray)
    return result


def _unpickled(values: np.ndarray[Any, Any]) -> NDArray:
    return from_host(values, current_context().session)


def waitall() -> None:
    """Wait until every session has run what was asked for; raises the first thing that failed."""
    for session in sessions().values():
        session.wait()
