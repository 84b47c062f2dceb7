"""What a monitor is shown of backward: MXNet 1.9.1's backward nodes with their inputs and outputs, in its order.

MXNet runs a graph depth first from the gradients of the arguments. A head gradient is copied by `_head_grad_0_id` in
front of its first reader, gradients that meet are added by one node `sum_grad`, and a gradient of which nothing but
zeros is known is a node of zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from opbox_ops.node import Entry, Node

from ..ir import Graph, post_order
from .mxnet_backward import LEGACY, WITHOUT_CONDITION, backward_inputs, input_labels

__all__ = ["BackwardTrace", "ShownInput", "ShownNode"]

NO_TYPE_ZEROS = "zeros_without_dtype_output"


class ShownInput(NamedTuple):
    """An input of a backward node.

    Attributes:
        label: the name that a monitor is shown.
        kind: "argument", "forward", "variable", "head" or "backward".
        value: the argument's name, the name of the operator's output, or the number of the head, whose gradient is
            read as MXNet's variable or behind the node that copies it.
        node, output: for "forward" and "backward" the node and its output.
    """

    label: str
    kind: str
    value: str | int = 0
    node: Node | None = None
    output: int = 0


@dataclass(frozen=True, slots=True)
class ShownNode:
    """A backward node of MXNet's.

    Attributes:
        inputs: see `ShownInput`.
        nodes: the nodes that compute its outputs.
        forward: the forward node that MXNet runs again, as an equal one stands for it in forward.
        head: the number of the head gradient that it copies.
        zeros: the argument whose gradient is zero, and the name of the node's output.
    """

    inputs: Sequence[ShownInput] = ()
    nodes: Sequence[Node] = ()
    forward: Node | None = None
    head: int | None = None
    zeros: tuple[str, str] | None = None


@dataclass
class BackwardTrace:
    """How the gradient pass came to its nodes.

    Attributes:
        graph: the graph that was differentiated.
        head_grads: a variable for each head.
        grads: the gradient of each wanted argument; None where it is zero.
        nodes: the backward nodes in their order.
        owners: the node that each of them belongs to the gradient of; none for sums.
        summed: the gradient of each entry.
        sums: the entry that each sum is a gradient of.
        zeroed: the node from which zeros flow into an entry, and the name of the node that makes them.
        zeros: the entry that each node of zeros is the gradient of.
    """

    graph: Graph
    head_grads: Sequence[Node]
    grads: Mapping[str, Entry | None]
    nodes: Sequence[Node]
    owners: Mapping[Node, Node]
    summed: Mapping[Entry, Entry]
    sums: Mapping[Node, Entry]
    zeroed: Mapping[Entry, tuple[Node, str]]
    zeros: Mapping[Node, Entry]

    @cached_property
    def shown(self) -> list[ShownNode]:
        """MXNet's backward nodes in its order."""
        rows: list[ShownNode] = []
        seen: set[Any] = set()
        variables = {node.name: node for node in self.graph.variables}
        for name, grad in self.grads.items():
            if grad is not None:
                self._visit(grad, seen, rows)
                continue
            reader, zeros = self.zeroed.get(Entry(variables[name]), (None, ""))
            # The backward node of an operator that has one shows zeros itself.
            if reader is not None and reader not in self._groups:
                rows.append(ShownNode(zeros=(name, zeros)))
        for node in self.nodes:
            if node in self.names and node not in self.zeros:
                self._visit(Entry(node), seen, rows)
        return rows

    @cached_property
    def names(self) -> dict[Node, list[str]]:
        """The outputs' names of backward nodes: those of one operator are counted through.

        A backward operator of MXNet's has an output for each input, for labels too; ours leave the last ones out.
        """
        outputs: Counter[Node] = Counter()
        for node in self.nodes:
            if node in self.owners:
                outputs[self.owners[node]] += self._shown_outputs(node)
        used: Counter[Node] = Counter()
        names: dict[Node, list[str]] = {}
        partial = {node.inputs[0].node for node, entry in self.sums.items() if self._adds_to(node, entry)}
        for node in self.nodes:
            owner = self.owners.get(node)
            if owner is not None:
                first = used[owner]
                used[owner] += self._shown_outputs(node)
                names[node] = _output_names(owner, range(first, used[owner]), outputs[owner])
            elif node in self.sums and node not in partial:
                names[node] = ["sum_grad_output"]
            elif node in self.zeros:
                _, name = self.zeroed.get(self.zeros[node], (node, NO_TYPE_ZEROS))
                names[node] = [name]
        return names

    def _adds_to(self, node: Node, entry: Entry) -> bool:
        """Return whether a sum adds to an earlier sum of gradients of the same entry."""
        return self.sums.get(node.inputs[0].node) == entry

    def _shown_outputs(self, node: Node) -> int:
        owner = self.owners[node]
        if node.op is None or not node.op.is_backward or owner.op is None or owner.op.name in WITHOUT_CONDITION:
            return node.num_outputs
        return max(node.num_outputs, len(owner.inputs) - len(owner.op.aux_indices(owner.params)))

    @cached_property
    def _groups(self) -> dict[Node, list[Node]]:
        groups: dict[Node, list[Node]] = {}
        for node in self.nodes:
            if node in self.owners:
                groups.setdefault(self.owners[node], []).append(node)
        return groups

    @cached_property
    def _head_numbers(self) -> dict[Node, int]:
        return {node: number for number, node in enumerate(self.head_grads)}

    @cached_property
    def _merged(self) -> frozenset[Node]:
        """The nodes for which an equal one stands in forward, and which are heads."""
        if self.graph.differentiated is self.graph.heads:
            return frozenset()
        return frozenset(head.node for head in self.graph.differentiated) - frozenset(post_order(self.graph.heads))

    def _unit(self, entry: Entry) -> Any:
        """What MXNet has one node for: an owner, a sum, a head gradient or zeros; None for forward's values."""
        node = entry.node
        if node in self.owners:
            return self.owners[node]
        if node in self._merged:
            return "forward", node
        return node if node in self._head_numbers or node in self.sums or node in self.zeros else None

    def _visit(self, start: Entry, seen: set[Any], rows: list[ShownNode]) -> None:
        """Append the rows of a gradient, those that it reads first."""
        stack: list[tuple[Entry, list[tuple[str, Entry]] | None]] = [(start, None)]
        while stack:
            entry, reads = stack.pop()
            unit = self._unit(entry)
            if reads is None:
                if unit is None or unit in seen:
                    continue
                seen.add(unit)
                reads = self._reads(unit)
                stack.append((entry, reads))
                stack += [(read, None) for _, read in reversed(reads)]
            else:
                rows.append(self._row(unit, reads))

    def _reads(self, unit: Any) -> list[tuple[str, Entry]]:
        """The inputs of MXNet's node, with the names that monitors show."""
        if isinstance(unit, tuple):
            node = unit[1]
            return [(f"{node.name}_{k}", e) for k, e in zip(node.op.input_names(node.params), node.inputs, strict=True)]
        number = self._head_numbers.get(unit)
        if number is not None:
            name = f"_head_grad_{number}"
            return [(f"{name}_id_lhs", Entry(unit)), (f"{name}_id_rhs", self.graph.heads[number])]
        if unit in self.sums:
            addends: list[Entry] = []
            node, entry = unit, self.sums[unit]
            while self._adds_to(node, entry):
                addends.append(node.inputs[1])
                node = node.inputs[0].node
            addends += [node.inputs[1], node.inputs[0]]
            return [(f"sum_grad_arg{k}", read) for k, read in enumerate(reversed(addends))]
        if unit in self.zeros:
            return []
        return self._operator_reads(unit)

    def _operator_reads(self, owner: Node) -> list[tuple[str, Entry]]:
        assert owner.op is not None
        outputs = owner.entries()
        zeros = {entry: Entry(node) for node, entry in self.zeros.items()}
        listed = backward_inputs(owner.op.name, owner.attrs, len(outputs), len(owner.inputs))
        labels = input_labels(owner.op.name, listed)
        reads = []
        for label, (kind, k) in zip(labels, listed, strict=True):
            entry: Entry | None = None
            if kind == "i":
                entry = owner.inputs[k] if k < len(owner.inputs) else None
            elif k < len(outputs):
                entry = outputs[k] if kind == "o" else self.summed.get(outputs[k], zeros.get(outputs[k]))
            if entry is not None:
                reads.append((f"{owner.name}_backward_{label}", entry))
        return reads

    def _row(self, unit: Any, reads: Sequence[tuple[str, Entry]]) -> ShownNode:
        inputs = [self._input(label, entry, unit) for label, entry in reads]
        if isinstance(unit, tuple):
            return ShownNode(inputs, forward=unit[1])
        number = self._head_numbers.get(unit)
        if number is not None:
            return ShownNode(inputs, head=number)
        return ShownNode(inputs, self._groups.get(unit, [unit]))

    def _input(self, label: str, entry: Entry, reader: Any) -> ShownInput:
        node, index = entry
        number = self._head_numbers.get(node)
        if number is not None:
            # The copying node reads the variable itself.
            return ShownInput(label, "head", number) if node is not reader else ShownInput(label, "variable", number)
        if node in self.graph.index:
            if node.op is None:
                return ShownInput(label, "argument", node.name)
            return ShownInput(label, "forward", node.output_names()[index], node, index)
        return ShownInput(label, "backward", 0, node, index)


def _output_names(owner: Node, numbers: Sequence[int], count: int) -> list[str]:
    """Names of outputs of an operator's backward node, of which there are `count`."""
    assert owner.op is not None
    if owner.op.name in LEGACY:
        states = owner.op.aux_indices(owner.params)
        inputs = [name for k, name in enumerate(owner.op.input_names(owner.params)) if k not in states]
        if count <= len(inputs):
            return [f"{owner.name}_backward_{inputs[number]}" for number in numbers]
    return [f"{owner.name}_backward_output{number if count > 1 else ''}" for number in numbers]
