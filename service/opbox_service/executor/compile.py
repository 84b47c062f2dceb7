"""Compiling: (graph, shapes, types, grad_req, device) to a Plan.

Shapes and types are inferred, the gradient graph is made and pruned, each node becomes a step, and the steps' values
are placed. A gradient is written by the step that makes it, straight into the user's array, wherever that is possible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from opbox_ops.compute import Arrays, OpContext, OpReq, Reqs, Temp, assign
from opbox_ops.errors import OpboxError, ShapeError, UnsupportedError
from opbox_ops.infer import Shape, known
from opbox_ops.node import Entry, Node

from ..graph.ir import Graph
from ..graph.passes.fixpoint import tell
from ..graph.passes.gradient import Gradient, gradient
from ..graph.passes.infer_shape import apply_shape_rule, infer_shape
from ..graph.passes.infer_type import apply_type_rule, infer_type
from ..graph.passes.memory import External
from .plan import Plan, Step, Value

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

    Raises:
        ShapeError, DTypeError, UnderdeterminedError: from inference.
        UnsupportedError: an operator has no compute for the device, or no gradient.
    """
    return _Compiler(graph, shapes, types, grad_req, device, strided).compile(share)


def _copy(p: Any, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    assign(outputs[0], req[0], inputs[0])


def _take_in(p: Any, ctx: OpContext, inputs: Arrays, req: Reqs, outputs: Arrays) -> None:
    """Head gradients are copied in by `Executor.backward` before the steps run; this step only marks their birth."""


class _Compiler:
    def __init__(
        self,
        graph: Graph,
        shapes: Mapping[str, Shape],
        types: Mapping[str, Any],
        grad_req: Mapping[str, str],
        device: str,
        strided: Set[tuple[str, str]],
    ) -> None:
        self.graph = graph
        self.req = {name: OpReq.of(req) for name, req in grad_req.items()}
        self.strided = strided
        self.shapes = infer_shape(graph, shapes)
        self.types = infer_type(graph, types)
        self.plan = Plan(graph, device)
        self.ids: dict[Entry, int] = {}

    def compile(self, share: bool) -> Plan:
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
        plan.memory = plan.place(share=share)
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
        for entry in node.entries():
            self._value(entry, self.shapes.of(entry), self.types.of(entry))
        self._step(node, [self.ids[entry] for entry in node.entries()], [OpReq.WRITE] * node.num_outputs)

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
                plan.head_grads.append(-1)
        taken = [value for value in plan.head_grads if value >= 0]
        if taken:
            mark = Node(None, "head gradients")
            plan.steps.append(Step(mark, _take_in, (), taken, [OpReq.WRITE] * len(taken), []))
        reads = Counter(entry for node in made.nodes for entry in node.inputs)
        wanted = Counter(entry for entry in made.grads.values() if entry is not None)
        reads.update(wanted)
        fused: dict[Entry, str] = {}
        for name, entry in made.grads.items():
            if entry is not None and entry not in fused and self._writable(entry, name, reads[entry]):
                fused[entry] = name
        for node in made.nodes:
            self._backward_step(node, made, reads, fused)
        for name, entry in made.grads.items():
            if entry is None:
                if self.req[name] == OpReq.WRITE:
                    plan.zero_grads.append(name)
            elif fused.get(entry) != name:
                self._copy_out(name, entry)

    def _writable(self, entry: Entry, name: str, uses: int) -> bool:
        """Whether the step that makes this gradient may write it straight into the user's array."""
        if entry.node.op is None or entry.node in self.graph.index:
            return False
        return uses == 1 or self.req[name] == OpReq.WRITE

    def _backward_step(self, node: Node, made: Gradient, reads: Counter[Entry], fused: dict[Entry, str]) -> None:
        assert node.op is not None
        shapes, types = self._backward_meta(node, made)
        writes: list[int] = []
        req: list[OpReq] = []
        null: list[tuple[tuple[int, ...], np.dtype[Any]]] = []
        for k, (shape, dtype) in enumerate(zip(shapes, types, strict=True)):
            entry = Entry(node, k)
            null.append((self._known(shape, node), self._typed(dtype, node)))
            if entry in fused:
                name = fused[entry]
                value = self._value(entry, shape, dtype)
                self.plan.values[value].array = ("grad", name)
                write = self.req[name] == OpReq.WRITE and ("grad", name) not in self.strided
                self.plan.external[value] = External(adopt=write, since=self.plan.forward_steps)
                writes.append(value)
                req.append(self.req[name])
            elif reads[entry]:
                writes.append(self._value(entry, shape, dtype))
                req.append(OpReq.WRITE)
            else:
                writes.append(-1)
                req.append(OpReq.NULL)
        self._step(node, writes, req, null)

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
        except OpboxError as error:
            raise tell(error, node) from None
        return list(shapes), list(types)

    def _copy_out(self, name: str, entry: Entry) -> None:
        source = self.ids[entry]
        held = self.plan.values[source]
        self.plan.values.append(Value(held.shape, held.dtype, ("grad", name)))
        value = len(self.plan.values) - 1
        self.plan.external[value] = External()
        node = Node(None, f"grad of {name}")
        self.plan.steps.append(Step(node, _copy, (source,), [value], [self.req[name]], [(held.shape, held.dtype)]))

    # -- both ---------------------------------------------------------------------------------------------------

    def _of(self, entry: Entry) -> tuple[tuple[int, ...], np.dtype[Any]]:
        value = self.plan.values[self.ids[entry]]
        return value.shape, value.dtype

    def _value(self, entry: Entry, shape: Shape, dtype: Any) -> int:
        self.plan.values.append(Value(self._known(shape, entry.node), self._typed(dtype, entry.node)))
        self.ids[entry] = len(self.plan.values) - 1
        return self.ids[entry]

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

    def _step(
        self,
        node: Node,
        writes: list[int],
        req: list[OpReq],
        null: list[tuple[tuple[int, ...], np.dtype[Any]]] | None = None,
    ) -> None:
        assert node.op is not None
        compute = node.op.compute_for(self.plan.device)
        if compute is None:
            raise UnsupportedError(f"the operator has no compute for device {self.plan.device!r}").at(
                node.name, node.op.name, node.source
            )
        reads = tuple(self.ids[entry] for entry in node.inputs)
        values = self.plan.values
        null = null if null is not None else [(values[w].shape, values[w].dtype) for w in writes]
        temps: tuple[Temp, ...] = ()
        rule = node.op.get_attr("FResourceRequest")
        if rule is not None:
            in_shapes, in_types = [values[r].shape for r in reads], [values[r].dtype for r in reads]
            temps = tuple(rule(node.params, in_shapes, in_types, [s for s, _ in null], [d for _, d in null]))
        view = bool(node.op.get_attr("TIsView")) and req[0] == OpReq.WRITE and self._viewable(reads[0])
        self.plan.steps.append(Step(node, compute, reads, writes, req, null, temps, view))

    def _viewable(self, value: int) -> bool:
        array = self.plan.values[value].array
        return array is None or array not in self.strided
