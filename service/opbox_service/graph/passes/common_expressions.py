"""The pass that merges common expressions: equal calls on the same inputs become one node, as in MXNet 1.9.1.

Two nodes are equal when operator, inputs and all attributes as they were written are equal: `2` and `2.0` differ, and
so do hidden attributes such as `__lr_mult__`. The first one in the graph's order stands for the others. Nodes that draw
random numbers, have a state or write to an auxiliary state stay apart, and so do nodes without inputs and the operators
that MXNet itself keeps apart.

A head never loses its array: a head that has become another one's equal reads a copy of it. Gradients are those of the
heads as they were, so that the sums of gradients have MXNet's order, and its bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from opbox_ops import registry
from opbox_ops.node import Entry, Node
from opbox_ops.params import NoParams
from opbox_protocol.mxnet import head_copy_name

from ...task import NODES, checkpoint
from ..ir import Graph
from .mxnet_backward import LEGACY

__all__ = ["CommonExpressions", "merge_common_expressions"]

NO_PARAMS = NoParams()
KEPT_APART = LEGACY | {"_contrib_dequantize"}
DETERMINISTIC = frozenset(["LeakyReLU"])
"""Operators that MXNet merges though they may draw random numbers: `rrelu` draws once for all."""


@dataclass(frozen=True, slots=True)
class CommonExpressions:
    """What the pass has made of a graph.

    Attributes:
        graph: the new graph; the old one where nothing was merged.
        merged: by the number of each node that is gone, the number of the node that stands for it; of the old graph.
        heads: the heads of the new graph: number of a node of the old graph, output, and how often it is copied.
    """

    graph: Graph
    merged: dict[int, int]
    heads: list[tuple[int, int, int]]


def merge_common_expressions(graph: Graph) -> CommonExpressions:
    """Return `graph` with equal calls merged; it is worked out once for each graph, in time linear in its nodes."""
    if __name__ in graph.results:
        answer = graph.results[__name__]
    else:
        answer = graph.results[__name__] = _Merging(graph).run()
    # Of itself a graph keeps nothing: what refers to itself stays until the collector has looked at all that there is.
    return answer if isinstance(answer, CommonExpressions) else CommonExpressions(graph, {}, [])


class _Merging:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.new: dict[Node, Node] = {}
        """The node with new inputs by the old one."""
        self.stands: dict[Node, Node] = {}
        """The new node that readers of an old one read."""
        self.calls: dict[tuple[int, tuple[Entry, ...]], Node] = {}
        self.alike: dict[tuple[int, tuple[Entry, ...]], dict[frozenset[tuple[str, str]], Node]] = {}
        """The nodes of calls on inputs that several nodes of the operator have, by their attributes."""
        self.mergeable: dict[tuple[int, int], bool] = {}
        self.copy = registry.get("_copy")
        self.copies: dict[Entry, tuple[Entry, int]] = {}
        """By copy of a head the entry that it is copied from, and by how many copies one after the other."""

    def run(self) -> CommonExpressions | None:
        """Merge; None where no calls are equal."""
        merged: dict[int, int] = {}
        numbers: dict[Node, int] = {}
        for i, node in enumerate(self.graph.nodes):
            if not i % NODES:
                checkpoint(NODES)
            new = self._with_new_inputs(node)
            first = self._first(new) if new.inputs and self._may_merge(new) else new
            self.new[node], self.stands[node] = new, first
            if first is new:
                numbers[new] = i
            else:
                merged[i] = numbers[first]
        if not merged:
            return None
        heads = self._heads()
        bases = [self.copies.get(head, (head, 0)) for head in heads]
        places = [(numbers[base.node], base.index, count) for base, count in bases]
        differentiated = [Entry(self.new[head.node], head.index) for head in self.graph.heads]
        return CommonExpressions(Graph(heads, differentiated=differentiated), merged, places)

    def _heads(self) -> list[Entry]:
        """The new heads, all of them different."""
        heads: dict[Entry, None] = {}
        behind: dict[Entry, Entry] = {}
        """By head an entry behind it in its chain of copies."""
        for head in self.graph.heads:
            entry = Entry(self.stands[head.node], head.index)
            chain = []
            while entry in heads:
                chain.append(entry)
                entry = behind.get(entry) or self._copy(entry)
            behind.update(dict.fromkeys(chain, entry))
            heads[entry] = None
        return list(heads)

    def _copy(self, entry: Entry) -> Entry:
        new = Node(self.copy, head_copy_name(entry.node.name), {}, NO_PARAMS, (entry,), source=entry.node.source)
        copy = Entry(self._first(new))
        if copy.node is new:
            base, count = self.copies.get(entry, (entry, 0))
            self.copies[copy] = base, count + 1
        return copy

    def _with_new_inputs(self, node: Node) -> Node:
        stands = self.stands
        for child, _ in node.inputs:
            if stands[child] is not child:
                return replace(node, inputs=tuple([Entry(stands[child], k) for child, k in node.inputs]))
        return node

    def _may_merge(self, node: Node) -> bool:
        op = node.op
        assert op is not None
        key = (id(op), id(node.params))
        answer = self.mergeable.get(key)
        if answer is None:
            apart = any(op.get_attr(name) for name in ("FCreateOpState", "TUserCode", "TSubgraphs"))
            apart = apart or bool(op.get_attr("TRandom") and op.name not in DETERMINISTIC)
            answer = not apart and op.name not in KEPT_APART and not op.aux_indices(node.params)
            self.mergeable[key] = answer
        return answer

    def _first(self, node: Node) -> Node:
        """Return the first node that is equal to `node`, which is itself where there is none before it."""
        call = (id(node.op), node.inputs)
        before = self.calls.setdefault(call, node)
        if before is node:
            return node
        alike = self.alike.get(call)
        if alike is None:
            alike = self.alike[call] = {frozenset(before.attrs.items()): before}
        return alike.setdefault(frozenset(node.attrs.items()), node)
