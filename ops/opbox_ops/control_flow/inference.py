"""Shape and type inference through subgraphs, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opbox_protocol.control_flow import SUBGRAPHS
from opbox_protocol.errors import ShapeError

from ..infer import ShapeList, known, show_shape, size_of
from .subgraph import SubgraphParams

__all__ = ["one_element", "through"]


def through(
    p: SubgraphParams,
    number: int,
    ins: Any,
    outs: Any,
    *,
    heads: Sequence[tuple[int, int | None]] = (),
    sliced: Sequence[int] = (),
) -> None:
    """Unify what is known of an operator's inputs and outputs with one of its subgraphs.

    Args:
        p: the operator's parameters.
        number: of the subgraph.
        ins, outs: ShapeLists or TypeLists.
        sliced: the inputs that the subgraph sees without their first axis.
        heads: for each head of the subgraph in order, the output that it is and what to know of the output's first
            axis, which the subgraph does not have; None for a head that is the output itself.
    """
    subgraph, route = p.subgraphs[number], p.routes[number]
    is_shape = isinstance(ins, ShapeList)
    inner_ins = [_slice(ins[i]) if is_shape and i in sliced else ins[i] for i in route]
    inner_outs = [_row(outs[k]) if is_shape and first is not None else outs[k] for k, first in heads]
    inner_outs += [None] * (subgraph.num_outputs - len(inner_outs))
    infer: Any = subgraph.infer_shape if is_shape else subgraph.infer_type
    inner_ins, inner_outs = infer(inner_ins, inner_outs)
    for i, value in zip(route, inner_ins, strict=True):
        ins.merge(i, _whole(value, ins[i]) if is_shape and i in sliced else value)
    for (k, first), value in zip(heads, inner_outs, strict=False):
        outs.merge(k, (first, *value) if is_shape and first is not None and value is not None else value)


def one_element(p: SubgraphParams, number: int, ins: ShapeList) -> None:
    """Infer through a subgraph that decides; its output must have one element.

    Raises:
        ShapeError: it has another number.
    """
    subgraph, route = p.subgraphs[number], p.routes[number]
    shapes, (shape,) = subgraph.infer_shape([ins[i] for i in route], [None])
    for i, inner in zip(route, shapes, strict=True):
        ins.merge(i, inner)
    if shape is not None and known(shape) and size_of(shape) != 1:
        what = SUBGRAPHS[p.op][number]
        raise ShapeError(f"{what}: expected one element to decide by, got {show_shape(shape)}")


def _row(shape: Any) -> Any:
    return None if shape is None else shape[1:]


def _slice(shape: Any) -> Any:
    """A slice of data; MXNet's arrays have one axis at least."""
    return None if shape is None else shape[1:] or (1,)


def _whole(shape: Any, data: Any) -> Any:
    """Infer the shape of data from a slice's; a slice of shape (1,) leaves data's rank open."""
    return data if shape is None or (shape == (1,) and (data is None or len(data) == 1)) else (-1, *shape)
