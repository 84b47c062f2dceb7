"""Compiling: (graph, shapes, types, grad_req, device) to a Plan.

Shapes and types are inferred, the gradient graph is made and pruned, and each node becomes a step with the best compute
that accepts its call: the plan. Plan passes rewrite it (`passes`), and then the steps' values are placed in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from opbox_ops.compute import CallSpec, OpReq
from opbox_ops.infer import Shape, known
from opbox_ops.node import Entry, Node
from opbox_protocol.errors import MXNetError, ShapeError

from ..graph.ir import Graph
from ..graph.passes.fixpoint import tell
from ..graph.passes.gradient import Gradient, gradient
from ..graph.passes.infer_shape import apply_shape_rule, infer_shape
from ..graph.passes.infer_type import apply_type_rule, infer_type
from ..graph.passes.memory import External
from .copying import copy_step, take_in_step
from .passes import PASSES, PlanPass
from .plan import UNWANTED, Plan, Step, Value

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

    Raises:
        ShapeError, DTypeError, UnderdeterminedError: from inference.
        UnsupportedError: an operator has no compute for the device, or no gradient.
    """
    plan = _Compiler(graph, shapes, types, grad_req, device, strided, level).lower()
    for rewrite in passes:
        plan = rewrite(plan)
    plan.memory = plan.place(share=share)
    return plan


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

    def lower(self) -> Plan:
        """The plan as the graph says it: a step a node, each gradient copied to its array."""
        plan = self.plan
        self._variables()
        for node in self.graph.nodes:
            if node.op is not None:
                self._forward(node)
        self._heads()
        plan.forward_steps = len(plan.steps)
        wrt = [name for name in self.graph.argument_names if self.req.get(name)]
        if wrt:
            self._backward(gradient(self.graph, wrt))
        return plan

    # -- forward ------------------------------------------------------------------------------------------------

    def _variables(self) -> None:
        for kind, nodes in (("arg", self.graph.arguments), ("aux", self.graph.auxiliary_states)):
            for node in nodes:
                entry = Entry(node)
                value = self._value(entry, self.shapes.of(entry), self.types.of(entry))
                self.plan.values[value].array = (kind, node.name)
                self.plan.external[value] = External()

    def _forward(self, node: Node) -> None:
        writes = [self._value(entry, self.shapes.of(entry), self.types.of(entry)) for entry in node.entries()]
        self._step(node, writes)

    def _heads(self) -> None:
        for i, head in enumerate(self.graph.heads):
            value = self.ids[head]
            self.plan.outputs.append(value)
            if value not in self.plan.external:
                self.plan.values[value].array = ("out", i)
                self.plan.external[value] = External(adopt=True)

    # -- backward -----------------------------------------------------------------------------------------------

    def _backward(self, made: Gradient) -> None:
        plan = self.plan
        for i, node in enumerate(made.head_grads):
            if i in made.needed:
                plan.head_grads.append(self._value(Entry(node), *self._of(made.like[node])))
            else:
                plan.head_grads.append(UNWANTED)
        taken = [value for value in plan.head_grads if value >= 0]
        if taken:
            plan.steps.append(take_in_step(plan, taken))
        reads = Counter(entry for node in made.nodes for entry in node.inputs)
        wanted: dict[Node, list[tuple[str, Entry]]] = {}
        for name, entry in made.grads.items():
            if entry is not None:
                reads[entry] += 1
                wanted.setdefault(entry.node, []).append((name, entry))
            elif self.req[name] == OpReq.WRITE:
                plan.zero_grads.append(name)
        for node in made.nodes:
            self._backward_step(node, made, reads)
            self._store(wanted.pop(node, ()))
        for gradients in wanted.values():
            # A head gradient, or a forward value, is the gradient itself.
            self._store(gradients)

    def _backward_step(self, node: Node, made: Gradient, reads: Counter[Entry]) -> None:
        assert node.op is not None
        shapes, types = self._backward_meta(node, made)
        values = [
            Value(self._known(shape, node), self._typed(dtype, node))
            for shape, dtype in zip(shapes, types, strict=True)
        ]
        writes = []
        for k, value in enumerate(values):
            entry = Entry(node, k)
            if reads[entry]:
                self.ids[entry] = self.plan.add(value)
            writes.append(self.ids[entry] if reads[entry] else UNWANTED)
        self._step(node, writes, values)

    def _store(self, gradients: Sequence[tuple[str, Entry]]) -> None:
        """Copy gradients to the arrays of their arguments."""
        for name, entry in gradients:
            source = self.ids[entry]
            target = self.plan.add(Value(*self._of(entry), array=("grad", name)))
            self.plan.external[target] = External()
            self.plan.steps.append(copy_step(self.plan, f"grad of {name}", source, target, self.req[name]))

    def _backward_meta(self, node: Node, made: Gradient) -> tuple[list[Shape], list[Any]]:
        """Shapes and types of a backward node's outputs."""
        assert node.op is not None
        if node in made.like:
            shape, dtype = self._of(made.like[node])
            return [shape], [dtype]
        if (
            node.op.is_backward
            and node.op.shape_rule is None
            and node.forward is not None
            and node.forward.op is not None
        ):
            forward = node.forward
            assert forward.op is not None
            aux = set(forward.op.aux_indices(forward.params))
            metas = [self._of(entry) for i, entry in enumerate(forward.inputs) if i not in aux]
            del metas[made.outputs[node] :]
            return [shape for shape, _ in metas], [dtype for _, dtype in metas]
        ins = [self._of(entry) for entry in node.inputs]
        count = made.outputs[node]
        try:
            shapes = apply_shape_rule(node, [shape for shape, _ in ins], [None] * count)[1]
            types = apply_type_rule(node, [dtype for _, dtype in ins], [None] * count)[1]
        except MXNetError as error:
            raise tell(error, node) from None
        return list(shapes), list(types)

    # -- both ---------------------------------------------------------------------------------------------------

    def _of(self, entry: Entry) -> tuple[tuple[int, ...], np.dtype[Any]]:
        value = self.plan.values[self.ids[entry]]
        return value.shape, value.dtype

    def _value(self, entry: Entry, shape: Shape, dtype: Any) -> int:
        value = self.ids[entry] = self.plan.add(Value(self._known(shape, entry.node), self._typed(dtype, entry.node)))
        return value

    def _known(self, shape: Shape, node: Node) -> tuple[int, ...]:
        if shape is None or not known(shape):
            raise ShapeError(f"expected its shape rule to settle the gradient's shape, got {shape}").at(
                node.name, node.op.name if node.op else None, node.source
            )
        return shape

    def _typed(self, dtype: Any, node: Node) -> np.dtype[Any]:
        if dtype is None:
            raise ShapeError("expected its type rule to settle the gradient's type").at(
                node.name, node.op.name if node.op else None, node.source
            )
        typed: np.dtype[Any] = np.dtype(dtype)
        return typed

    def _step(self, node: Node, writes: list[int], values: Sequence[Value] | None = None) -> None:
        """Append the step of `node`; `values` describes its outputs where some of `writes` are unwanted."""
        plan, op = self.plan, node.op
        assert op is not None
        reads = tuple([self.ids[entry] for entry in node.inputs])
        outs = plan.specs(writes) if values is None else tuple([value.spec for value in values])
        unwanted = frozenset([k for k, value in enumerate(writes) if value == UNWANTED])
        call = CallSpec(plan.device, plan.specs(reads), outs, unwanted)
        try:
            compute = op.choose(node.params, call, self.level)
        except MXNetError as error:
            raise error.at(node.name, op.name, node.source) from None
        req = [OpReq.WRITE if value >= 0 else OpReq.NULL for value in writes]
        if compute.serves_req and values is not None:
            writes = [w if w >= 0 else plan.add(value) for w, value in zip(writes, values, strict=True)]
        temps = op.temps(compute, node.params, call)
        view = bool(op.get_attr("TIsView")) and req[0] == OpReq.WRITE and self._viewable(reads[0])
        plan.steps.append(Step(node, compute, call, reads, writes, req, temps, view))

    def _viewable(self, value: int) -> bool:
        array = self.plan.values[value].array
        return array is None or array not in self.plan.strided
