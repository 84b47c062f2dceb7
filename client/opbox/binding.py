"""Binding symbols: what `Symbol.bind` and `Symbol.simple_bind` take, turned into an executor."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from opbox_protocol.collector import collection_paused
from opbox_protocol.errors import MXNetError
from opbox_protocol.mxnet import GRAD_REQS

from .base import value_text
from .context import context_or_current
from .executor import Executor
from .inference import infer_for_bind
from .known_graphs import Document
from .ndarray import NDArray
from .ndarray.creation import many_zeros
from .operator.sending import graph_for
from .placement import Placement

if TYPE_CHECKING:
    from .symbol import Symbol

__all__ = ["bind", "simple_bind"]


def _requests(names: Sequence[str], grad_req: Any) -> dict[str, str]:
    """Return the gradient request of each argument."""
    if grad_req is None:
        grad_req = "null"
    if isinstance(grad_req, str):
        requests = dict.fromkeys(names, grad_req)
    elif isinstance(grad_req, Mapping):
        requests = {name: grad_req.get(name, "null") for name in names}
    else:
        if len(grad_req) != len(names):
            raise ValueError(f"grad_req: expected {len(names)} requests, got {len(grad_req)}")
        requests = dict(zip(names, grad_req, strict=True))
    for name, request in requests.items():
        if request not in GRAD_REQS:
            raise ValueError(f"grad_req of {name}: expected one of {', '.join(GRAD_REQS)}, got {request!r}")
    return requests


def _listed(what: str, arrays: Any, names: Sequence[str], optional: bool) -> list[Any]:
    """Arrays in the order of `names`, from a list or from a dict."""
    if isinstance(arrays, Mapping):
        missing = [name for name in names if name not in arrays]
        if missing and not optional:
            raise ValueError(f"{what}: expected an array for {missing[0]!r}, got {', '.join(arrays) or 'none'}")
        listed = [arrays.get(name) for name in names]
    elif isinstance(arrays, list | tuple):
        if len(arrays) != len(names):
            raise ValueError(f"{what}: expected {len(names)} arrays ({', '.join(names)}), got {len(arrays)}")
        listed = list(arrays)
    else:
        raise TypeError(f"{what}: expected a list of NDArrays or a dict of them by name, got {type(arrays).__name__}")
    for name, array in zip(names, listed, strict=True):
        if not isinstance(array, NDArray) and not (array is None and optional):
            raise TypeError(
                f"{what}: expected an NDArray for {name!r}, got {value_text(array)}: mx.nd.array(…) makes one"
            )
    return listed


def bind(
    symbol: Symbol,
    ctx: Any,
    args: Any,
    args_grad: Any,
    grad_req: Any,
    aux_states: Any,
    document: Document | None = None,
    group2ctx: Any = None,
) -> Executor:
    """Bind a symbol; see `Symbol.bind`. `document` is its JSON, if the caller has it already."""
    if ctx is None:
        raise TypeError("ctx: expected a Context such as mx.cpu() or mx.gpu(0), got None")
    ctx = context_or_current(ctx)
    names = symbol.list_arguments()
    wire_names = names
    if len(set(names)) != len(names):
        if isinstance(args, Mapping) or isinstance(args_grad, Mapping) or isinstance(grad_req, Mapping):
            raise MXNetError(
                f"bind: expected arguments of different names, got {', '.join(names)}: give args, args_grad and "
                "grad_req as lists"
            )
        document, wire_names = _told_apart(document or graph_for(ctx.session, symbol), names)
    arrays = _listed("args", args, names, False)
    grads = _listed("args_grad", args_grad if args_grad is not None else {}, names, True)
    aux = _listed("aux_states", aux_states if aux_states is not None else [], symbol.list_auxiliary_states(), False)
    requests = _requests(wire_names, grad_req)
    requests = {
        name: requests[name] if grad is not None else "null" for name, grad in zip(wire_names, grads, strict=True)
    }
    placement = Placement(symbol, ctx, group2ctx)
    executor = Executor(symbol, ctx, arrays, grads, requests, aux, document, wire_names)
    placement.put_outputs(executor.outputs)
    return executor


def _told_apart(document: Document, names: Sequence[str]) -> tuple[Document, list[str]]:
    """A graph whose arguments have different names, and these in the order of `names`, which has some twice."""
    auxiliary = [row for row in document["nodes"] if row["op"] == "null" and row["name"] not in names]
    rows = [row for row in document["nodes"] if row["op"] == "null" and row not in auxiliary]
    taken = {row["name"] for row in document["nodes"]}
    fresh = (name for number in itertools.count(1) if (name := f"argument{number}") not in taken)
    different = {id(row): next(fresh) for row in rows}
    nodes = [{**row, "name": different[id(row)]} if id(row) in different else row for row in document["nodes"]]
    return Document({**document, "nodes": nodes}, document.own_code), list(different.values())


_OPTIONS = ("ctx", "grad_req", "type_dict")
_SHARING = ("shared_arg_names", "shared_exec", "shared_buffer")
_WITHOUT_EFFECT = ("stype_dict",)


def _check_options(symbol: Symbol, kwargs: Mapping[str, Any]) -> None:
    """Raise TypeError for an argument that is neither a shape nor an option, such as a misspelt option."""
    for name, value in kwargs.items():
        if (
            not isinstance(value, tuple | list)
            and name not in (*_WITHOUT_EFFECT, *_SHARING, "group2ctx")
            and value is not None
        ):
            if name in symbol.list_inputs():
                raise TypeError(f"simple_bind: {name}: expected a shape such as (2, 3), got {value_text(value)}")
            raise TypeError(
                f"simple_bind: {name!r}: expected the shape of an argument, or one of {', '.join(_OPTIONS)}, "
                f"got {value_text(value)}"
            )


def simple_bind(
    symbol: Symbol, ctx: Any, grad_req: Any, type_dict: Mapping[str, Any] | None, kwargs: Mapping[str, Any]
) -> Executor:
    """See `Symbol.simple_bind`."""
    with collection_paused():
        ctx = context_or_current(ctx)
        _check_options(symbol, kwargs)
        placement = Placement(symbol, ctx, kwargs.get("group2ctx"))
        # Shapes and types of other names than the symbol's are passed over, as in MXNet: programs give an iterator's.
        inputs = frozenset(symbol.list_inputs())
        shapes = {n: tuple(v) for n, v in kwargs.items() if isinstance(v, tuple | list) and n in inputs}
        known = {name: dtype for name, dtype in (type_dict or {}).items() if dtype is not None and name in inputs}
        document = graph_for(ctx.session, symbol)
        (arg_shapes, _, aux_shapes), (arg_types, _, aux_types) = infer_for_bind(
            symbol,
            document,
            ctx.session,
            shapes,
            known,
            partial_types=True,
            subject="simple_bind",
            remedy="give the shapes of the inputs among them, as simple_bind(ctx, data=(…))",
        )
        names = symbol.list_arguments()
        requests = _requests(names, grad_req)
        kinds = [(shape, dtype or np.float32) for shape, dtype in zip(arg_shapes, arg_types, strict=True)]
        states = [(shape, dtype or np.float32) for shape, dtype in zip(aux_shapes, aux_types, strict=True)]
        wanted = [requests[name] != "null" for name in names]
        arrays = iter(many_zeros([*kinds, *states, *itertools.compress(kinds, wanted)], ctx))
        args, aux = [next(arrays) for _ in kinds], [next(arrays) for _ in states]
        grads = [next(arrays) if wants else None for wants in wanted]
        for listed, variables in ((args, names), (aux, symbol.list_auxiliary_states()), (grads, names)):
            placement.put(variables, listed)
        shared = kwargs.get("shared_exec")
        if shared is not None:
            only = kwargs.get("shared_arg_names")
            args = _shared(names, args, shared.arg_dict, only)
            grads = _shared(names, grads, shared.grad_dict, only)
            aux = _shared(symbol.list_auxiliary_states(), aux, shared.aux_dict, None)
        executor = Executor(symbol, ctx, args, grads, requests, aux, document)
        placement.put_outputs(executor.outputs)
        return executor


def _shared(names: Sequence[str], arrays: Sequence[Any], others: Mapping[str, Any], only: Any) -> list[Any]:
    """Arrays, with those of another executor in the place of equal shape and type.

    Args:
        names, arrays: the arrays by name; None where there is none.
        others: the other executor's.
        only: names of those that are shared; None for all.
    """
    chosen = []
    for name, array in zip(names, arrays, strict=True):
        other = others.get(name) if only is None or name in only else None
        alike = array is not None and other is not None and (other.shape, other.dtype) == (array.shape, array.dtype)
        chosen.append(other if alike else array)
    return chosen
