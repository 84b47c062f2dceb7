"""Tells whether values of a graph have the axis that counts examples, so that several requests may run as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..graph.ir import Graph
from ..graph.passes.infer_shape import infer_shape
from ..task import graph_budget

__all__ = ["keeps_examples"]


def keeps_examples(graph: Graph, shapes: Mapping[str, tuple[int, ...]], batched: Collection[str], axis: int) -> bool:
    """Whether each output of a graph has as many examples as its inputs, however many those are.

    Args:
        shapes: by argument and auxiliary state; what the graph does not read is left aside.
        batched: the names of those whose `axis` counts examples.
        axis: of inputs and outputs.

    Example:
        >>> keeps_examples(graph_of_fc1, {"data": (8, 784), "fc1_weight": (10, 784), "fc1_bias": (10,)}, ["data"], 0)
        True
    """

    def outputs(examples: int) -> list[tuple[int, ...] | None]:
        known = {
            name: (*shape[:axis], examples, *shape[axis + 1 :]) if name in batched else shape
            for name, shape in shapes.items()
            if name in graph.input_names
        }
        return infer_shape(graph, known, partial=True).out_shapes

    with graph_budget():
        # A length that happens to be the number of examples is so for one number, and not for another.
        return all(
            two is not None and three is not None and len(two) > axis and (two[axis], three[axis]) == (2, 3)
            for two, three in zip(outputs(2), outputs(3), strict=True)
        )
