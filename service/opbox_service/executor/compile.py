"""Compiling: (graph, shapes, types, grad_req, device) to a Plan.

Shapes and types are inferred, the gradient graph is made and pruned, and each node becomes a step with the best compute
that accepts its call: the plan. Plan passes rewrite it (`passes`), and then the steps' values are placed in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from opbox_ops.compute import ArraySpec, CallSpec, Compute, OpReq, Temp
from opbox_ops.infer import Shape, known
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import MXNetError, ShapeError

from ..graph.ir import Graph
from ..graph.passes.gradient import Gradient, gradient
from ..graph.passes.infer_backward import infer_backward
from ..graph.passes.infer_shape import infer_shape
from ..graph.passes.infer_type import infer_type
from ..graph.passes.memory import External
from ..task import checkpoint
from .copying import copy_step, take_in_step
from .passes import PASSES, PlanPass
from .plan import UNWANTED, Plan, Step, Value
from .subgraphs import SubgraphCompiler

__all__ = ["compile_plan"]


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

    Raises:
        ShapeError, DTypeError, UnderdeterminedError: from inference.
        UnsupportedError: an operator has no compute for the device, or no gradient.
    """
    plan = _Compiler(graph, shapes, types, grad_req, device, strided, level).lower()
    for rewrite in passes:
        plan = rewrite(plan)
    if apart:
        # Gradients of one step are read when the head gradients of the next are there: none lies in another's array.
        plan.external |= {v: External() for v in plan.external if (plan.values[v].array or ("",))[0] == "grad"}
    plan.memory = plan.place(share=share, apart=apart)
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


def _gradients_wanted(backward: Gradient) -> dict[Node, frozenset[int]]:
    """For each forward node that has a backward node, the inputs whose gradients are read."""
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


class _Compiler:
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
        self.plan = Plan(graph, device, frozenset(strided))
        self.ids: dict[Entry, int] = {}
        self.specs: dict[tuple[Shape, Any], ArraySpec] = {}
        self.chosen: dict[Any, tuple[CallSpec, Compute, tuple[Temp, ...]]] = {}
        self.wanted: dict[Node, frozenset[int]] = {}
        self.saved: dict[Node, int] = {}

    def lower(self) -> Plan:
        """The plan as the graph says it: a step a node, each gradient copied to its array."""
        plan = self.plan
        wrt = [name for name in self.graph.argument_names if self.req.get(name)]
        backward = gradient(self.graph, wrt) if wrt else None
        if backward is not None:
            self.wanted = _gradients_wanted(backward)
        live = _live([*self.graph.heads, *(backward.graph.heads if backward is not None else ())])
        self._variables()
        for i, node in enumerate(self.graph.nodes):
            if node.op is not None and node in live:
                self._step(node, [self._value(entry, *at) for entry, at in self._entries(node, i)])
        self._heads()
        plan.forward_steps = len(plan.steps)
        if backward is not None:
            self._backward(backward)
        return plan

    # -- forward ------------------------------------------------------------------------------------------------

    def _variables(self) -> None:
        for kind, nodes in (("arg", self.graph.arguments), ("aux", self.graph.auxiliary_states)):
            for node in nodes:
                entry = Entry(node)
                value = self._value(entry, self.shapes.of(entry), self.types.of(entry))
                self.plan.values[value].array = (kind, node.name)
                self.plan.external[value] = External()

    def _entries(self, node: Node, i: int) -> list[tuple[Entry, tuple[Shape, Any]]]:
        """The outputs of node number `i` with their shapes and types."""
        first = self.shapes.graph.row_ptr[i]
        shapes, types = self.shapes.entries, self.types.entries
        return [(entry, (shapes[first + k], types[first + k])) for k, entry in enumerate(node.entries())]

    def _heads(self) -> None:
        for i, head in enumerate(self.graph.heads):
            value = self.ids[head]
            self.plan.outputs.append(value)
            if value not in self.plan.external:
                self.plan.values[value].array = ("out", i)
                self.plan.external[value] = External(adopt=True)

    # -- backward -----------------------------------------------------------------------------------------------

    def _backward(self, backward: Gradient) -> None:
        plan = self.plan
        self.shapes, self.types = infer_backward(backward, self.graph.heads, self.shapes, self.types)
        for i, node in enumerate(backward.head_grads):
            value = UNWANTED
            if i in backward.needed:
                value = self._value(Entry(node), self.shapes.of(Entry(node)), self.types.of(Entry(node)))
            plan.head_grads.append(value)
        taken = [value for value in plan.head_grads if value >= 0]
        if taken:
            plan.steps.append(take_in_step(plan, taken))
        reads = Counter(entry for node in backward.nodes for entry in node.inputs)
        wanted: dict[Node, list[tuple[str, Entry]]] = {}
        for name, entry in backward.grads.items():
            if entry is not None:
                reads[entry] += 1
                wanted.setdefault(entry.node, []).append((name, entry))
            elif self.req[name] == OpReq.WRITE:
                plan.zero_grads.append(name)
        for i, node in enumerate(backward.graph.nodes[backward.forward :], backward.forward):
            if node.op is not None:
                self._backward_step(node, i, reads)
                self._store(wanted.pop(node, ()))
        for gradients in wanted.values():
            # A head gradient, or a forward value, is the gradient itself.
            self._store(gradients)

    def _backward_step(self, node: Node, i: int, reads: Counter[Entry]) -> None:
        entries = self._entries(node, i)
        specs = [self._spec(shape, dtype, node) for _, (shape, dtype) in entries]
        writes = []
        for (entry, _), spec in zip(entries, specs, strict=True):
            if reads[entry]:
                self.ids[entry] = self.plan.add(Value(spec))
            writes.append(self.ids[entry] if reads[entry] else UNWANTED)
        self._step(node, writes, tuple(specs))

    def _store(self, gradients: Sequence[tuple[str, Entry]]) -> None:
        """Copy gradients to the arrays of their arguments."""
        for name, entry in gradients:
            source = self.ids[entry]
            target = self.plan.add(Value(self.plan.values[source].spec, ("grad", name)))
            self.plan.external[target] = External()
            self.plan.steps.append(copy_step(self.plan, f"grad of {name}", source, target, self.req[name]))

    # -- both ---------------------------------------------------------------------------------------------------

    def _value(self, entry: Entry, shape: Shape, dtype: Any) -> int:
        value = self.ids[entry] = self.plan.add(Value(self._spec(shape, dtype, entry.node)))
        return value

    def _spec(self, shape: Shape, dtype: Any, node: Node) -> ArraySpec:
        """One object for equal shapes and types, so that calls can be told apart by identity."""
        spec = self.specs.get((shape, dtype))
        if spec is None:
            if shape is None or dtype is None or not known(shape):
                what, got = ("type", dtype) if dtype is None else ("shape", shape)
                raise ShapeError(f"expected its {what} rule to settle the gradient's {what}, got {got}").at(
                    node.name, node.op.name if node.op else None, node.source
                )
            spec = self.specs[shape, dtype] = ArraySpec(shape, np.dtype(dtype))
        return spec

    def _step(self, node: Node, writes: list[int], outs: tuple[ArraySpec, ...] | None = None) -> None:
        """Append the step of `node`; `outs` describes its outputs where some of `writes` are unwanted."""
        checkpoint()
        plan, op = self.plan, node.op
        assert op is not None
        reads = tuple([self.ids[entry] for entry in node.inputs])
        ins = plan.specs(reads)
        outs = plan.specs(writes) if outs is None else outs
        call, compute, temps = self._choose(node, ins, outs, writes)
        req = [OpReq.WRITE if value >= 0 else OpReq.NULL for value in writes]
        view = bool(op.get_attr("TIsView")) and req[0] == OpReq.WRITE and self._viewable(reads[0])
        saved = UNWANTED if compute.saves is None and node.forward is None else self._saved(node, compute, call)
        plan.steps.append(Step(node, compute, call, reads, writes, req, temps, view, saved))

    def _saved(self, node: Node, compute: Compute, call: CallSpec) -> int:
        """The value that the step of `node` leaves for its backward, or that its forward has left for it."""
        if compute.saves is not None and node in self.wanted:
            spec = ArraySpec((compute.saves(node.params, call),), np.dtype(np.uint8))
            self.saved[node] = self.plan.add(Value(spec))
            return self.saved[node]
        return UNWANTED if node.forward is None else self.saved.get(node.forward, UNWANTED)

    def _choose(
        self, node: Node, ins: tuple[ArraySpec, ...], outs: tuple[ArraySpec, ...], writes: Sequence[int]
    ) -> tuple[CallSpec, Compute, tuple[Temp, ...]]:
        """The call, its compute and that one's temporaries: worked out once for nodes that are alike."""
        assert node.op is not None
        unwanted = frozenset([k for k, value in enumerate(writes) if value == UNWANTED])
        nested = self._nested(node)
        gradients = None if nested is None else nested.gradients
        key = (node.op, id(node.params), tuple(map(id, ins)), tuple(map(id, outs)), unwanted, gradients)
        choice = self.chosen.get(key)
        if choice is not None:
            return choice
        call = CallSpec(self.plan.device, ins, outs, unwanted, nested)
        try:
            compute = node.op.choose(node.params, call, self.level)
            temps = node.op.temps(compute, node.params, call)
        except MXNetError as error:
            raise error.at(node.name, node.op.name, node.source) from None
        self.chosen[key] = call, compute, temps
        return self.chosen[key]

    def _nested(self, node: Node) -> SubgraphCompiler | None:
        """What compiles the subgraphs of a node."""
        if node.op is None or not node.op.get_attr("TSubgraphs"):
            return None
        gradients = self.wanted.get(node if node.forward is None else node.forward, frozenset())
        return SubgraphCompiler(self.plan.device, self.level, gradients, compile_plan)

    def _viewable(self, value: int) -> bool:
        array = self.plan.values[value].array
        return array is None or array not in self.plan.strided
