"""The calls that need no session: the catalogue, graphs by content, inference, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from opbox_ops import registry
from opbox_ops.backend import backend_for
from opbox_protocol.errors import BadRequestError, NotFoundError, UnknownOperatorError

from ..graph.ir import Graph
from ..settings import Settings
from .batch import Answer, Done
from .graphs import GraphCache
from .inference import shapes_told, types_told
from .memory import Budget, MeteredBackend
from .plans import PlanCache
from .sessions import check_device, check_seed

__all__ = ["Stateless"]

HEAD_GRAD = "head_grad:"
GRAD = "grad:"
Header: TypeAlias = "Mapping[str, Any]"
Tensors: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"


class Stateless:
    """The calls, over one cache of graphs and one of plans."""

    def __init__(self, settings: Settings, graphs: GraphCache) -> None:
        self._settings = settings
        self._graphs = graphs
        self._plans = PlanCache(settings.plan_cache, settings.plan_cache_bytes, settings.max_session_bytes)

    def close(self) -> None:
        self._plans.clear()

    # -- the catalogue ------------------------------------------------------------------------------------------

    def ops(self) -> Answer:
        """All operators but the gradients."""
        found = (registry.get(name) for name in registry.names())
        return Answer({"operators": [op.json() for op in found if not op.is_backward]})

    def op(self, name: str) -> Answer:
        """One operator, by name or alias."""
        try:
            return Answer(registry.get(name).json())
        except UnknownOperatorError as error:
            raise NotFoundError(error.message) from None

    # -- graphs -------------------------------------------------------------------------------------------------

    def put_graph(self, header: Header) -> Answer:
        """Keep a graph; its sha256."""
        check_fields(header, "graph")
        return Answer({"sha256": self._graphs.put(header.get("graph"))[0]})

    def infer_shape(self, header: Header) -> Answer:
        """Shapes of arguments, outputs and auxiliary states."""
        check_fields(header, "graph", "shapes", "partial", "trace")
        given = _mapping(header, "shapes")
        _, graph = self._graphs.resolve(header.get("graph"))
        partial, trace = _flag(header, "partial"), _flag(header, "trace")
        rank = self._settings.max_rank
        return Answer(shapes_told(graph, given, partial=partial, trace=trace, max_rank=rank))

    def infer_type(self, header: Header) -> Answer:
        """Element types of arguments, outputs and auxiliary states, as numpy names."""
        check_fields(header, "graph", "types", "partial")
        _, graph = self._graphs.resolve(header.get("graph"))
        return Answer(types_told(graph, _mapping(header, "types"), partial=_flag(header, "partial")))

    # -- running ------------------------------------------------------------------------------------------------

    def run(self, header: Header, tensors: Tensors, done: Done, *, backward: bool) -> None:
        """Forward, and backward if asked; `done` gets the outputs while they are valid."""
        check_fields(header, "graph", "id")
        known = ("is_train", "seed", "device", "tensor_alignment", *(("grads",) if backward else ()))
        options = _mapping(header, "parameters")
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise BadRequestError(f"parameters: unknown field {unknown[0]!r}: expected {', '.join(known)}")
        device, seed = options.get("device", self._settings.device), options.get("seed", 0)
        check_device(device, self._settings)
        check_seed(seed)
        is_train = _flag(options, "is_train", backward)
        key, graph = self._graphs.resolve(header.get("graph"))
        heads = {n.removeprefix(HEAD_GRAD): t for n, t in tensors.items() if backward and n.startswith(HEAD_GRAD)}
        inputs = {n: t for n, t in tensors.items() if not (backward and n.startswith(HEAD_GRAD))}
        _check_names(graph, inputs, heads)
        wrt = _wanted(graph, options, inputs) if backward else ()
        host = backend_for(device)
        backend: Any = MeteredBackend(host, Budget(self._settings.max_session_bytes))
        scope: Any = getattr(host, "device", None) or contextlib.nullcontext()
        with scope, self._plans.borrow(key, graph, inputs, wrt, device, backend) as compiled:
            for name, array in compiled.arrays.items():
                backend.write(array, inputs[name])
            compiled.random.seed(seed)
            executor = compiled.executor
            executor.forward(is_train=is_train)
            names = graph.output_names
            answer = {name: backend.get(array) for name, array in zip(names, executor.outputs, strict=True)}
            if backward:
                # Backward may write over an output that is an input's array, or that it needs no more.
                answer = {name: array.copy() for name, array in answer.items()}
                executor.backward([backend.put(heads[name]) if name in heads else None for name in names])
                answer |= {GRAD + name: backend.get(array) for name, array in compiled.grads.items()}
            done(Answer({}, answer))


def check_fields(header: Header, *known: str) -> None:
    """BadRequestError for a field that the call does not have."""
    unknown = sorted(set(header) - {*known, "inputs", "parameters"})
    if unknown:
        raise BadRequestError(f"unknown field {str(unknown[0])[:80]!r}: expected {', '.join(known)}")


def _mapping(header: Header, key: str) -> dict[str, Any]:
    value = header.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequestError(f"{key}: expected an object, got {type(value).__name__}")
    return value


def _flag(header: Header, key: str, default: bool = False) -> bool:
    value = header.get(key, default)
    if type(value) is not bool:
        raise BadRequestError(f"{key}: expected true or false, got {value!r}")
    return value


def _check_names(graph: Graph, inputs: Tensors, heads: Tensors) -> None:
    names = [*graph.argument_names, *graph.auxiliary_names]
    missing = [name for name in names if name not in inputs]
    if missing:
        raise BadRequestError(f"input {missing[0]!r} is missing: expected tensors named {', '.join(names[:20])}")
    known = set(names)
    extra = [name for name in inputs if name not in known]
    if extra:
        raise BadRequestError(f"input {extra[0]!r} is none of the graph's: expected {', '.join(names[:20]) or 'none'}")
    outputs = graph.output_names
    stray = [name for name in heads if name not in set(outputs)]
    if stray:
        raise BadRequestError(f"head gradient {stray[0]!r}: expected one of the outputs {', '.join(outputs[:20])}")


def _wanted(graph: Graph, options: Header, inputs: Tensors) -> tuple[str, ...]:
    given = options.get("grads")
    if given is None:
        return tuple(name for name in graph.argument_names if inputs[name].dtype.kind in "fV")
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise BadRequestError(f"grads: expected a list of argument names, got {given!r}")
    known = set(graph.argument_names)
    for name in given:
        if name not in known:
            raise BadRequestError(f"grads: {name!r}: expected one of {', '.join(graph.argument_names[:20])}")
    return tuple(dict.fromkeys(given))
