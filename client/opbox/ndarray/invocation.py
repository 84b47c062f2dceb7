"""Operators run on arrays: what the functions and methods of `mx.nd` come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import NP_SHAPE, attribute_text

from .. import _schema
from ..base import value_text
from ..context import Context, context_or_current
from ..device_sessions import sessions
from ..foreign import host_values
from ..known_graphs import Document
from ..numpy_mode import is_np_shape
from ..operator.sending import ask_about
from ..session import Session
from .array import NDArray, array
from .handle import Handle
from .invoke_form import InvokeForm, form_of, plain_form
from .shortcuts import with_shortcut

__all__ = ["imperative", "invoke", "session_of", "waitall"]


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
    """Run an operator in a session; see `invoke`."""
    numbers = []
    try:
        session = inputs[0]._session if inputs and out is None else session_of(form.op, inputs, out, ctx)
        for handle in inputs:
            if handle._session is not session and handle._session != session:
                session_of(form.op, inputs, out, ctx)  # raises
            numbers.append(handle._id)
    except AttributeError:
        others = [value for value in inputs if not isinstance(value, Handle)]
        if not others:
            raise
        raise TypeError(
            f"{form.op.name}: expected NDArrays, got {value_text(others[0])}: mx.nd.array(…) makes one"
        ) from None
    if out is not None:
        targets = [target._id for target in (out if isinstance(out, list | tuple) else [out])]
        session.record(form.command(numbers, targets, into=True))
        return out
    shape, dtype = form.result(inputs)
    if form.op.name in _CHECKED_AT_THE_CALL:
        _check(form, inputs)
    if form.outputs == 1:
        output = NDArray(session, session.new_id(), shape, dtype)  # first: it frees what is made though nobody gets it
        session.record(form.command(numbers, [output._id]))
        return output
    count = form.op.visible_outputs(form.attrs)
    outputs = [NDArray(session, session.new_id(), shape, dtype) for _ in range(count)]
    session.record(form.command(numbers, [output._id for output in outputs]))
    return outputs[0] if count == 1 else outputs


_CHECKED_AT_THE_CALL = frozenset(("Correlation", "Pooling", "depth_to_space", "diag", "space_to_depth"))
"""Operators whose shapes are checked before the call returns, as MXNet's are: programs rely on the error there."""


def _check(form: InvokeForm, inputs: Sequence[Handle]) -> None:
    """Ask the engine whether an operator takes arrays of these shapes, once for each combination.

    Raises:
        ShapeError, ParamError: it does not.
    """
    session = inputs[0]._session
    if not isinstance(session, Session):
        return  # Inside an operator of the user's own, calls run at once.
    key = tuple(handle.shape for handle in inputs)
    if key not in form.checked:
        names = [f"input{i}" for i in range(len(inputs))]
        nodes: list[dict[str, Any]] = [{"op": "null", "name": name, "inputs": []} for name in names]
        node = {"op": form.op.name, "name": form.op.name, "attrs": dict(form.attrs)}
        nodes.append({**node, "inputs": [[i, 0, 0] for i in range(len(names))]})
        graph = {"nodes": nodes, "arg_nodes": list(range(len(names))), "heads": [[len(names), 0, 0]]}
        shapes = dict(zip(names, map(list, key), strict=True))
        ask_about(session, Document(graph), [{"do": "infer_shape", "shapes": shapes, "partial": True}])
        form.checked.add(key)


def session_of(op: _schema.Operator, inputs: Sequence[Handle], out: Any, ctx: Any) -> Session:
    """The session that runs an operator: that of its arrays, or of `ctx` when there are none.

    Raises:
        MXNetError: the arrays are on different devices.
        TypeError: `out` is no array.
    """
    arrays = list(inputs)
    if out is not None:
        arrays += list(out) if isinstance(out, list | tuple) else [out]
    if not arrays:
        return context_or_current(ctx).session
    for other in arrays:
        if not isinstance(other, Handle):
            raise TypeError(f"{op.name}: out: expected an NDArray to write to, got {value_text(other)}")
    session = arrays[0]._session
    for other in arrays:
        if other._session != session:
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


def _shortened(op: _schema.Operator, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with a shorter way for calls that recur."""
    return with_shortcut(op, function, _record)


def _apply(
    op: _schema.Operator,
    hint: str,
    tensors: Sequence[Any],
    named: Mapping[str, Any],
    params: Mapping[str, Any],
    keywords: Mapping[str, Any],
) -> Any:
    """Call an operator on arrays, for the functions that are made from the catalogue."""
    attrs = dict(params)
    ctx = _context(attrs.pop("ctx", None))
    attrs, inputs = op.arranged(tensors, named, attrs)
    arrays = [x if isinstance(x, NDArray) else _copied(x, ctx) for x in inputs]
    return invoke(op, attrs, arrays, keywords.get("out"), ctx)


def _copied(values: Any, ctx: Context | None) -> NDArray:
    """An array of another library, or numbers, on a device, in its own type."""
    values = host_values(values)
    return array(values, ctx, getattr(values, "dtype", None))


NDArray._imperative = staticmethod(imperative)
NDArray._shortened = staticmethod(_shortened)
NDArray._apply = staticmethod(_apply)


def waitall() -> None:
    """Wait until every session has run what was asked for; raises the first thing that failed."""
    for session in sessions().values():
        session.wait()
