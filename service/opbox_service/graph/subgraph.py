"""A graph inside a node, as its operator sees it: inference through it, and which heads depend on which variables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any

from cachetools import LRUCache

from opbox_ops import registry
from opbox_ops.control_flow.subgraph import CompiledSubgraph, Subgraph
from opbox_ops.infer import DType, Shape
from opbox_ops.node import Entry, Node
from opbox_ops.params import NoParams

from .ir import Graph
from .passes.infer_shape import infer_shape
from .passes.infer_type import infer_type

__all__ = ["GraphSubgraph", "is_stateful", "subgraphs_of"]

INFERENCES = 64
"""Number of inference results to cache per subgraph."""
PLANS = 16
"""Number of plans to cache per subgraph, one per shapes, types and wanted gradients."""


class GraphSubgraph(Subgraph):
    """See Subgraph.

    Attributes:
        graph: as it came.
        bodies: its plans.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.inputs = tuple(node.name for node in graph.variables)
        states = set(graph.auxiliary_states)
        self.states = frozenset(k for k, node in enumerate(graph.variables) if node in states)
        self.num_outputs = len(graph.heads)
        self.stateful = any(map(is_stateful, graph.nodes))
        self.bodies: LRUCache[Any, CompiledSubgraph] = LRUCache(PLANS)
        self._shapes: LRUCache[Any, Any] = LRUCache(INFERENCES)
        self._types: LRUCache[Any, Any] = LRUCache(INFERENCES)
        self._flows: dict[frozenset[int], frozenset[int]] = {}
        self._lock = Lock()

    @cached_property
    def runnable(self) -> Graph:
        """The graph with heads that are neither variables nor the same twice: each has an array of its own."""
        seen: set[Entry] = set()
        heads = []
        for head in self.graph.heads:
            if head.node.op is None or head in seen:
                name = f"{head.node.output_names()[head.index]}_copy"
                copy = Node(registry.get("_copy"), name, {}, NoParams(), (head,), source=head.node.source)
                head = Entry(copy)
            seen.add(head)
            heads.append(head)
        return Graph(heads)

    def infer_shape(self, ins: Sequence[Shape], outs: Sequence[Shape]) -> tuple[list[Shape], list[Shape]]:
        def infer() -> tuple[list[Shape], list[Shape]]:
            shapes = infer_shape(self.graph, dict(zip(self.inputs, ins, strict=True)), partial=True, outs=outs)
            return [shapes.of(Entry(node)) for node in self.graph.variables], shapes.out_shapes

        answer: tuple[list[Shape], list[Shape]] = self._remembered(self._shapes, ins, outs, infer)
        return answer

    def infer_type(self, ins: Sequence[DType], outs: Sequence[DType]) -> tuple[list[DType], list[DType]]:
        def infer() -> tuple[list[DType], list[DType]]:
            types = infer_type(self.graph, dict(zip(self.inputs, ins, strict=True)), partial=True, outs=outs)
            return [types.of(Entry(node)) for node in self.graph.variables], types.out_types

        answer: tuple[list[DType], list[DType]] = self._remembered(self._types, ins, outs, infer)
        return answer

    def _remembered(
        self, answers: LRUCache[Any, Any], ins: Sequence[Any], outs: Sequence[Any], infer: Callable[[], Any]
    ) -> Any:
        key = tuple(ins), tuple(outs)
        with self._lock:
            answer = answers.get(key)
        if answer is None:
            answer = infer()
            with self._lock:
                answers[key] = answer
        return list(answer[0]), list(answer[1])

    def flow(self, variables: frozenset[int]) -> frozenset[int]:
        if variables not in self._flows:
            reached = {self.graph.variables[k] for k in variables}
            for node in self.graph.nodes:
                if any(entry.node in reached for entry in node.inputs):
                    reached.add(node)
            heads = enumerate(self.graph.heads)
            self._flows[variables] = frozenset(k for k, head in heads if head.node in reached)
        return self._flows[variables]


def subgraphs_of(node: Node) -> tuple[GraphSubgraph, ...]:
    """The graphs inside a node."""
    return getattr(node.params, "subgraphs", ())


def is_stateful(node: Node) -> bool:
    """Return whether an operator, or one in its subgraphs, keeps a state for backward that is not an array."""
    if node.op is None or node.op.get_attr("FCreateOpState") is None:
        return False
    inside = subgraphs_of(node)
    return not inside or any(subgraph.stateful for subgraph in inside)
