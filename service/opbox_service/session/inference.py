"""What inference answers, with or without a session: names, and shapes or types in their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opbox_protocol.errors import BadRequestError

from ..graph.ir import Graph
from ..graph.passes.infer_shape import infer_shape
from ..graph.passes.infer_type import infer_type

__all__ = ["shapes_told", "types_told"]


def shapes_told(graph: Graph, given: Mapping[str, Any], *, partial: bool, trace: bool, max_rank: int) -> dict[str, Any]:
    """Shapes of arguments, outputs and auxiliary states; -1 and None are unknown.

    Raises:
        BadRequestError: a given shape is none.
        ShapeError, UnderdeterminedError: from inference.
    """
    for name, shape in given.items():
        if shape is not None and not (isinstance(shape, list) and all(type(d) is int for d in shape)):
            raise BadRequestError(f"shapes: {name!r}: expected a list of integers or null, got {shape!r}")
        if shape is not None and len(shape) > max_rank:
            raise BadRequestError(f"shapes: {name!r}: expected at most {max_rank} dimensions, got {len(shape)}")
    steps: list[dict[str, Any]] | None = [] if trace else None
    shapes = {name: None if shape is None else tuple(shape) for name, shape in given.items()}
    found = infer_shape(graph, shapes, partial=partial, trace=steps)
    sides = (
        [None if each is None else list(each) for each in side]
        for side in (found.arg_shapes, found.out_shapes, found.aux_shapes)
    )
    told = _named(graph, "shapes", *sides)
    told["complete"] = found.complete
    if steps is not None:
        told["trace"] = steps
    return told


def types_told(graph: Graph, given: Mapping[str, Any], *, partial: bool) -> dict[str, Any]:
    """Element types of arguments, outputs and auxiliary states, as numpy names; None is unknown.

    Raises:
        DTypeError, UnderdeterminedError: from inference.
    """
    found = infer_type(graph, given, partial=partial)
    sides = (
        [None if each is None else str(np.dtype(each)) for each in side]
        for side in (found.arg_types, found.out_types, found.aux_types)
    )
    return {**_named(graph, "types", *sides), "complete": found.complete}


def _named(graph: Graph, what: str, args: Any, outs: Any, aux: Any) -> dict[str, Any]:
    return {
        "arg_names": graph.argument_names,
        f"arg_{what}": list(args),
        "out_names": graph.output_names,
        f"out_{what}": list(outs),
        "aux_names": graph.auxiliary_names,
        f"aux_{what}": list(aux),
    }
