"""Compiling: (graph, shapes, types, grad_req, device) to a Plan.

Shapes and types are inferred, the gradient graph is made and pruned, and each node becomes a step with the kernel of
the best compute that takes its call: the plan. Plan passes rewrite it (`passes`), and then the steps' values are placed
in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from opbox_ops.compute import ArraySpec, CallSpec, Kernel, OpReq
from opbox_ops.infer import Shape, known
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import MXNetError, ShapeError

from ..graph.ir import Graph
from ..graph.passes.gradient import Gradient, gradient
from ..graph.passes.infer_backward import infer_backward
from ..graph.passes.infer_shape import infer_shape
from ..graph.passes.infer_type import infer_type
from ..graph.passes.memory import External
from ..graph.subgraph import is_stateful
from ..task import NODES, checkpoint
from .copying import copy_step, take_in_step
from .passes import PASSES, PlanPass
from .passes.packed_weights import packed_weights, without_packed_weights
from .plan import UNWANTED, Plan, Step, Value
from .subgraphs import SubgraphCompiler

__all__ = ["compile_plan"]

OWN_MEMORY = External()
"""Marks values in the user's own arrays; one object for all."""


def compile_plan(
    graph: Graph,
    shapes: Mapping[str, Shape],
    types: Mapping[str, Any],
    grad_req: Mapping[str, str],
    *,
    device: str = "cpu",
    strided: Set[tuple[str, str]] = frozenset(),
    share: bool = True,
    level: str | None = None,
    passes: Sequence[PlanPass] = PASSES,
    apart: bool = False,
    max_bytes: int | None = None,
    spare: int = 0,
) -> Plan:
    """Compile `graph` for these argument shapes and types.

    Args:
        graph: the graph.
        shapes, types: by argument and auxiliary name.
        grad_req: write, add or null for arguments; null where none is given.
        device: "cpu" or "gpu".
        strided: ("arg", name), ("aux", name) or ("grad", name) for arrays that are not contiguous: never viewed
            under another shape.
        share: False gives every value memory of its own, for comparison.
        level: the highest level of computes to choose; by default what OPBOX_COMPUTE_LEVEL says.
        passes: what rewrites the plan before its memory is planned.
        apart: for the body of a loop; see `Plan.place`.
        max_bytes: bytes that an executor may allocate: copies of weights that would not leave as much again as they
            take are made anew in each run. What does not fit at all is for the caller to refuse.
        spare: see `Plan`.

    Raises:
        ShapeError, DTypeError, UnderdeterminedError: from inference.
        UnsupportedError: an operator has no compute for the device, or no gradient.
    """
    plan = _PlanCompiler(graph, shapes, types, grad_req, device, strided, level).lower()
    plan.keeps, plan.spare = not apart, spare
    for rewrite in passes:
        checkpoint(NODES)
        plan = rewrite(plan)
    checkpoint(NODES)
    if not apart:
        plan = packed_weights(plan)
    else:
        # Gradients of one step are read when the head gradients of the next are there: none lies in another's array.
        plan.external |= {v: OWN_MEMORY for v in plan.external if (plan.values[v].array or ("",))[0] == "grad"}
    # Backward may run again after one forward: it finds what it reads. A loop puts that back before each step itself.
    keep = not apart or any(is_stateful(step.node) for step in plan.steps)
    plan.memory = plan.place(share=share, apart=apart, keep=keep)
    if max_bytes is not None and plan.packed_bytes and plan.allocates + plan.packed_bytes > max_bytes:
        plan = without_packed_weights(plan)
        plan.memory = plan.place(share=share, apart=apart, keep=keep)
    return plan


def _live(heads: Sequence[Entry]) -> set[Node]:
    """The nodes whose values `heads` need: a forward node that lends its backward node shapes alone is not run."""
    live: set[Node] = set()
    stack = [head.node for head in heads]
    while stack:
        node = stack.pop()
        if node in live:
            continue
        live.add(node)
        stack += [entry.node for entry in node.inputs]
        if node.forward is not None and node.forward.op is not None and node.forward.op.get_attr("FCreateOpState"):
            stack.append(node.forward)
    return live


def _skipped(graph: Graph, backward: Gradient | None) -> Set[int]:
    """The entries of hidden outputs that nobody reads, of the operators that do without them."""
    nodes = [node for node in graph.nodes if node.op is not None and node.op.get_attr("TSkipsUnread")]
    if not nodes:
        return frozenset()
    whole, heads = graph, list(graph.heads)
    if backward is not None:
        whole = backward.graph
        heads += [entry for entry in backward.grads.values() if entry is not None]
    read = {e for node, ids in zip(whole.nodes, whole.reads, strict=True) for e in ids[: len(node.inputs)]}
    read.update(map(whole.entry_id, heads))
    hidden: set[int] = set()
    for node in nodes:
        assert node.op is not None
        outputs = range(node.op.num_visible_outputs(node.params), node.op.num_outputs(node.params))
        hidden.update(graph.entry_id(Entry(node, k)) for k in outputs)
    return hidden - read


def _gradients_wanted(backward: Gradient) -> dict[Node, frozenset[int]]:
    """For each forward node that has a backward node, the inputs whose gradients are read."""
    if not any(node.op is not None and node.op.get_attr("TSubgraphs") for node in backward.graph.calls.values()):
        return {}
    read = {entry for node in backward.nodes for entry in node.inputs}
    read.update(entry for entry in backward.grads.values() if entry is not None)
    wanted: dict[Node, frozenset[int]] = {}
    for node in backward.nodes:
        forward = node.forward
        if forward is not None and forward.op is not None and forward.op.get_attr("TSubgraphs"):
            states = set(forward.op.aux_indices(forward.params))
            inputs = [i for i in range(len(forward.inputs)) if i not in states]
            wanted[forward] = frozenset(i for i, entry in zip(inputs, node.entries(), strict=True) if entry in read)
    return wanted


class _Choice(NamedTuple):
    """The kernel chosen for steps of nodes that are alike; see `Step`."""

    call: CallSpec
    kernel: Kernel
    req: tuple[OpReq, ...]
    inplace: tuple[tuple[int, int], ...]


def _inplace_pairs(node: Node, inputs: int, writes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the pairs (input, output) of a node that may share memory, of wanted outputs."""
    assert node.op is not None
    option = node.op.get_attr("FInplaceOption", ())
    pairs = option(node.params) if callable(option) else option
    return tuple([(i, o) for i, o in pairs if i < inputs and o < len(writes) and writes[o] >= 0])


class _PlanCompiler:
    def __init__(
        self,
        graph: Graph,
        shapes: Mapping[str, Shape],
        types: Mapping[str, Any],
        grad_req: Mapping[str, str],
        device: str,
        strided: Set[tuple[str, str]],
        level: str | None,
    ) -> None:
        self.graph = graph
        self.req = {name: OpReq.of(req) for name, req in grad_req.items()}
        self.level = level
        self.shapes = infer_shape(graph, shapes)
        self.types = infer_type(graph, types)
        self.plan = Plan(graph, device, frozenset(strided), level=level)
        self.ids = [UNWANTED] * graph.num_entries
        """The value of each entry."""
        self.specs: list[ArraySpec] = []
        """The shape and type of each entry: one object for equal ones."""
        self.kinds: list[int] = []
        """A number for each of `specs`, so that calls are told apart by numbers."""
        self.known_specs: dict[tuple[Shape, Any], tuple[int, ArraySpec]] = {}
        self.choices: dict[Any, _Choice] = {}
        self.wanted: dict[Node, frozenset[int]] = {}
        self.skipped: Set[int] = frozenset()
        self.saved: dict[Node, int] = {}

    def lower(self) -> Plan:
        """The plan as the graph says it: a step a node, each gradient copied to its array."""
        plan = self.plan
        wrt = [name for name in self.graph.argument_names if self.req.get(name)]
        backward = gradient(self.graph, wrt) if wrt else None
        checkpoint(NODES)
        if backward is not None:
            self.wanted = _gradients_wanted(backward)
        self.skipped = _skipped(self.graph, backward)
        checkpoint(NODES)
        live = _live([*self.graph.heads, *(backward.graph.heads if backward is not None else ())])
        self._describe(self.graph)
        self._variables()
        for i, node in enumerate(self.graph.nodes):
            if node.op is not None and node in live:
                self._step(self.graph, i, node)
        self._heads()
        plan.forward_steps = len(plan.steps)
        if backward is not None:
            self._backward(backward)
        return plan

    def _describe(self, graph: Graph) -> None:
        """Append to `specs` and `kinds` for the entries of `graph` that are not there yet."""
        first, seen = len(self.specs), self.known_specs
        for at, key in enumerate(zip(self.shapes.entries[first:], self.types.entries[first:], strict=True), first):
            if not at % NODES:
                checkpoint(NODES)
            known_spec = seen.get(key)
            if known_spec is None:
                shape, dtype = key
                if shape is None or dtype is None or not known(shape):
                    what, value = ("type", dtype) if dtype is None else ("shape", shape)
                    node = graph.nodes[bisect_right(graph.row_ptr, at) - 1]
                    raise ShapeError(f"expected its {what} rule to settle the gradient's {what}, got {value}").at(
                        node.name, node.op.name if node.op else None, node.source
                    )
                known_spec = seen[key] = len(seen), ArraySpec(shape, np.dtype(dtype))
            self.kinds.append(known_spec[0])
            self.specs.append(known_spec[1])

    # -- forward ------------------------------------------------------------------------------------------------

    def _variables(self) -> None:
        for kind, nodes in (("arg", self.graph.arguments), ("aux", self.graph.auxiliary_states)):
            for node in nodes:
                value = self._value(self.graph.entry_id(Entry(node)))
                self.plan.values[value].array = (kind, node.name)
                self.plan.external[value] = OWN_MEMORY

    def _heads(self) -> None:
        for i, head in enumerate(self.graph.heads):
            value = self.ids[self.graph.entry_id(head)]
            self.plan.outputs.append(value)
            if value not in self.plan.external:
                self.plan.values[value].array = ("out", i)
                self.plan.external[value] = External(adopt=True)

    # -- backward -----------------------------------------------------------------------------------------------

    def _backward(self, backward: Gradient) -> None:
        plan = self.plan
        self.shapes, self.types = infer_backward(backward, self.graph.differentiated, self.shapes, self.types)
        plan.trace = backward.trace
        graph, ids = backward.graph, self.ids
        self._describe(graph)
        ids += [UNWANTED] * (graph.num_entries - len(ids))
        for i, node in enumerate(backward.head_grads):
            plan.head_grads.append(self._value(graph.entry_id(Entry(node))) if i in backward.needed else UNWANTED)
        taken = [value for value in plan.head_grads if value >= 0]
        if taken:
            plan.steps.append(take_in_step(plan, taken))
        read = {
            entry
            for node, entries in zip(graph.nodes[backward.forward :], graph.reads[backward.forward :], strict=True)
            for entry in entries[: len(node.inputs)]
        }
        wanted: dict[Node, list[tuple[str, int]]] = {}
        for name, entry in backward.grads.items():
            if entry is not None:
                read.add(graph.entry_id(entry))
                wanted.setdefault(entry.node, []).append((name, graph.entry_id(entry)))
            elif self.req[name] == OpReq.WRITE:
                plan.zero_grads.append(name)
        for i, node in enumerate(graph.nodes[backward.forward :], backward.forward):
            if node.op is not None:
                self._step(graph, i, node, read)
                if node in wanted:
                    self._store(wanted.pop(node))
        for gradients in wanted.values():
            # A head gradient, or a forward value, is the gradient itself.
            self._store(gradients)

    def _store(self, gradients: Sequence[tuple[str, int]]) -> None:
        """Copy entries, which are gradients, to the arrays of their arguments."""
        for name, entry in gradients:
            target = self.plan.add(Value(self.specs[entry], ("grad", name)))
            self.plan.external[target] = OWN_MEMORY
            self.plan.steps.append(copy_step(self.plan, f"grad of {name}", self.ids[entry], target, self.req[name]))

    # -- both ---------------------------------------------------------------------------------------------------

    def _value(self, entry: int) -> int:
        value = self.ids[entry] = len(self.plan.values)
        self.plan.values.append(Value(self.specs[entry]))
        return value

    def _step(self, graph: Graph, i: int, node: Node, read: Set[int] | None = None) -> None:
        """Append the step of `node`, the node number `i`; only entries in `read` are written, by default all."""
        if not i % NODES:
            checkpoint(NODES)
        op, params = node.op, node.params
        assert op is not None
        inputs = graph.reads[i]
        if node.forward is not None:
            inputs = inputs[: len(node.inputs)]
        outputs = range(graph.row_ptr[i], graph.row_ptr[i + 1])
        wanted = [entry not in self.skipped if read is None else entry in read for entry in outputs]
        writes = [self._value(entry) if want else UNWANTED for entry, want in zip(outputs, wanted, strict=True)]
        kinds = self.kinds
        # Outputs that nobody wants are told apart from those that somebody does by a negative number.
        outs = [kinds[e] if value >= 0 else ~kinds[e] for e, value in zip(outputs, writes, strict=True)]
        nested = self._nested(node) if op.get_attr("TSubgraphs") else None
        gradients = None if nested is None else nested.gradients
        key = (op, id(params), tuple([kinds[entry] for entry in inputs]), tuple(outs), gradients)
        choice = self.choices.get(key)
        if choice is None:
            choice = self.choices[key] = self._choose(node, inputs, outputs, writes, nested)
        ids = self.ids
        reads = tuple([ids[entry] for entry in inputs])
        kernel, call = choice.kernel, choice.call
        saved = UNWANTED if kernel.saves is None and node.forward is None else self._saved(node, kernel, call)
        self.plan.steps.append(Step(node, kernel, call, reads, writes, choice.req, False, saved, choice.inplace))

    def _saved(self, node: Node, kernel: Kernel, call: CallSpec) -> int:
        """Return the value that forward saves for backward, be `node` the one or the other."""
        if kernel.saves is not None and node in self.wanted:
            spec = ArraySpec((kernel.saves(node.params, call),), np.dtype(np.uint8))
            self.saved[node] = self.plan.add(Value(spec))
            return self.saved[node]
        return UNWANTED if node.forward is None else self.saved.get(node.forward, UNWANTED)

    def _choose(
        self,
        node: Node,
        inputs: Sequence[int],
        outputs: Sequence[int],
        writes: Sequence[int],
        nested: SubgraphCompiler | None,
    ) -> _Choice:
        """Choose the kernel for nodes that are alike."""
        assert node.op is not None
        specs = self.specs
        unwanted = frozenset([k for k, value in enumerate(writes) if value == UNWANTED])
        ins, outs = tuple([specs[entry] for entry in inputs]), tuple([specs[entry] for entry in outputs])
        call = CallSpec(self.plan.device, ins, outs, unwanted, nested)
        try:
            kernel = node.op.choose(node.params, call, self.level)
        except MXNetError as error:
            raise error.at(node.name, node.op.name, node.source) from None
        req = tuple([OpReq.WRITE if value >= 0 else OpReq.NULL for value in writes])
        return _Choice(call, kernel, req, _inplace_pairs(node, len(inputs), writes))

    def _nested(self, node: Node) -> SubgraphCompiler | None:
        """Return the compilers of a node's subgraphs."""
        if node.op is None or not node.op.get_attr("TSubgraphs"):
            return None
        gradients = self.wanted.get(node if node.forward is None else node.forward, frozenset())
        return SubgraphCompiler(self.plan.device, self.level, gradients, compile_plan)
