"""Running one operator, and the graph of its gradient, straight on the registry: no graph passes, no service.

    run = Run(case, "float32", backend_for("cpu"))
    run.forward()                    # outputs, in the arrays' own memory
    run.backward()                   # gradients by input name; every backward call is kept in run.calls

Each compute is called as an executor would: outputs allocated (and full of rubbish) before, temporaries as requested,
one state for a node and its backward node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opbox_ops import registry
from opbox_ops.backend import Backend, backend_for
from opbox_ops.compute import ArraySpec, CallSpec, Kernel, Mode, OpContext, OpReq
from opbox_ops.infer import ShapeList, TypeList, known
from opbox_ops.node import Entry, Node
from opbox_ops.operator import Op
from opbox_service.executor.copying import add_to
from tests.allocations import counted
from tests.cases.case import Case
from tests.cases.values import arguments, head_gradient, inputs, is_float

__all__ = ["Call", "Run", "infer_shapes", "infer_types", "inplace_pairs", "rubbish", "write_outputs"]

SEED = 7
WRITE = OpReq.WRITE


def infer_shapes(node: Node, ins: Sequence[Any], outs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What the operator's FInferShape makes of these shapes (None and -1 are unknown)."""
    inside, outside = ShapeList(ins, "input"), ShapeList(outs, "output")
    if node.op.shape_rule is not None:
        node.op.shape_rule(node.params, inside, outside)
    return list(inside), list(outside)


def infer_types(node: Node, ins: Sequence[Any], outs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What the operator's FInferType makes of these types."""
    inside, outside = TypeList(ins, "input"), TypeList(outs, "output")
    node.op.type_rule(node.params, inside, outside)
    return list(inside), list(outside)


def inplace_pairs(node: Node) -> list[tuple[int, int]]:
    """FInplaceOption: (input, output) pairs."""
    option = node.op.get_attr("FInplaceOption", ())
    return list(option(node.params) if callable(option) else option)


def rubbish(backend: Backend, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array as the planner hands it out: full of something else."""
    array = backend.empty(shape, dtype)
    array[...] = np.nan if is_float(dtype) else True if np.dtype(dtype).kind == "b" else 77
    return array


def write_outputs(
    op: Op, params: Any, inputs: Sequence[Any], outputs: Sequence[Any], *, random: Any = None, device: str = "cpu"
) -> None:
    """Run the kernel of `op` on arrays, once."""
    backend = backend_for(device)
    specs = [tuple(ArraySpec(a.shape, a.dtype) for a in side) for side in (inputs, outputs)]
    call = CallSpec(device, specs[0], specs[1])
    kernel = op.choose(params, call)
    context = OpContext(backend.xp, backend.special, random, backend)
    context.temp = tuple(rubbish(backend, temp.shape, temp.dtype) for temp in kernel.temps)
    context.call = call
    context.req = (WRITE,) * len(outputs)
    with np.errstate(all="ignore"):
        kernel(params, context, list(inputs), list(outputs))


@dataclass
class Call:
    """One compute, ready to be run again with other requests.

    Attributes:
        node: whose compute.
        inputs: the arrays that it read, as they were before.
        shapes, dtypes: of its outputs.
        outputs: what it wrote, when everything was asked for with `write`.
        mutated: positions of inputs that it may write.
        allocated: the sizes of the arrays that its last run allocated, in bytes.
    """

    run: Run
    node: Node
    inputs: list[Any]
    shapes: list[tuple[int, ...]]
    dtypes: list[np.dtype[Any]]
    mutated: frozenset[int]
    outputs: list[Any] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)

    def fresh(self) -> list[Any]:
        """Copies of the inputs."""
        return [self.run.backend.put(self.run.backend.get(array)) for array in self.inputs]

    def empty(self) -> list[Any]:
        """Outputs full of rubbish."""
        return [rubbish(self.run.backend, s, d) for s, d in zip(self.shapes, self.dtypes, strict=True)]

    def spec(self, req: Sequence[OpReq] = ()) -> CallSpec:
        """The call as the rules of a compute see it."""
        ins = tuple(ArraySpec(tuple(array.shape), array.dtype) for array in self.inputs)
        outs = tuple(map(ArraySpec, map(tuple, self.shapes), self.dtypes))
        unwanted = frozenset(k for k, kind in enumerate(req) if kind == OpReq.NULL)
        return CallSpec(self.run.backend.device_type, ins, outs, unwanted)

    def chosen(self, req: Sequence[OpReq] = ()) -> Kernel:
        """The kernel that an executor would choose."""
        return self.node.op.choose(self.node.params, self.spec(req), self.run.level)

    def compute(self, ins: Sequence[Any], req: Sequence[OpReq], outs: Sequence[Any], *, seed: int = SEED) -> None:
        """Run the compute into `outs`, with the requests served as an executor serves them."""
        if not any(req) and not self.mutated:
            return  # no executor has a step that nobody reads
        run, op, kernel = self.run, self.node.op, self.chosen(req)
        backend, params, spec = run.backend, self.node.params, self.spec(req)
        random = backend.random(seed)
        assert random.generator is not None  # made when it is first asked for
        context = OpContext(backend.xp, backend.special, random, backend, Mode(run.case.is_train))
        context.temp = tuple(rubbish(backend, tuple(temp.shape), np.dtype(temp.dtype)) for temp in kernel.temps)
        create = op.get_attr("FCreateOpState")
        if self.node.forward is not None:
            context.state = run.states.get(self.node.forward)
        elif create is not None:
            context.state = create(params, context, [a.shape for a in ins], [a.dtype for a in ins])
            run.states[self.node] = context.state
        targets = list(outs)
        for k, kind in enumerate(req):
            if kind == OpReq.NULL:
                targets[k] = None
            elif kind == OpReq.ADD and not kernel.accumulates:
                targets[k] = rubbish(backend, self.shapes[k], self.dtypes[k])
        served = [OpReq.WRITE if kind == OpReq.ADD and not kernel.accumulates else OpReq(kind) for kind in req]
        context.call = spec
        context.req = tuple(served)
        with np.errstate(all="ignore"), counted() as self.allocated:
            kernel(params, context, list(ins), targets)
        with np.errstate(all="ignore"):
            for k, kind in enumerate(req):
                if kind == OpReq.ADD and not kernel.accumulates:
                    add_to(backend.xp, outs[k], targets[k])
        backend.synchronize()


class Run:
    """A row in one type on one device.

    Args:
        case: the row.
        dtype: its element type.
        backend: the device.
        given: host arrays by input name, instead of the row's own.
        level: the highest level of computes to choose; by default what OPBOX_COMPUTE_LEVEL says.
    """

    def __init__(
        self,
        case: Case,
        dtype: str,
        backend: Backend,
        arrays: dict[str, Any] | None = None,
        level: str | None = None,
    ) -> None:
        self.level = level
        self.case, self.dtype, self.backend = case, dtype, backend
        self.op = registry.get(case.op)
        self.arrays = inputs(case, dtype) if arrays is None else arrays
        self.params = self.op.parse({key: str(value) for key, value in case.attrs.items()})
        names = self.op.input_names(self.params)
        assert len(names) == len(self.arrays), f"{case.op} takes {names}, the row gives {list(self.arrays)}"
        self.variables = [Node(None, name) for name in self.arrays]
        self.node = Node(
            self.op,
            "op",
            {key: str(value) for key, value in case.attrs.items()},
            self.params,
            tuple(Entry(variable) for variable in self.variables),
        )
        self.states: dict[Node, Any] = {}
        self.calls: list[Call] = []
        self.values: dict[Entry, Any] = {}
        self.aux = frozenset(self.op.aux_indices(self.params))

    @property
    def visible(self) -> int:
        return self.op.num_visible_outputs(self.params)

    def forward(self) -> list[Any]:
        """Run it; returns all outputs. Auxiliary states are in `self.values` afterwards as it left them."""
        arrays = [self.backend.put(array) for array in self.arrays.values()]
        count = self.op.num_outputs(self.params)
        shapes = infer_shapes(self.node, [a.shape for a in arrays], self.case.out_shapes or [None] * count)[1]
        types = infer_types(self.node, [a.dtype for a in arrays], [None] * count)[1]
        assert all(known(shape) for shape in shapes), f"the shape rule leaves {shapes} of full inputs"
        assert all(dtype is not None for dtype in types), f"the type rule leaves {types} of full inputs"
        before = [self.backend.put(array) for array in self.arrays.values()]
        call = Call(self, self.node, before, shapes, types, self.aux)
        call.outputs = call.empty()
        call.compute(arrays, [WRITE] * count, call.outputs)
        self.calls = [call]
        self.values = {Entry(v): array for v, array in zip(self.variables, arrays, strict=True)}
        self.values.update({Entry(self.node, k): out for k, out in enumerate(call.outputs)})
        return call.outputs

    def states_now(self) -> dict[str, Any]:
        """The auxiliary states as the last run left them."""
        return {self.variables[k].name: self.values[self.node.inputs[k]] for k in sorted(self.aux)}

    def heads(self) -> list[Any]:
        """Head gradients: the row's own for what is visible, zeros for the hidden outputs."""
        forward = self.calls[0]
        return [
            self.backend.put(head_gradient(self.case, k, shape, dtype) if k < self.visible else np.zeros(shape, dtype))
            for k, (shape, dtype) in enumerate(zip(forward.shapes, forward.dtypes, strict=True))
        ]

    def wanted(self) -> list[str]:
        """Inputs whose gradients are compared."""
        return [
            name
            for k, (name, arg) in enumerate(arguments(self.case).items())
            if self.case.grad and arg.grad and k not in self.aux and is_float(self.arrays[name].dtype)
        ]

    def gradient_entries(self) -> tuple[list[Entry | None], list[Node]]:
        """What FGradient makes for this node, and the variables for its output gradients."""
        rule = self.op.get_attr("FGradient")
        assert rule is not None, f"{self.op.name} has no FGradient: grad=False, or write one"
        heads = [Node(None, f"head{k}") for k in range(self.op.num_outputs(self.params))]
        grads = list(rule(self.node, [Entry(head) for head in heads]))
        assert len(grads) == len(self.variables), f"FGradient: {len(grads)} entries for {len(self.variables)} inputs"
        return grads, heads

    def backward(self) -> dict[str, Any]:
        """Gradients by input name (zeros where FGradient says None); runs `forward` first if need be."""
        if not self.calls:
            self.forward()
        del self.calls[1:]
        grads, heads = self.gradient_entries()
        self.values.update({Entry(head): array for head, array in zip(heads, self.heads(), strict=True)})
        entries = [grad for grad in grads if grad is not None]
        counts: dict[Node, int] = {}
        self._count(entries, counts)
        gradients = {}
        for variable, grad in zip(self.variables, grads, strict=True):
            if grad is None:
                array = self.values[Entry(variable)]
                gradients[variable.name] = self.backend.put(np.zeros(array.shape, array.dtype))
            else:
                gradients[variable.name] = self._evaluate(grad, counts)
        return gradients

    def _count(self, entries: Sequence[Entry], counts: dict[Node, int]) -> None:
        """How many outputs each node of the gradient has: as many as it declares, or as are used."""
        for entry in entries:
            if entry in self.values:
                continue
            first = entry.node not in counts
            counts[entry.node] = max(counts.get(entry.node, entry.node.num_outputs), entry.index + 1)
            if first:
                self._count(entry.node.inputs, counts)

    def _evaluate(self, entry: Entry, counts: dict[Node, int]) -> Any:
        if entry in self.values:
            return self.values[entry]
        node = entry.node
        assert node.op is not None, f"FGradient reads an unknown variable {node.name}"
        ins = [self._evaluate(entry, counts) for entry in node.inputs]
        shapes, types = self._backward_meta(node, ins, counts[node])
        call = Call(self, node, ins, shapes, types, frozenset(node.op.aux_indices(node.params)))
        call.inputs = call.fresh()
        call.outputs = call.empty()
        # Auxiliary states that it writes are the row's own: what happens to them is compared too.
        mine = [ins[k] if k in call.mutated else array for k, array in enumerate(call.fresh())]
        call.compute(mine, [WRITE] * len(shapes), call.outputs)
        self.calls.append(call)
        self.values.update({Entry(node, k): out for k, out in enumerate(call.outputs)})
        return self.values[entry]

    def _backward_meta(self, node: Node, ins: Sequence[Any], count: int) -> tuple[list[Any], list[Any]]:
        """Shapes and types of a gradient node's outputs: its forward node's inputs', or its own rules'."""
        if node.op.is_backward and node.op.shape_rule is None and node.forward is not None:
            forward = node.forward
            aux = set(forward.op.aux_indices(forward.params))
            arrays = [self.values[entry] for k, entry in enumerate(forward.inputs) if k not in aux][:count]
            return [a.shape for a in arrays], [a.dtype for a in arrays]
        shapes = infer_shapes(node, [a.shape for a in ins], [None] * count)[1]
        types = infer_types(node, [a.dtype for a in ins], [None] * count)[1]
        assert all(known(shape) for shape in shapes), f"{node.op.name} leaves the gradient's shape unknown: {shapes}"
        assert all(dtype is not None for dtype in types), f"{node.op.name} leaves the gradient's type unknown"
        return shapes, types
