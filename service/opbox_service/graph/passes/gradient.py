"""The gradient pass: reverse-mode differentiation that builds a graph, in NNVM's manner.

Nodes are visited in reverse topological order. Each operator's FGradient makes nodes from the gradients of its
outputs; gradients that meet at an entry are added as they arrive, in place. What the wanted gradients do not need is
dropped at the end, so a head gradient is required only where an operator really reads it: SoftmaxOutput and MakeLoss
ignore theirs.

The result is a Graph like any other: passes run on it, shapes and types are inferred by the same rules, and it may be
differentiated again.

Zeros are lazy: an output that nothing flows into gets a node of zeros, which survives only if an operator needs it
beside a real gradient. A backward node that read nothing but such zeros is zero itself (backward operators are linear
in the output gradients); an operator whose backward is not says so by the attribute `TNonlinearGradient`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opbox_ops import registry
from opbox_ops.gradient import ZERO
from opbox_ops.node import Entry, Node
from opbox_ops.params import NoParams
from opbox_protocol.errors import UnsupportedError

from ...task import NODES, checkpoint
from ..ir import Graph
from .backward_trace import BackwardTrace

__all__ = ["Gradient", "gradient"]

NO_PARAMS = NoParams()


@dataclass(frozen=True, slots=True)
class Gradient:
    """A graph with its gradients.

    Attributes:
        graph: the nodes of the graph that was differentiated, in their order, then the head gradients that are needed,
            then the backward nodes in the order they are to run; its heads are the gradients, without those that are
            zero. Every variable but the head gradients is the forward graph's.
        forward: how many of its nodes are the forward graph's: the first ones.
        head_grads: a variable for each head, named `head_grad:` and the head.
        needed: the numbers of the heads whose gradients backward must be given.
        grads: the gradient of each wanted argument; None where it is zero.
        trace: what monitors are shown of it, under MXNet's names.
    """

    graph: Graph
    forward: int
    head_grads: tuple[Node, ...]
    needed: tuple[int, ...]
    grads: dict[str, Entry | None]
    trace: BackwardTrace

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The backward nodes."""
        return tuple(node for node in self.graph.nodes[self.forward :] if node.op is not None)


def gradient(graph: Graph, wrt: Sequence[str]) -> Gradient:
    """The gradients of the heads of `graph`, weighted by head gradients, with respect to the arguments `wrt`.

    Raises:
        UnsupportedError: a path to a wanted argument leads through an operator without FGradient.
    """
    return _Pass(graph, wrt).run()


class _Pass:
    def __init__(self, graph: Graph, wrt: Sequence[str]) -> None:
        self.graph = graph
        self.wrt = list(wrt)
        self.new_nodes: list[Node] = []
        self.sum = registry.get("_grad_add")
        self.summed: dict[Entry, Entry] = {}
        self.zeros: dict[Entry, Entry] = {}
        self.zero_nodes: set[Node] = set()
        self.known: set[Node] = set(graph.nodes)
        self.owners: dict[Node, Node] = {}
        self.sums: dict[Node, Entry] = {}
        self.zeroed: dict[Entry, tuple[Node, str]] = {}
        """By entry that zeros flow into: from which node, and the name of MXNet's node of zeros."""
        self.reaching = self._nodes_reaching(set(wrt))

    def run(self) -> Gradient:
        head_grads = tuple(Node(None, name) for name in self._head_names())
        for head, node in zip(self.graph.differentiated, head_grads, strict=True):
            self.known.add(node)
            self._add(head, Entry(node))
        for i, node in enumerate(reversed(self.graph.nodes)):
            if not i % NODES:
                checkpoint(NODES)
            if node.op is not None and node in self.reaching:
                self._visit(node)
        variables = {node.name: node for node in self.graph.variables}
        grads = {name: self._real(self.summed.get(Entry(variables[name]))) for name in self.wrt}
        heads = [entry for entry in grads.values() if entry is not None]
        nodes = self._alive(heads)
        read = {entry.node for node in nodes for entry in node.inputs}
        read.update(entry.node for entry in heads)
        needed = tuple(i for i, node in enumerate(head_grads) if node in read)
        graph = Graph(heads, (*self.graph.nodes, *(head_grads[i] for i in needed), *nodes), begins=self.graph)
        zeros = {entry.node: of for of, entry in self.zeros.items()}
        trace = BackwardTrace(
            self.graph, head_grads, grads, nodes, self.owners, self.summed, self.sums, self.zeroed, zeros
        )
        return Gradient(graph, len(self.graph.nodes), head_grads, needed, grads, trace)

    def _head_names(self) -> list[str]:
        """`head_grad:` and the head's name; numbered where two heads have one name, or a variable has it already."""
        taken = {node.name for node in self.graph.variables}
        counts: Counter[str] = Counter()
        names = []
        for name in self.graph.output_names:
            wanted = f"head_grad:{name}"
            while wanted in taken:
                counts[name] += 1
                wanted = f"head_grad:{name}:{counts[name]}"
            taken.add(wanted)
            names.append(wanted)
        return names

    def _nodes_reaching(self, wanted: set[str]) -> set[Node]:
        """The nodes that a wanted argument flows into: the others need no gradient."""
        reaching: set[Node] = set()
        for node in self.graph.nodes:
            if node.op is None:
                if node.name in wanted:
                    reaching.add(node)
                continue
            for child, _ in node.inputs:
                if child in reaching:
                    reaching.add(node)
                    break
        return reaching

    def _visit(self, node: Node) -> None:
        assert node.op is not None
        entries = node.entries()
        arrived = [self.summed.get(entry) for entry in entries]
        rule = node.op.get_attr("FGradient")
        # A backward operator is linear in what flows into it.
        if (rule is None or node.op.is_backward) and all(self._real(entry) is None for entry in arrived):
            self._note_zeroed(node, [None] * len(node.inputs))
            return
        if rule is None:
            what = "gradient of the operator" if node.op.is_backward else "operator"
            raise UnsupportedError(f"the {what} has no gradient: use BlockGrad to stop the gradient before it").at(
                node.name, node.op.name, node.source
            )
        grads = rule(node, [self._zero(e) if grad is None else grad for e, grad in zip(entries, arrived, strict=True)])
        if len(grads) != len(node.inputs):
            raise UnsupportedError(
                f"its gradient rule returned {len(grads)} entries: expected one for each of {len(node.inputs)} inputs"
            ).at(node.name, node.op.name, node.source)
        fresh: list[Node] = []
        for grad in grads:
            if grad is not None and grad.node not in self.known:
                self._know(grad.node, fresh)
        self.new_nodes += fresh
        self.owners.update((one, node) for one in fresh if one.op is not None and one.op.name != ZERO.name)
        # As MXNet has it: where nothing at all flows into one output, zeros of another are no reason to stop.
        whole = all(entry in self.zeroed or grad is not None for entry, grad in zip(entries, arrived, strict=True))
        if self.zero_nodes and whole and not node.op.get_attr("TNonlinearGradient"):
            self._note_zeros(fresh)
        self._note_zeroed(node, grads)
        for entry, grad in zip(node.inputs, grads, strict=True):
            if grad is not None and entry.node in self.reaching and grad.node not in self.zero_nodes:
                self._add(entry, grad)

    def _note_zeroed(self, node: Node, grads: Sequence[Entry | None]) -> None:
        """Note the inputs of a node into which nothing but zeros flows from it."""
        for k, (entry, grad) in enumerate(zip(node.inputs, grads, strict=True)):
            if grad is None or grad.node in self.zero_nodes:
                part = f"_in{k}" if len(node.inputs) > 1 else ""
                self.zeroed.setdefault(entry, (node, f"{node.name}{part}_backward_output"))

    def _know(self, node: Node, fresh: list[Node]) -> None:
        """Append a node that a rule has just made to `fresh`, behind those that it reads."""
        self.known.add(node)
        for child, _ in node.inputs:
            if child not in self.known:
                self._know(child, fresh)
        fresh.append(node)

    def _note_zeros(self, fresh: list[Node]) -> None:
        """Note those of `fresh` that are zero because all they read of the output gradients is zero."""
        for node in fresh:
            if node.op is None or not node.op.is_backward:
                continue
            if node.op.aux_indices(node.params):
                # It brings states up to date (BatchNorm's moving statistics), whatever flows into it, as in MXNet.
                continue
            gradients = [entry.node for entry in node.inputs if entry.node not in self.graph.index]
            if gradients and all(gradient in self.zero_nodes for gradient in gradients):
                self.zero_nodes.add(node)

    def _add(self, entry: Entry, grad: Entry) -> None:
        before = self.summed.get(entry)
        if before is None:
            self.summed[entry] = grad
            return
        total = Node(self.sum, f"{entry.node.name}_grad_sum", {}, NO_PARAMS, (before, grad), source=entry.node.source)
        self.new_nodes.append(total)
        self.known.add(total)
        self.sums[total] = entry
        self.summed[entry] = Entry(total)

    def _zero(self, entry: Entry) -> Entry:
        if entry not in self.zeros:
            node = Node(ZERO, f"{entry.node.name}_zero_grad", {}, NO_PARAMS, (entry,), source=entry.node.source)
            self.new_nodes.append(node)
            self.known.add(node)
            self.zero_nodes.add(node)
            self.zeros[entry] = Entry(node)
        return self.zeros[entry]

    def _real(self, entry: Entry | None) -> Entry | None:
        return None if entry is None or entry.node in self.zero_nodes else entry

    def _alive(self, wanted: list[Entry]) -> tuple[Node, ...]:
        """Dead-code removal: of the nodes made, those that `wanted` needs, in the order they were made."""
        alive: set[Node] = set()
        stack: list[Any] = [entry.node for entry in wanted]
        while stack:
            node = stack.pop()
            if node not in alive and node not in self.graph.index and node.op is not None:
                alive.add(node)
                stack.extend(entry.node for entry in node.inputs)
        return tuple(node for node in self.new_nodes if node in alive)
