"""Shapes and types of the backward half of a graph, from those of the forward half, by the same rules.

    backward = gradient(graph, ["weight"])
    shapes, types = infer_backward(backward, graph.heads, infer_shape(graph, ...), infer_type(graph, ...))
    shapes.of(backward.grads["weight"])

A gradient's shape follows from what is known already, so one walk over the nodes in their order settles everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from opbox_ops.infer import DType, Shape
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import MXNetError

from .fixpoint import Rules, failed_rule, tell
from .gradient import Gradient
from .infer_shape import Shapes, apply_shape_rule
from .infer_type import Types, apply_type_rule

__all__ = ["infer_backward"]

Rule = Callable[[Node, Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]


def infer_backward(backward: Gradient, heads: Sequence[Entry], shapes: Shapes, types: Types) -> tuple[Shapes, Types]:
    """Shapes and types of all entries of `backward.graph`.

    Args:
        backward: the graph with its gradients.
        heads: the heads of the graph that was differentiated: a head gradient has its head's shape and type.
        shapes, types: of that graph's entries.

    Raises:
        ShapeError, DTypeError: a rule objects; it tells the node and the user's line.
    """
    like = dict(zip(backward.head_grads, heads, strict=True))
    every_shape: list[Shape] = _extend(backward, like, shapes.entries, apply_shape_rule)
    every_type: list[DType] = _extend(backward, like, types.entries, apply_type_rule)
    graph = backward.graph

    def of(values: list[Any], entries: Sequence[Entry]) -> list[Any]:
        return [values[graph.entry_id(entry)] for entry in entries]

    arguments = [Entry(node) for node in graph.arguments]
    states = [Entry(node) for node in graph.auxiliary_states]
    return (
        Shapes(graph, of(every_shape, arguments), of(every_shape, graph.heads), of(every_shape, states), every_shape),
        Types(graph, of(every_type, arguments), of(every_type, graph.heads), of(every_type, states), every_type),
    )


def _extend(backward: Gradient, like: dict[Node, Entry], forward: Sequence[Any], rule: Rule) -> list[Any]:
    """The values of all entries: the forward graph's entries have the same numbers in both graphs."""
    graph, values, rules = backward.graph, list(forward), Rules(rule, lambda value: value is not None)
    row_ptr = graph.row_ptr
    for i, node in enumerate(graph.nodes[backward.forward :], backward.forward):
        if node.op is None:
            values.append(values[graph.entry_id(like[node])])
            continue
        ins = tuple([values[k] for k in graph.reads[i]])
        outs = (None,) * (row_ptr[i + 1] - row_ptr[i])
        try:
            learnt = rules.run(node, ins, outs).outs
            values += outs
            for k, value in learnt:
                values[row_ptr[i] + k] = value
        except MXNetError as error:
            raise tell(error, node) from None
        except Exception as error:
            raise tell(failed_rule(error, ", ".join(map(str, ins))), node) from error
    return values
