"""A run, forward or backward, that shows a monitor each operator's outputs, in the graph's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from opbox_ops.compute import Array, ArraySpec, OpContext
from opbox_ops.layout import logical, physical, physical_shape
from opbox_ops.node import Node

from .allocation import allocate
from .calls import Call, Calls
from .placed_arrays import PlacedArrays
from .plan import UNWANTED, Plan, Step

__all__ = ["backward_nodes", "run_monitored"]


def run_monitored(
    plan: Plan,
    half: Calls,
    placed: PlacedArrays,
    context: Callable[[tuple[Array, ...]], OpContext],
    monitor: Callable[[str, Array], None],
    *,
    backward: bool = False,
) -> None:
    """Run one half of a plan.

    Args:
        plan, half, placed: the plan, the calls of that half, and its arrays.
        context: makes the context of a call that runs for the monitor alone, from its temporaries.
        monitor: called after each operator with each output's name and array, which is valid during the call only.
            An output of a backward operator that no gradient needs is not computed: zeros are shown.
        backward: which half.
    """
    calls: dict[Node, list[Call]] = {}
    for node, call in zip(half.nodes, half.calls, strict=True):
        calls.setdefault(node, []).append(call)
    names = plan.trace.names if backward and plan.trace is not None else None
    if backward:
        steps, nodes = plan.steps[plan.forward_steps :], backward_nodes(plan)
        names = {node: names[node] for node in nodes} if names is not None else {}
    else:
        steps = plan.steps[: plan.forward_steps]
        nodes = [member.node for step in steps for member in step.members or (step,) if _is_shown(member)]
        nodes.sort(key=plan.graph.index.__getitem__)
    shown = _InOrder(nodes, monitor, names)
    for step in steps:
        members = step.members or (step,)
        inner = [value for member in step.members for value in member.writes if value != UNWANTED]
        if any(placed.arrays[value] is None for value in inner):
            # What the step computes on its way is in no array: its members show it.
            _run_members(plan, step, placed, context, shown, names)
            members = ()
        # A view has no call: its values are there as soon as its input's are.
        if calls.get(step.node):
            Calls([calls[step.node].pop(0)], [step.node]).run()
        for member in members:
            if _is_shown(member, names):
                arrays: list[Array | None] = list(placed.of(member.writes))
                shown.add(member.node, _with_zeros(plan, placed, member, arrays) if backward else arrays)


def backward_nodes(plan: Plan) -> list[Node]:
    """The operators of the backward half that a monitor is shown, in their order."""
    if plan.trace is None:
        return []
    steps = plan.steps[plan.forward_steps :]
    ran = {member.node for step in steps for member in step.members or (step,) if _is_shown(member)}
    return [node for row in plan.trace.shown if row.head is None for node in row.nodes if node in ran]


def _backward_specs(plan: Plan, step: Step) -> list[ArraySpec]:
    """Shapes and types of what is shown of a backward step: its outputs, and zeros for inputs without a gradient."""
    specs = list(step.call.outputs)
    assert plan.trace is not None
    missing = len(plan.trace.names[step.node]) - len(specs)
    if missing > 0 and step.node.forward is not None:
        forward = next(m for s in plan.steps for m in s.members or (s,) if m.node is step.node.forward)
        specs += forward.call.inputs[len(specs) : len(specs) + missing]
    return specs


def _with_zeros(plan: Plan, placed: PlacedArrays, step: Step, arrays: Sequence[Array | None]) -> Sequence[Array | None]:
    """The outputs of a backward step as they are shown: zeros for those that no gradient needs."""
    specs = _backward_specs(plan, step)
    arrays = [*arrays, *[None] * (len(specs) - len(arrays))]
    return [_zeros(placed, spec) if array is None else array for array, spec in zip(arrays, specs, strict=True)]


def _zeros(placed: PlacedArrays, spec: ArraySpec) -> Array:
    return allocate(placed.backend, spec.shape, spec.dtype)


def _is_shown(step: Step, names: Mapping[Node, object] | None = None) -> bool:
    """Return whether it computes what an operator of the graph does, and not what the executor needs besides."""
    return step.node.op is not None and not step.hidden and (names is None or step.node in names)


def _run_members(
    plan: Plan,
    step: Step,
    placed: PlacedArrays,
    context: Callable[[tuple[Array, ...]], OpContext],
    shown: _InOrder,
    names: Mapping[Node, object] | None,
) -> None:
    """Run the steps that `step` stands for, in memory of their own."""
    arrays: dict[int, Array] = {}
    for member in step.members:
        specs = member.call.outputs
        targets = [logical(allocate(placed.backend, physical_shape(spec), spec.dtype), spec.layout) for spec in specs]
        temps = tuple([allocate(placed.backend, temp.planned, temp.dtype) for temp in member.temps])
        ctx = context(temps)
        ctx.call = member.call
        outer = placed.physical if member.takes_physical else placed.of
        inputs = [_inner(plan, member, arrays[v], v) if v in arrays else outer((v,))[0] for v in member.reads]
        Calls([member.kernel.bind(member.node.params, ctx, inputs, targets)], [member.node]).run()
        if member.takes_physical:
            layouts = [plan.values[v].spec.layout for v in member.writes]
            targets = [logical(array, layout) for array, layout in zip(targets, layouts, strict=True)]
        arrays.update(zip(member.writes, targets, strict=True))
        if _is_shown(member, names):
            shown.add(member.node, targets if names is None else _with_zeros(plan, placed, member, targets))


def _inner(plan: Plan, member: Step, array: Array, value: int) -> Array:
    """A value that another member has computed, as this member takes it."""
    return physical(array, plan.values[value].spec.layout) if member.takes_physical else array


class _InOrder:
    """Shows a monitor the outputs of nodes in graph order, even if they are computed in another.

    Args:
        nodes: the nodes that will come, in the order to show them.
        monitor: called with each output's name and array.
        names: the outputs' names by node; by default the nodes' own.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        monitor: Callable[[str, Array], None],
        names: Mapping[Node, Sequence[str]] | None = None,
    ) -> None:
        self._nodes = nodes
        self._names = names
        self._next = 0
        self._monitor = monitor
        self._early: dict[Node, list[Array | None]] = {}

    def add(self, node: Node, arrays: Sequence[Array | None]) -> None:
        """Show the outputs of `node`, or note them until its turn: their arrays may be used for others meanwhile."""
        if node is not self._nodes[self._next]:
            self._early[node] = [None if array is None else array.copy() for array in arrays]
            return
        self._show(node, arrays)
        while self._early and self._nodes[self._next] in self._early:
            self._show(self._nodes[self._next], self._early.pop(self._nodes[self._next]))

    def _show(self, node: Node, arrays: Sequence[Array | None]) -> None:
        self._next += 1
        for name, array in zip(self._names[node] if self._names else node.output_names(), arrays, strict=True):
            if array is not None:
                self._monitor(name, array)
