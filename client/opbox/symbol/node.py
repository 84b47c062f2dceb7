"""The graph under a symbol: nodes that know their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from .._schema import Operator

__all__ = ["Entry", "Node", "copied", "ordered"]


class Node:
    """An operator call, or a variable (whose `op` is None).

    Attributes:
        op: the operator.
        name: unique among variables.
        attrs: parameters and hidden attributes, as strings.
        inputs: what it reads: (node, output), auxiliary states included.
        source: the user's line that made it.
    """

    __slots__ = ("attrs", "inputs", "name", "op", "source")

    def __init__(
        self, op: Operator | None, name: str, attrs: dict[str, str], inputs: list[Entry], source: str | None = None
    ) -> None:
        self.op = op
        self.name = name
        self.attrs = attrs
        self.inputs = inputs
        self.source = source

    def aux(self) -> frozenset[int]:
        """Positions of auxiliary states among the inputs."""
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
        copies[id(node)] = (Node(node.op, node.name, dict(node.attrs), inputs, node.source), 0)
    return [(copies[id(node)][0], copies[id(node)][1] + index) for node, index in heads]
