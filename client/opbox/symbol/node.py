"""The graph under a symbol: nodes that know their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from opbox_protocol.collector import collection_paused
from opbox_protocol.control_flow import aux_inputs, wiring
from opbox_protocol.mxnet import attribute_value, head_copy_name

from .. import _schema
from .._schema import Operator

__all__ = ["Entry", "Node", "copied", "merged", "ordered", "subgraph_states", "with_subgraphs"]


class Node:
    """An operator call, or a variable (whose `op` is None).

    Attributes:
        op: the operator.
        name: unique among variables.
        attrs: parameters and hidden attributes, as strings.
        inputs: what it reads: (node, output), auxiliary states included.
        source: the user's line that made it.
        subgraphs: the heads of the graphs that a control-flow operator runs; never changed.
    """

    __slots__ = ("attrs", "inputs", "name", "op", "source", "subgraphs")

    def __init__(
        self,
        op: Operator | None,
        name: str,
        attrs: dict[str, str],
        inputs: list[Entry],
        source: str | None = None,
        subgraphs: Sequence[Sequence[Entry]] = (),
    ) -> None:
        self.op = op
        self.name = name
        self.attrs = attrs
        self.inputs = inputs
        self.source = source
        self.subgraphs = subgraphs

    def aux(self) -> frozenset[int]:
        """Positions of auxiliary states among the inputs."""
        if self.subgraphs and self.op is not None:
            return subgraph_states(self.op, self.attrs, self.subgraphs)
        return self.op.aux_indices(self.attrs) if self.op is not None else frozenset()

    def num_outputs(self) -> int:
        """Outputs, hidden ones included."""
        return self.op.num_outputs(self.attrs) if self.op is not None else 1

    def visible_outputs(self) -> int:
        """Outputs that others may use."""
        return self.op.visible_outputs(self.attrs) if self.op is not None else 1

    def output_name(self, index: int) -> str:
        """The name of an output: `fc1_output`; a variable's own."""
        return self.name if self.op is None else f"{self.name}_{self.op.output_names(self.attrs)[index]}"


Entry: TypeAlias = tuple[Node, int]


@collection_paused()
def ordered(heads: Iterable[Entry]) -> list[Node]:
    """All nodes that the heads need, inputs before users: depth first, in the order of the inputs."""
    seen: set[int] = set()
    nodes: list[Node] = []
    for head, _ in heads:
        if id(head) in seen:
            continue
        seen.add(id(head))
        stack: list[tuple[Node, Iterator[Entry]]] = [(head, iter(head.inputs))]
        while stack:
            node, rest = stack[-1]
            for child, _ in rest:
                if id(child) not in seen:
                    seen.add(id(child))
                    stack.append((child, iter(child.inputs)))
                    break
            else:
                nodes.append(node)
                stack.pop()
    return nodes


def subgraph_states(op: Operator, attrs: Mapping[str, str], subgraphs: Sequence[Sequence[Entry]]) -> frozenset[int]:
    """Positions of the inputs of a control-flow operator that are auxiliary states inside.

    Raises:
        GraphError: the operator's positions do not fit its subgraphs.
    """
    variables, states = [], []
    for heads in subgraphs:
        nodes = ordered(heads)
        written = {id(node.inputs[i][0]) for node in nodes for i in node.aux()}
        variables.append([node for node in nodes if node.op is None])
        states.append([k for k, node in enumerate(variables[-1]) if id(node) in written])
    locs = {key: _positions(text) for key, text in attrs.items() if key.endswith("_locs")}
    return aux_inputs(wiring(op.name, locs, [len(nodes) for nodes in variables]), states)


def with_subgraphs(nodes: Iterable[Node]) -> list[Node]:
    """The nodes, each after those of its subgraphs."""
    every: list[Node] = []
    for node in nodes:
        for heads in node.subgraphs:
            every += with_subgraphs(ordered(heads))
        every.append(node)
    return every


def _positions(text: str) -> tuple[int, ...]:
    value = attribute_value(text)
    return value if isinstance(value, tuple) else (value,)


@collection_paused()
def copied(heads: Iterable[Entry], replaced: dict[str, Entry] | None = None) -> list[Entry]:
    """The heads of a copy of the graph; variables named in `replaced` give way to what is given for them."""
    heads = list(heads)
    copies: dict[int, Entry] = {}
    for node in ordered(heads):
        if node.op is None and replaced is not None and node.name in replaced:
            copies[id(node)] = replaced[node.name]
            continue
        inputs = []
        for child, index in node.inputs:
            copy, first = copies[id(child)]
            inputs.append((copy, first + index))
        copies[id(node)] = (Node(node.op, node.name, dict(node.attrs), inputs, node.source, node.subgraphs), 0)
    return [(copies[id(node)][0], copies[id(node)][1] + index) for node, index in heads]


def merged(nodes: Sequence[Node], stands: Mapping[int, int], heads: Iterable[tuple[int, int, int]]) -> list[Entry]:
    """The heads of a copy of the graph in which some nodes stand for others, as an engine has merged it.

    Args:
        nodes: all nodes, in the order of files.
        stands: by the number of each node that is gone, the number of the node that stands for it.
        heads: number of a node, output, and how many copies (`_copy`) lie one behind the other in front of the head.
    """
    numbers = {id(node): number for number, node in enumerate(nodes)}
    copies: list[Node] = []
    for number, node in enumerate(nodes):
        if number in stands:
            copies.append(copies[stands[number]])
        elif node.op is None:
            copies.append(node)
        else:
            inputs = [(copies[numbers[id(child)]], index) for child, index in node.inputs]
            copies.append(Node(node.op, node.name, node.attrs, inputs, node.source, node.subgraphs))
    copy, entries = _schema.get("_copy"), []
    behind: dict[tuple[int, int], Node] = {}
    for number, index, count in heads:
        entry = (copies[number], index)
        for _ in range(count):
            key = (id(entry[0]), entry[1])
            behind[key] = behind.get(key) or Node(copy, head_copy_name(entry[0].name), {}, [entry])
            entry = (behind[key], 0)
        entries.append(entry)
    return entries
