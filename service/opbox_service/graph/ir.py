"""Graph: nodes in topological order, and heads. Immutable, so that a graph may be shared by sessions and threads.

The order is NNVM's: a depth-first post-order from the heads, inputs before their users, in the order of the inputs.
`list_arguments`, `list_auxiliary_states` and the node numbers in JSON all follow from it, equal to MXNet's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from opbox_ops.node import Entry, Node
from opbox_protocol.errors import GraphError

__all__ = ["Graph", "post_order"]


def post_order(heads: Iterable[Entry]) -> tuple[Node, ...]:
    """The nodes that `heads` need, each after its inputs, in NNVM's order; a backward node needs its forward node."""
    ordered: list[Node] = []
    seen: set[Node] = set()
    for head in heads:
        if head.node in seen:
            continue
        seen.add(head.node)
        stack = [(head.node, 0)]
        while stack:
            node, position = stack.pop()
            if position > len(node.inputs) or (position == len(node.inputs) and node.forward is None):
                ordered.append(node)
                continue
            stack.append((node, position + 1))
            child = node.inputs[position].node if position < len(node.inputs) else node.forward
            assert child is not None
            if child not in seen:
                seen.add(child)
                stack.append((child, 0))
    return tuple(ordered)


class Graph:
    """An ordered, checked graph.

    Args:
        heads: the outputs, in order; the same entry may be there twice, and a variable may be a head.
        nodes: the nodes in an order of the caller's, each after its inputs; by default NNVM's.

    Attributes:
        inferred: what inference found out last, "shapes" and "types": the values of the variables, and those of all
            entries. A graph that is asked about and bound afterwards is not inferred twice.

    Raises:
        GraphError: two arguments share a name, or an auxiliary state is not a variable.

    Example:
        >>> Graph((Entry(fc1),)).argument_names
        ['data', 'fc1_weight', 'fc1_bias']
    """

    def __init__(self, heads: Sequence[Entry], nodes: Sequence[Node] | None = None) -> None:
        self.heads = tuple(heads)
        self.nodes = post_order(self.heads) if nodes is None else tuple(nodes)
        self.index = {node: i for i, node in enumerate(self.nodes)}
        self.inferred: dict[str, tuple[list[Any], list[Any]]] = {}
        self.row_ptr = [0]
        for node in self.nodes:
            self.row_ptr.append(self.row_ptr[-1] + node.num_outputs)
        self._auxiliary = self._find_auxiliary()
        self._check_names()

    def __repr__(self) -> str:
        return f"<Graph {', '.join(self.output_names[:3])}: {len(self.nodes)} nodes>"

    @property
    def num_entries(self) -> int:
        """How many outputs all nodes have together, hidden ones included."""
        return self.row_ptr[-1]

    def entry_id(self, entry: Entry) -> int:
        """The number of an entry, counted over all nodes in order."""
        return self.row_ptr[self.index[entry.node]] + entry.index

    @cached_property
    def touched(self) -> tuple[list[list[int]], list[list[int]]]:
        """What rules run over: for each node the entries that its rule reads, for each entry the nodes that touch it.

        A rule reads the node's inputs, and after them those of `node.like`; a node touches these and its outputs.
        """
        index, row_ptr = self.index, self.row_ptr
        reads: list[list[int]] = []
        touching: list[list[int]] = [[] for _ in range(self.num_entries)]
        for i, node in enumerate(self.nodes):
            entries = [row_ptr[index[entry.node]] + entry.index for entry in node.inputs]
            if node.forward is not None:
                entries += [self.entry_id(entry) for entry in node.like]
            reads.append(entries)
            if node.op is not None:
                for entry in {*entries, *range(row_ptr[i], row_ptr[i + 1])}:
                    touching[entry].append(i)
        return reads, touching

    @cached_property
    def variables(self) -> list[Node]:
        """Arguments and auxiliary states, in order."""
        return [node for node in self.nodes if node.op is None]

    @cached_property
    def arguments(self) -> list[Node]:
        """The variables that are read only, in MXNet's `list_arguments` order."""
        return [node for node in self.variables if node not in self._auxiliary]

    @cached_property
    def auxiliary_states(self) -> list[Node]:
        """The variables that an operator writes in forward, in MXNet's `list_auxiliary_states` order."""
        return [node for node in self.variables if node in self._auxiliary]

    @cached_property
    def argument_names(self) -> list[str]:
        return [node.name for node in self.arguments]

    @cached_property
    def auxiliary_names(self) -> list[str]:
        return [node.name for node in self.auxiliary_states]

    @cached_property
    def output_names(self) -> list[str]:
        """As MXNet's `list_outputs`: `fc1_output`, `bn_mean`; a variable's is its own name."""
        return [head.node.output_names()[head.index] for head in self.heads]

    def _find_auxiliary(self) -> set[Node]:
        states: set[Node] = set()
        for node in self.nodes:
            if node.op is None:
                continue
            for i in node.op.aux_indices(node.params):
                if i >= len(node.inputs):
                    continue
                state = node.inputs[i].node
                if state.op is not None:
                    name = node.op.input_names(node.params)[i]
                    raise GraphError(
                        f"{name} is an auxiliary state: expected a variable, got the output of {state.name!r}"
                    ).at(node.name, node.op.name, node.source)
                states.add(state)
        return states

    def _check_names(self) -> None:
        counts = Counter(node.name for node in self.variables)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            listed = ", ".join(repr(name) for name in twice[:5])
            raise GraphError(
                f"argument names must differ, got {listed} on several variables: rename one, or use one variable twice"
            )
