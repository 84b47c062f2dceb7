"""Graph: nodes in topological order, and heads. Immutable, so that a graph may be shared by sessions and threads.

The order is NNVM's: a depth-first post-order from the heads, inputs before their users, in the order of the inputs.
`list_arguments`, `list_auxiliary_states` and the node numbers in JSON all follow from it, equal to MXNet's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from opbox_ops.node import Entry, Node
from opbox_protocol.errors import GraphError

if TYPE_CHECKING:
    from opbox_ops.operator import Op

__all__ = ["Graph"]


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
            inputs = node.inputs
            if position < len(inputs):
                child = inputs[position].node
            elif position > len(inputs) or node.forward is None:
                ordered.append(node)
                continue
            else:
                child = node.forward
            stack.append((node, position + 1))
            if child not in seen:
                seen.add(child)
                stack.append((child, 0))
    return tuple(ordered)


class Graph:
    """An ordered, checked graph.

    Args:
        heads: the outputs, in order; the same entry may be there twice, and a variable may be a head.
        nodes: the nodes in an order of the caller's, each after its inputs; by default NNVM's.
        begins: a graph whose nodes are the first of `nodes`: what is known of these is not worked out again.
        differentiated: what gradients are of, for each head, where that is an equal node in its place.

    Attributes:
        index: the number of each node.
        row_ptr: the number of each node's first output, counted over all nodes in order; and of all outputs.
        calls: a node for each operator and parameters in the graph.
        inferred: what inference found out last, "shapes" and "types": the values of the variables, and those of all
            entries. A graph that is asked about and bound afterwards is not inferred twice.
        results: what passes have found out about the graph once and for all, by the pass's module.

    Raises:
        GraphError: two arguments share a name, or an auxiliary state is not a variable.

    Example:
        >>> Graph((Entry(fc1),)).argument_names
        ['data', 'fc1_weight', 'fc1_bias']
    """

    def __init__(
        self,
        heads: Sequence[Entry],
        nodes: Sequence[Node] | None = None,
        begins: Graph | None = None,
        differentiated: Sequence[Entry] | None = None,
    ) -> None:
        self.heads = tuple(heads)
        self.differentiated = self.heads if differentiated is None else tuple(differentiated)
        if nodes is None:
            nodes = post_order(self.heads if differentiated is None else (*self.heads, *self.differentiated))
        self.nodes = tuple(nodes)
        self.inferred: dict[str, tuple[list[Any], list[Any]]] = {}
        self.results: dict[str, object] = {}
        self._begins = begins
        if begins is None:
            self.index: dict[Node, int] = {}
            self.row_ptr = [0]
            self.calls: dict[tuple[Op, int], Node] = {}
            self._auxiliary: set[Node] = set()
        else:
            self.index, self.row_ptr = begins.index.copy(), begins.row_ptr.copy()
            self.calls, self._auxiliary = begins.calls.copy(), begins._auxiliary.copy()
        self._number(len(self.index))
        self._check_names()

    def __repr__(self) -> str:
        return f"<Graph {', '.join(self.output_names[:3])}: {len(self.nodes)} nodes>"

    def _number(self, start: int) -> None:
        """Number the nodes from `start` on, and their outputs; find out which variables are auxiliary states."""
        index, row_ptr, calls = self.index, self.row_ptr, self.calls
        # By operator and parameters: how many outputs a call has, and the positions of its auxiliary states.
        forms: dict[tuple[Op, int], tuple[int, list[int]]] = {}
        end = row_ptr[-1]
        for i, node in enumerate(self.nodes[start:] if start else self.nodes, start):
            index[node] = i
            op = node.op
            if op is None:
                end += 1
            else:
                key = (op, id(node.params))
                form = forms.get(key)
                if form is None:
                    form = forms[key] = (op.num_outputs(node.params), op.aux_indices(node.params))
                    calls.setdefault(key, node)
                end += form[0] if node.outputs is None else node.outputs
                if form[1]:
                    self._note_states(node, form[1])
            row_ptr.append(end)

    def _note_states(self, node: Node, positions: Sequence[int]) -> None:
        for i in positions:
            if i >= len(node.inputs):
                continue
            state = node.inputs[i].node
            if state.op is not None and node.op is not None:
                name = node.op.input_names(node.params)[i]
                raise GraphError(
                    f"{name} is an auxiliary state: expected a variable, got the output of {state.name!r}"
                ).at(node.name, node.op.name, node.source)
            self._auxiliary.add(state)

    @property
    def num_entries(self) -> int:
        """The number of outputs of all nodes together, hidden ones included."""
        return self.row_ptr[-1]

    def entry_id(self, entry: Entry) -> int:
        """The number of an entry, counted over all nodes in order."""
        return self.row_ptr[self.index[entry.node]] + entry.index

    @cached_property
    def reads(self) -> list[tuple[int, ...]]:
        """For each node the numbers of the entries that its rules read: its inputs, and after them `node.like`."""
        index, row_ptr = self.index, self.row_ptr
        reads = [] if self._begins is None else self._begins.reads.copy()
        for node in self.nodes[len(reads) :] if reads else self.nodes:
            inputs = node.inputs
            if node.forward is not None:
                inputs += node.like
            if len(inputs) == 1:
                child, k = inputs[0]
                reads.append((row_ptr[index[child]] + k,))
            else:
                reads.append(tuple([row_ptr[index[child]] + k for child, k in inputs]))
        return reads

    @cached_property
    def first_touching(self) -> list[int]:
        """For each entry the first operator's node whose rules read it or make it; beyond all where there is none."""
        first = [len(self.nodes)] * self.num_entries
        for i in range(len(self.nodes) - 1, -1, -1):
            if self.nodes[i].op is not None:
                for entry in self.reads[i]:
                    first[entry] = i
                for entry in range(self.row_ptr[i], self.row_ptr[i + 1]):
                    first[entry] = i
        return first

    @cached_property
    def touching(self) -> list[list[int]]:
        """For each entry the operators' nodes whose rules read it or make it, in their order."""
        touching: list[list[int]] = [[] for _ in range(self.num_entries)]
        for i, node in enumerate(self.nodes):
            if node.op is not None:
                for entry in {*self.reads[i], *range(self.row_ptr[i], self.row_ptr[i + 1])}:
                    touching[entry].append(i)
        return touching

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
    def input_names(self) -> frozenset[str]:
        """The names of arguments and auxiliary states."""
        return frozenset((*self.argument_names, *self.auxiliary_names))

    @cached_property
    def output_names(self) -> list[str]:
        """Names of the outputs as MXNet's `list_outputs` has them: `fc1_output`, `bn_mean`; a variable's own name."""
        return [head.node.output_names()[head.index] for head in self.differentiated]

    def _check_names(self) -> None:
        counts = Counter(node.name for node in self.variables)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            listed = ", ".join(repr(name) for name in twice[:5])
            raise GraphError(
                f"argument names must differ, got {listed} on several variables: rename one, or use one variable twice"
            )
