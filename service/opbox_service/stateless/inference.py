"""Shapes and types of a graph, asked for with or without a session."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from pydantic import Field

from opbox_protocol.errors import BadRequestError

from ..graph.ir import Graph
from ..graph.passes.infer_shape import infer_shape
from ..graph.passes.infer_type import infer_type
from ..task import graph_budget
from ..validation import Expected, InPieces, Strict

__all__ = ["GraphReference", "Shape", "ShapeQuery", "TypeQuery", "infer_shapes", "infer_types"]

GraphReference = Annotated[
    dict[str, Any] | str,
    Field(description='Symbol JSON, or "sha256:<hex>" of one sent before.'),
    Expected('symbol JSON as an object, or "sha256:<hex>" of one sent before'),
]
TypeName = Annotated[str | None, Expected("numpy's name of a type, or null")]
Shape = Annotated[list[int] | None, Expected("a list of integers or null")]


class ShapeQuery(Strict):
    """A graph whose shapes are asked for, and the shapes that are known."""

    graph: GraphReference
    shapes: Annotated[dict[str, Shape], InPieces()] = Field(
        default={}, description="By argument; -1 an unknown dimension, null all unknown."
    )
    partial: bool = Field(default=False, description="Leave unknown what the given shapes do not determine.")
    as_mxnet: bool = Field(
        default=False, description="With partial: infer no more than MXNet 1.9.1 does while shapes are unknown."
    )
    trace: bool = Field(default=False, description="Tell which rule learnt what, and what stayed unknown.")


class TypeQuery(Strict):
    """A graph whose element types are asked for, and the types that are known."""

    graph: GraphReference
    types: Annotated[dict[str, TypeName], InPieces()] = Field(
        default={}, description="numpy's names by argument; null is unknown."
    )
    partial: bool = Field(default=False, description="Leave unknown what the given types do not determine.")


def infer_shapes(graph: Graph, query: ShapeQuery, max_rank: int) -> dict[str, Any]:
    """Shapes of arguments, outputs and auxiliary states by name; -1 and None are unknown.

    Raises:
        BadRequestError: a given shape has more than `max_rank` dimensions.
        ShapeError, UnderdeterminedError: from inference.
    """
    for name, shape in query.shapes.items():
        if shape is not None and len(shape) > max_rank:
            raise BadRequestError(f"shapes: {name!r}: expected at most {max_rank} dimensions, got {len(shape)}")
    shapes = {name: None if shape is None else tuple(shape) for name, shape in query.shapes.items()}
    trace: list[dict[str, Any]] | None = [] if query.trace else None
    with graph_budget():
        inferred = infer_shape(graph, shapes, partial=query.partial, as_mxnet=query.as_mxnet, trace=trace)
    sides = (
        [None if shape is None else list(shape) for shape in side]
        for side in (inferred.arg_shapes, inferred.out_shapes, inferred.aux_shapes)
    )
    answer = {**_named(graph, "shapes", *sides), "complete": inferred.complete}
    return answer if trace is None else {**answer, "trace": trace}


def infer_types(graph: Graph, query: TypeQuery) -> dict[str, Any]:
    """Element types of arguments, outputs and auxiliary states by name, as numpy names; None is unknown.

    Raises:
        DTypeError, UnderdeterminedError: from inference.
    """
    with graph_budget():
        inferred = infer_type(graph, query.types, partial=query.partial)
    sides = (
        [None if dtype is None else str(np.dtype(dtype)) for dtype in side]
        for side in (inferred.arg_types, inferred.out_types, inferred.aux_types)
    )
    return {**_named(graph, "types", *sides), "complete": inferred.complete}


def _named(graph: Graph, what: str, args: Any, outs: Any, aux: Any) -> dict[str, Any]:
    return {
        "arg_names": graph.argument_names,
        f"arg_{what}": list(args),
        "out_names": graph.output_names,
        f"out_{what}": list(outs),
        "aux_names": graph.auxiliary_names,
        f"aux_{what}": list(aux),
    }
