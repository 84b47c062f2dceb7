"""Running operators on arrays, one command each; the updates of an optimizer, one command together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import MXNetError, ParamError
from opbox_protocol.mxnet import attribute_text

from .. import _schema
from ..context import Context, current_context
from . import shapes

if TYPE_CHECKING:
    from ..session import Session
    from .array import NDArray

__all__ = ["call", "imperative", "invoke", "invoke_update"]


def imperative(
    op: str, inputs: Sequence[NDArray], params: Mapping[str, Any] | None = None, out: Any = None, ctx: Any = None
) -> Any:
    """Run the operator of that name; see `invoke`."""
    attrs = {key: attribute_text(value) for key, value in (params or {}).items()}
    return invoke(_schema.get(op), attrs, inputs, out, ctx)


def invoke(
    op: _schema.Operator, attrs: Mapping[str, str], inputs: Sequence[NDArray], out: Any = None, ctx: Any = None
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
    from .array import NDArray

    session = _session(op, inputs, out, ctx)
    command: dict[str, Any] = {"do": "invoke", "op": op.name, "attrs": dict(attrs), "inputs": [x._id for x in inputs]}
    if out is not None:
        given = list(out) if isinstance(out, list | tuple) else [out]
        session.record({**command, "outputs": [x._id for x in given], "into": True})
        return out
    found = shapes.known(op.name, attrs, inputs)
    made = [NDArray(session, session.new_id(), *found) for _ in range(op.visible_outputs(attrs))]
    session.record({**command, "outputs": [x._id for x in made], "into": False})
    return made[0] if len(made) == 1 else made


def _session(op: _schema.Operator, inputs: Sequence[NDArray], out: Any, ctx: Any) -> Session:
    given = list(inputs)
    if out is not None:
        given += list(out) if isinstance(out, list | tuple) else [out]
    if not given:
        context: Context = ctx if ctx is not None else current_context()
        return context.session
    session = given[0]._session
    for each in given:
        if each._session is not session:
            raise MXNetError(
                f"{op.name}: expected all arrays on {session.device}, got one on {each._session.device}; move it with "
                "as_in_context"
            )
    return session


def call(
    op: _schema.Operator,
    hint: str,
    tensors: Sequence[Any],
    named: Mapping[str, Any],
    params: Mapping[str, Any],
    keywords: Mapping[str, Any],
) -> Any:
    """What the generated functions call."""
    params = dict(params)
    ctx = _context(params.pop("ctx", None))
    if op.count is not None and op.count not in params:
        params[op.count] = len(tensors) + len(named)
    attrs = {key: attribute_text(value) for key, value in params.items()}
    op.check(attrs)
    names = op.input_names(attrs)
    unknown = [key for key in named if key not in names]
    if unknown:
        raise ParamError(f"{op.name}: unknown input {unknown[0]!r}: expected {', '.join(names) or 'none'}")
    if op.count is None:
        missing = [name for name in names if name not in named]
        if missing:
            raise ParamError(f"{op.name}: input {missing[0]!r} is missing: expected {', '.join(names)}")
        tensors = [named[name] for name in names]
    elif named:
        tensors = [*tensors, *(named[name] for name in names[len(tensors) :] if name in named)]
    inputs = [_array(each, ctx) for each in tensors]
    return invoke(op, attrs, inputs, keywords.get("out"), ctx)


def _context(given: Any) -> Context | None:
    if given is None or isinstance(given, Context):
        return given
    kind, _, number = str(given).rstrip(")").partition("(")
    return Context(kind, int(number or 0))


def _array(value: Any, ctx: Context | None) -> NDArray:
    from .array import NDArray
    from .creation import array

    return value if isinstance(value, NDArray) else array(value, ctx=ctx, dtype=getattr(value, "dtype", None))


def invoke_update(calls: Iterable[Any]) -> None:
    """Run updates (of `optimizer.base.Update`'s form): those of one operator and equal parameters in one command.

    An update's operator writes its result to its first input, and its states in place.
    """
    for (session, op, attrs), group in groupby(calls, key=_shared):
        command = {"do": "update", "op": op, "attrs": attrs}
        session.record(
            {**command, "calls": [{"inputs": [x._id for x in c.inputs], "attrs": _text(c.own)} for c in group]}
        )


def _shared(call: Any) -> tuple[Session, str, dict[str, str]]:
    """What updates must have in common to be one command."""
    return call.inputs[0]._session, _schema.get(call.op).name, _text(call.attrs)


def _text(params: Mapping[str, Any]) -> dict[str, str]:
    return {key: attribute_text(value) for key, value in params.items() if value is not None}
