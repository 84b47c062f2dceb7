"""A forward run that shows a monitor each operator's outputs, in the graph's order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opbox_ops.compute import Array, OpContext
from opbox_ops.layout import as_laid, logical, physical
from opbox_ops.node import Node

from .allocation import allocate
from .calls import Calls
from .placed_arrays import PlacedArrays
from .plan import UNWANTED, Plan, Step

__all__ = ["run_monitored"]


def run_monitored(
    plan: Plan,
    forward: Calls,
    placed: PlacedArrays,
    context: Callable[[tuple[Array, ...]], OpContext],
    monitor: Callable[[str, Array], None],
) -> None:
    """Run a plan's forward half.

    Args:
        plan, forward, placed: the plan, the calls of that half, and its arrays.
        context: makes the context of a call that runs for the monitor alone, from its temporaries.
        monitor: called after each operator with each output's name and array, which is valid during the call only.
    """
    calls = dict(zip(forward.nodes, forward.calls, strict=True))
    steps = plan.steps[: plan.forward_steps]
    nodes = [member.node for step in steps for member in step.members or (step,) if _is_shown(member)]
    shown = _InOrder(sorted(nodes, key=plan.graph.index.__getitem__), monitor)
    for step in steps:
        members = step.members or (step,)
        inner = [value for member in step.members for value in member.writes if value != UNWANTED]
        if any(placed.arrays[value] is None for value in inner):
            # What the step computes on its way is in no array: its members show it.
            _run_members(plan, step, placed, context, shown)
            members = ()
        # A view has no call: its values are there as soon as its input's are.
        if step.node in calls:
            Calls([calls[step.node]], [step.node]).run()
        for member in members:
            if _is_shown(member):
                shown.add(member.node, placed.of(member.writes))


def _is_shown(step: Step) -> bool:
    """Return whether it computes what an operator of the graph does, and not what the executor needs besides."""
    return step.node.op is not None and not step.hidden


def _run_members(
    plan: Plan,
    step: Step,
    placed: PlacedArrays,
    context: Callable[[tuple[Array, ...]], OpContext],
    shown: _InOrder,
) -> None:
    """Run the steps that `step` stands for, in memory of their own."""
    arrays: dict[int, Array] = {}
    for member in step.members:
        specs = member.call.outputs
        targets = [logical(allocate(placed.backend, as_laid(spec), spec.dtype), spec.layout) for spec in specs]
        temps = tuple([allocate(placed.backend, temp.planned, temp.dtype) for temp in member.temps])
        ctx = context(temps)
        ctx.call = member.call
        outer = placed.laid if member.as_laid else placed.of
        inputs = [_inner(plan, member, arrays[v], v) if v in arrays else outer((v,))[0] for v in member.reads]
        Calls([member.compute.bound(member.node.params, ctx, inputs, targets)], [member.node]).run()
        if member.as_laid:
            layouts = [plan.values[v].spec.layout for v in member.writes]
            targets = [logical(array, layout) for array, layout in zip(targets, layouts, strict=True)]
        arrays.update(zip(member.writes, targets, strict=True))
        if not member.hidden:
            shown.add(member.node, targets)


def _inner(plan: Plan, member: Step, array: Array, value: int) -> Array:
    """A value that another member has computed, as this member takes it."""
    return physical(array, plan.values[value].spec.layout) if member.as_laid else array


class _InOrder:
    """Shows a monitor the outputs of nodes in one order, whatever the order they come in.

    Args:
        nodes: the nodes that will come, in the order to show them.
        monitor: called with each output's name and array.
    """

    def __init__(self, nodes: Sequence[Node], monitor: Callable[[str, Array], None]) -> None:
        self._nodes = nodes
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
        for name, array in zip(node.output_names(), arrays, strict=True):
            if array is not None:
                self._monitor(name, array)
