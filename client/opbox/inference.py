"""Asking the engine for a symbol's shapes and types, in MXNet's terms: 0 and () are unknown, None is undecided.

In numpy mode (`mx.util.np_shape`) 0 is a size, and -1 and None are unknown.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opbox_protocol import routes
from opbox_protocol.collector import collection_paused
from opbox_protocol.commands import InferShape, InferType
from opbox_protocol.errors import MXNetError, UnderdeterminedError
from opbox_protocol.mxnet import dtype_name, numpy_dtype
from opbox_protocol.shapes import from_mxnet, to_mxnet

from . import connection
from .base import user_level
from .context import current_context
from .device_sessions import sessions
from .known_graphs import Document, known_graphs
from .numpy_mode import is_np_shape
from .operator.sending import ask_about, graph_for, has_own_code
from .session import Session

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["infer_for_bind", "infer_shape", "infer_type", "shape_answer", "shape_query"]

Known = tuple[list[Any], list[Any], list[Any]]
Shapes = tuple[list[Any] | None, list[Any] | None, list[Any] | None]
UNDECIDED: Shapes = (None, None, None)


def _named(symbol: Symbol, what: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of the symbol's inputs."""
    if args and kwargs:
        raise ValueError(f"infer_{what}: expected {what}s by position or by name, got both")
    if args:
        known = symbol.list_arguments()
        if len(args) > len(known):
            raise MXNetError(f"infer_{what}: expected at most {len(known)} arguments, got {len(args)}")
        return {name: value for name, value in zip(known, args, strict=False) if value is not None}
    if kwargs:
        inputs = symbol.list_inputs()
        names = set(inputs)
        for name in kwargs:
            if name not in names:
                listed = ", ".join(inputs)
                raise MXNetError(f"infer_{what}: keyword argument {name!r} not found: expected one of {listed}")
    return dict(kwargs)


@collection_paused()
def _ask(symbol: Symbol, query: InferShape | InferType) -> dict[str, Any]:
    """Return the engine's answer to a query; a graph with the user's own operators is asked about in their session."""
    if has_own_code(symbol):
        session = _session()
        return ask_about(session, graph_for(session, symbol), [query])[0]
    transport = connection.transport()
    path = {"infer_shape": routes.INFER_SHAPE, "infer_type": routes.INFER_TYPE}[query["do"]]
    body = {key: value for key, value in query.items() if key != "do"}
    document = Document(symbol._document())
    return known_graphs(transport).ask(
        document, lambda graph: transport.call("POST", path, {"graph": graph, **body}).header
    )


def _session() -> Session:
    """The session of the current device, or one that is open on another: code runs where it is already."""
    context, opened = current_context(), sessions()
    if opened and context.device not in opened:
        return next(iter(opened.values()))
    return context.session


def infer_shape(
    symbol: Symbol, partial: bool, args: Sequence[Any], kwargs: Mapping[str, Any], *, as_mxnet: bool = False
) -> Shapes:
    """The shapes of arguments, outputs and auxiliary states.

    Args:
        symbol: the graph.
        partial: return what can be known.
        args, kwargs: known shapes, by position of the arguments or by name.
        as_mxnet: with `partial`, infer no more than MXNet 1.9.1 does while shapes are unknown.

    Returns:
        Three lists of tuples; three times None when shapes stay unknown and `partial` is not set.

    Raises:
        ShapeError: shapes contradict each other; names the node and the user's line.
    """
    query = shape_query(symbol, args, kwargs)
    if as_mxnet:
        query["as_mxnet"] = True
    return shape_answer(_ask(symbol, query), partial)


def infer_for_bind(
    symbol: Symbol,
    document: Document,
    session: Session,
    shapes: Mapping[str, Any],
    types: Mapping[str, Any],
    *,
    partial_types: bool,
    subject: str,
    remedy: str,
) -> tuple[Known, Known]:
    """Shapes and types at once, in the session that is to run the graph: it then knows the graph.

    Args:
        symbol: the graph.
        document: the graph as it is sent.
        session: the session.
        shapes, types: known ones, by name.
        partial_types: return the types that can be known.
        subject, remedy: for the error, who asks, and how more is said.

    Returns:
        As `infer_shape` and as `infer_type`.

    Raises:
        UnderdeterminedError: what is known does not decide the rest; names what stays open.
    """
    queries: list[InferShape | InferType] = [shape_query(symbol, (), shapes), _type_query(symbol, (), types)]
    inferred_shapes, inferred_types = ask_about(session, document, queries)
    for what, answer, known, unknown in (
        ("shape", inferred_shapes, shapes, _open_shapes),
        ("type", inferred_types, types, _open_types),
    ):
        if answer["complete"] or (what == "type" and partial_types):
            continue
        names = unknown(answer)
        if not names:
            raise UnderdeterminedError(f"{subject}: {_OPEN_OUTPUT}")
        listed = ", ".join(f"{name} {value}" for name, value in known.items()) or "none"
        raise UnderdeterminedError(
            f"{subject}: expected {what}s that decide those of all arguments, got {listed}: {', '.join(names[:10])} "
            f"{'stays' if len(names) == 1 else 'stay'} open: {remedy}"
        )
    return _decided(inferred_shapes), _decided_types(inferred_types)


def shape_query(symbol: Symbol, args: Sequence[Any], kwargs: Mapping[str, Any]) -> InferShape:
    """Return the question for a symbol's shapes, with the known ones in the engine's terms."""
    shapes: dict[str, Any] = {}
    for name, shape in _named(symbol, "shape", args, kwargs).items():
        if is_np_shape() and shape is None:
            continue
        if not isinstance(shape, tuple):
            raise TypeError(f"infer_shape: argument {name!r}: expected a tuple, got {type(shape).__name__}")
        if shape or is_np_shape():
            shapes[name] = [int(d) for d in (shape if is_np_shape() else from_mxnet(shape) or ())]
    return {"do": "infer_shape", "shapes": shapes, "partial": True}


_OPEN_OUTPUT = (
    "expected outputs whose shapes follow from the arguments', which are all known, got one whose shape stays open: it "
    "follows from values (call that operator by itself, by mx.nd), or a size of it is unknown"
)


def _open_shapes(answer: Mapping[str, Any]) -> list[str]:
    """The arguments whose shapes an answer leaves open, each with what is known of it."""
    arguments = zip(answer["arg_names"], answer["arg_shapes"], strict=True)
    return [f"{name} {_shown(dims)}" for name, dims in arguments if dims is None or -1 in dims]


def _open_types(answer: Mapping[str, Any]) -> list[str]:
    """The arguments whose types an answer leaves open."""
    arguments = zip(answer["arg_names"], answer["arg_types"], strict=True)
    return [str(name) for name, dtype in arguments if dtype is None]


def shape_answer(answer: Mapping[str, Any], partial: bool) -> Shapes:
    """Return the engine's answer in MXNet's terms, as `infer_shape`."""
    if not answer["complete"] and not partial:
        unknown = _open_shapes(answer)
        if unknown:
            _warn("shape", unknown)
        else:
            warnings.warn(f"infer_shape: {_OPEN_OUTPUT}", stacklevel=user_level())
        return UNDECIDED
    return _decided(answer)


def _decided(answer: Mapping[str, Any]) -> Known:
    args, outs, aux = ([_shown(dims) for dims in answer[f"{kind}_shapes"]] for kind in ("arg", "out", "aux"))
    return args, outs, aux


def _shown(dims: Sequence[int] | None) -> Any:
    """A shape in the terms of the mode."""
    if is_np_shape():
        return None if dims is None else tuple(dims)
    return to_mxnet(dims)


def _warn(what: str, unknown: list[str]) -> None:
    listed = "\n\t".join([*unknown[:10], "…"] if len(unknown) > 10 else unknown)
    zeros = f" (a dimension {-1 if is_np_shape() else 0} is unknown)" if what == "shape" else ""
    warnings.warn(
        f"infer_{what}: give more {what}s; these arguments stay open{zeros}:\n\t{listed}", stacklevel=user_level()
    )


def infer_type(symbol: Symbol, partial: bool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shapes:
    """The element types of arguments, outputs and auxiliary states, as numpy's scalar classes.

    Args:
        symbol: the graph.
        partial: return what can be known, None elsewhere.
        args, kwargs: known types, by position of the arguments or by name.

    Raises:
        DTypeError: types contradict each other.
    """
    return _types(_ask(symbol, _type_query(symbol, args, kwargs)), partial)


def _type_query(symbol: Symbol, args: Sequence[Any], kwargs: Mapping[str, Any]) -> InferType:
    types = {name: dtype_name(dtype) for name, dtype in _named(symbol, "type", args, kwargs).items()}
    return {"do": "infer_type", "types": types, "partial": True}


def _types(answer: Mapping[str, Any], partial: bool) -> Shapes:
    if not answer["complete"] and not partial:
        _warn("type", _open_types(answer))
        return UNDECIDED
    return _decided_types(answer)


def _decided_types(answer: Mapping[str, Any]) -> Known:
    args, outs, aux = ([numpy_type(dtype) for dtype in answer[f"{kind}_types"]] for kind in ("arg", "out", "aux"))
    return args, outs, aux


def numpy_type(name: str | None) -> Any:
    """numpy's scalar class for a type's name; None for None."""
    return None if name is None else numpy_dtype(name).type
