"""Asking the engine for a symbol's shapes and types, in MXNet's terms: 0 and () are unknown, None is undecided.

In numpy mode (`mx.util.np_shape`) 0 is a size, and -1 and None are unknown.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import dtype_name, numpy_dtype
from opbox_protocol.shapes import from_mxnet, to_mxnet

from .. import connection
from ..context import current_context
from ..operator.sending import graph_for, has_own_code
from ..session import Session, sessions
from ..util import is_np_shape

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["infer_shape", "infer_type"]

Shapes = tuple[list[Any] | None, list[Any] | None, list[Any] | None]
UNDECIDED: Shapes = (None, None, None)


def _named(symbol: Symbol, what: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, by the names of the symbol's inputs."""
    if args and kwargs:
        raise ValueError(f"infer_{what}: expected {what}s by position or by name, got both")
    if args:
        known = symbol.list_arguments()
        if len(args) > len(known):
            raise MXNetError(f"infer_{what}: expected at most {len(known)} arguments, got {len(args)}")
        return {name: value for name, value in zip(known, args, strict=False) if value is not None}
    if kwargs:
        known = symbol.list_inputs()
        for name in kwargs:
            if name not in known:
                listed = ", ".join(known)
                raise MXNetError(f"infer_{what}: keyword argument {name!r} not found: expected one of {listed}")
    return dict(kwargs)


def _ask(symbol: Symbol, do: str, known: dict[str, Any]) -> dict[str, Any]:
    """What the engine infers; a graph with operators of the user's own is asked about in the session that runs them."""
    if has_own_code(symbol):
        session = _session()
        return session.ask({"do": do, "graph": graph_for(session, symbol), **known, "partial": True})
    body = {"graph": symbol._document(), **known, "partial": True}
    return connection.transport().call("POST", f"/v1/{do}", body).header


def _session() -> Session:
    """The session of the current device, or one that is open on another: code runs where it is already."""
    context, opened = current_context(), sessions()
    if opened and context.device not in opened:
        return next(iter(opened.values()))
    return context.session


def infer_shape(symbol: Symbol, partial: bool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shapes:
    """The shapes of arguments, outputs and auxiliary states.

    Args:
        symbol: the graph.
        partial: return what can be known.
        args, kwargs: known shapes, by position of the arguments or by name.

    Returns:
        Three lists of tuples; three times None when shapes stay unknown and `partial` is not set.

    Raises:
        ShapeError: shapes contradict each other; names the node and the user's line.
    """
    given: dict[str, Any] = {}
    for name, shape in _named(symbol, "shape", args, kwargs).items():
        if is_np_shape() and shape is None:
            continue
        if not isinstance(shape, tuple):
            raise TypeError(f"infer_shape: argument {name!r}: expected a tuple, got {type(shape).__name__}")
        if shape or is_np_shape():
            given[name] = [int(d) for d in (shape if is_np_shape() else from_mxnet(shape) or ())]
    told = _ask(symbol, "infer_shape", {"shapes": given})
    if not told["complete"] and not partial:
        arguments = zip(told["arg_names"], told["arg_shapes"], strict=True)
        unknown = [f"{name}: {_shown(dims)}" for name, dims in arguments if dims is None or -1 in dims]
        _warn("shape", unknown)
        return UNDECIDED
    return tuple([_shown(dims) for dims in told[f"{kind}_shapes"]] for kind in ("arg", "out", "aux"))  # type: ignore[return-value]


def _shown(dims: Sequence[int] | None) -> Any:
    """A shape in the terms of the mode."""
    if is_np_shape():
        return None if dims is None else tuple(dims)
    return to_mxnet(dims)


def _warn(what: str, unknown: list[str]) -> None:
    listed = "\n\t".join([*unknown[:10], "…"] if len(unknown) > 10 else unknown)
    zeros = f" (a dimension {-1 if is_np_shape() else 0} is unknown)" if what == "shape" else ""
    warnings.warn(f"infer_{what}: give more {what}s; these arguments stay open{zeros}:\n\t{listed}", stacklevel=4)


def infer_type(symbol: Symbol, partial: bool, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Shapes:
    """The element types of arguments, outputs and auxiliary states, as numpy's scalar classes.

    Args:
        symbol: the graph.
        partial: return what can be known, None elsewhere.
        args, kwargs: known types, by position of the arguments or by name.

    Raises:
        DTypeError: types contradict each other.
    """
    given = {name: dtype_name(dtype) for name, dtype in _named(symbol, "type", args, kwargs).items()}
    told = _ask(symbol, "infer_type", {"types": given})
    if not told["complete"] and not partial:
        unknown = [f"{n}: None" for n, dtype in zip(told["arg_names"], told["arg_types"], strict=True) if dtype is None]
        _warn("type", unknown)
        return UNDECIDED
    return tuple([numpy_type(dtype) for dtype in told[f"{kind}_types"]] for kind in ("arg", "out", "aux"))  # type: ignore[return-value]


def numpy_type(name: str | None) -> Any:
    """numpy's scalar class for a type's name; None for None."""
    return None if name is None else numpy_dtype(name).type
