"""Products that share a weight: the FullyConnected steps of an unrolled recurrent network, in few products.

- Forward: steps with one weight and bias whose inputs are all there before the first of them runs become one step,
  whose output they have as rows. Up to `rows_limit` rows are put together; more are no faster.
- Backward: gradients of a weight that are only summed (`_grad_add`) become one step behind the last of them, which
  reads what those steps read. Their other gradients stay where they are. Weights whose calls have the same gradients
  of their outputs share one such step, which reads them once.

Values that wait for the common step live longer. It is made only where that leaves the most that is alive at once as
it was, within `GROWTH`. Numbers of 16 bits are summed in float32, and on a GPU rounded after each product.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from opbox_ops.accumulation import is_narrow
from opbox_ops.compute import LEVELS, PLAIN, ArraySpec, CallSpec, OpReq
from opbox_ops.infer import size_of
from opbox_ops.nn.shared_product import ROWS, STACKED, SUMMED, SharedProductParams, rows_limit
from opbox_ops.node import Node

from ..plan import UNWANTED, Part, Plan, Step, Value
from .live import LiveBytes

__all__ = ["GROWTH", "shared_products"]

GROWTH = 1.05
"""Maximum factor by which peak memory may grow."""
_TYPES = (np.dtype(np.float32), np.dtype(np.float64))

_log = logging.getLogger(__name__)


def shared_products(plan: Plan, growth: float = GROWTH) -> Plan:
    """The plan with common products; it logs which steps they stand for.

    Args:
        plan: the plan.
        growth: the factor by which the memory that is alive at once may grow.
    """
    steps = [t for t, step in enumerate(plan.steps) if _shared(step, plan.device) is not None]
    if len(steps) < 2:
        return plan
    replaced: dict[int, list[Step]] = {}
    _forward(plan, [t for t in steps if t < plan.forward_steps], replaced)
    _backward(plan, [t for t in steps if t >= plan.forward_steps], replaced, growth)
    if replaced:
        before, plan.forward_steps = plan.forward_steps, 0
        rewritten: list[Step] = []
        for t, step in enumerate(plan.steps):
            if t == before:
                plan.forward_steps = len(rewritten)
            rewritten += replaced.get(t, (step,))
        if before == len(plan.steps):
            plan.forward_steps = len(rewritten)
        plan.steps = rewritten
    return plan


def _shared(step: Step, device: str) -> Any:
    """The operator of a common product for such steps; None where there is none."""
    if step.node.op is None:
        return None
    op = step.node.op.get_attr("TSharedProduct")
    if op is None:
        return None
    call = step.call
    specs = (*call.inputs, *call.outputs)
    matrix = call.outputs[0] if op is STACKED else call.inputs[0]
    dtype = matrix.dtype
    narrow = is_narrow(dtype) and (device != "cpu" or step.kernel.level != LEVELS[0])
    if len(matrix.shape) != 2 or not (narrow or dtype in _TYPES):
        return None
    alike = all(spec.dtype == matrix.dtype and spec.layout == PLAIN and size_of(spec.shape) for spec in specs)
    return op if alike and matrix.shape[0] < ROWS else None


def _step(
    plan: Plan, members: list[Step], op: Any, reads: tuple[int, ...], writes: list[int], bias: bool, weights: int = 1
) -> Step:
    """The step of a common product."""
    name = f"{members[0].node.name} to {members[-1].node.name}"
    params = SharedProductParams(calls=len(members) // weights, bias=bias, weights=weights)
    specs = [plan.values[v].spec if v != UNWANTED else ArraySpec((0,), members[0].call.inputs[0].dtype) for v in writes]
    unwanted = frozenset(k for k, value in enumerate(writes) if value == UNWANTED)
    call = CallSpec(plan.device, plan.specs(reads), tuple(specs), unwanted)
    req = tuple([OpReq.NULL if value == UNWANTED else OpReq.WRITE for value in writes])
    node = Node(op, name, params=params, source=members[0].node.source)
    return Step(node, op.choose(params, call), call, reads, writes, req)


@dataclass(slots=True)
class _Stack:
    """Forward steps that may have one product.

    Attributes:
        at: where the first of them stands.
        rows: of all of them.
        members: their places among the steps.
    """

    at: int
    rows: int = 0
    members: list[int] = field(default_factory=list)


def _forward(plan: Plan, steps: list[int], replaced: dict[int, list[Step]]) -> None:
    written = {value: t for t, step in enumerate(plan.steps[: plan.forward_steps]) for value in step.writes}
    stacks: dict[Any, _Stack] = {}
    finished: list[_Stack] = []
    for t in steps:
        step, (data, *weights) = plan.steps[t], plan.steps[t].reads
        out, array = plan.values[step.writes[0]], plan.values[data].array
        if out.array is not None or step.view or (array is not None and array[0] == "aux"):
            continue
        key = (*weights, size_of(step.call.inputs[0].shape[1:]))
        stack, rows = stacks.get(key), step.call.inputs[0].shape[0]
        if stack is None or written.get(data, -1) >= stack.at or stack.rows + rows > rows_limit(plan.device):
            stack = stacks[key] = _Stack(t)
            finished.append(stack)
        stack.members.append(t)
        stack.rows += rows
    for stack in finished:
        if len(stack.members) > 1:
            _stack(plan, stack, replaced)


def _stack(plan: Plan, stack: _Stack, replaced: dict[int, list[Step]]) -> None:
    members = [plan.steps[t] for t in stack.members]
    out = members[0].call.outputs[0]
    base = plan.add(Value(ArraySpec((stack.rows, out.shape[1]), out.dtype)))
    begin = 0
    for member in members:
        value = plan.values[member.writes[0]]
        value.part = Part(base, begin)
        begin += value.nbytes
    weights = members[0].reads[1:]
    reads = (*(member.reads[0] for member in members), *weights)
    step = _step(plan, members, STACKED, reads, [base], len(weights) > 1)
    step.members = tuple(members)
    replaced.update({t: [] for t in stack.members})
    replaced[stack.at] = [step]
    _log.debug("shared product: %d steps, %s", len(members), step.node.name)


@dataclass(slots=True)
class _SumOfCalls:
    """A gradient that is a sum over calls.

    Attributes:
        calls: the places of the steps whose outputs it is the sum of.
        output: which output of theirs.
        values: what is written on the way: terms and partial sums.
        sums: the places of the additions.
    """

    calls: tuple[int, ...]
    output: int
    values: tuple[int, ...]
    sums: tuple[int, ...] = ()


def _backward(plan: Plan, steps: list[int], replaced: dict[int, list[Step]], growth: float) -> None:
    readers = plan.readers()
    sums: dict[int, _SumOfCalls] = {}
    calls = set(steps)
    for t in range(plan.forward_steps, len(plan.steps)):
        step = plan.steps[t]
        if t in calls:
            for k, value in enumerate(step.writes[1:], 1):
                if value != UNWANTED and plan.values[value].array is None:
                    sums[value] = _SumOfCalls((t,), k, (value,))
            continue
        if step.node.op is None or not step.node.op.get_attr("TGradientSum") or step.reads[0] == step.reads[1]:
            continue
        left, right = sums.get(step.reads[0]), sums.get(step.reads[1])
        target = step.writes[0]
        if left is None or right is None or left.output != right.output or plan.values[target].array is not None:
            continue
        if readers[step.reads[0]] > 1 or readers[step.reads[1]] > 1:
            continue
        del sums[step.reads[0]], sums[step.reads[1]]
        sums[target] = _SumOfCalls(
            left.calls + right.calls,
            left.output,
            (*left.values, *right.values, target),
            (*left.sums, *right.sums, t),
        )
    groups: dict[tuple[int, ...], dict[int, int]] = {}
    for value, total in sums.items():
        if len(total.calls) > 1:
            groups.setdefault(total.calls, {})[total.output] = value
    if not groups:
        return
    live = LiveBytes(plan)
    most = growth * live.peak
    commons: dict[frozenset[int], _CommonGradient] = {}
    for places, outputs in groups.items():
        common = _sum(plan, places, {k: (value, sums[value]) for k, value in outputs.items()}, live, most, replaced)
        if common is None:
            continue
        gouts = frozenset(common.step.reads[: len(places)])
        other = commons.get(gouts)
        commons[gouts] = common if other is None else _merge(plan, other, common, live, most, replaced) or common


@dataclass(frozen=True, slots=True)
class _CommonGradient:
    """A step that computes summed gradients, behind the step at place `at`, and what it stands for."""

    at: int
    step: Step
    members: list[Step]


def _sum(
    plan: Plan,
    places: tuple[int, ...],
    outputs: dict[int, tuple[int, _SumOfCalls]],
    live: LiveBytes,
    most: float,
    replaced: dict[int, list[Step]],
) -> _CommonGradient | None:
    """Replace what computes these gradients, each the sum of an output of the steps at `places`, by one step."""
    last, members = max(places), [plan.steps[t] for t in sorted(places)]
    reads = (*(step.reads[0] for step in members), *(step.reads[1] for step in members))
    gone = [v for value, total in outputs.values() for v in total.values if v != value]
    if not live.change(dict.fromkeys(reads, last), gone, most):
        _log.debug("shared gradient: %s would take too much memory", members[0].node.name)
        return None
    writes = [outputs[k][0] if k in outputs else UNWANTED for k in (1, 2)]
    common = _step(plan, members, SUMMED, reads, writes, 2 in outputs)
    for t, step in zip(sorted(places), members, strict=True):
        first, *behind = replaced.get(t, [step])
        rest = _without(first, outputs)
        replaced[t] = behind if rest is None else [rest, *behind]
    replaced[last] = [*replaced[last], common]
    replaced.update({t: [] for _, total in outputs.values() for t in total.sums})
    _log.debug("shared gradient: %d steps, %s", len(members), common.node.name)
    return _CommonGradient(last, common, members)


def _merge(
    plan: Plan,
    one: _CommonGradient,
    other: _CommonGradient,
    live: LiveBytes,
    most: float,
    replaced: dict[int, list[Step]],
) -> _CommonGradient | None:
    """One step for the gradients of weights whose calls have the same gouts, where the first of both stood.

    A cell's sum hands one gradient to the products of its input and of its state. None where it cannot be.
    """
    first, second = sorted((one, other), key=lambda common: common.at)
    mine: Any = first.step.node.params
    theirs: Any = second.step.node.params
    gouts, calls = second.step.reads[: theirs.calls], theirs.calls
    if len(set(gouts)) < calls or mine.calls != calls or first.step.kernel.level != second.step.kernel.level:
        return None
    written = {value for step in plan.steps[first.at + 1 : second.at + 1] for value in step.writes}
    if not written.isdisjoint(second.step.reads):
        return None
    if not live.write_earlier(second.step.writes, first.at, most):
        return None
    order = [first.step.reads.index(gout) for gout in gouts]
    datas = [first.step.reads[calls * (w + 1) + i] for w in range(mine.weights) for i in order]
    reads = (*second.step.reads, *datas)
    writes = [*second.step.writes, *first.step.writes]
    members = [*second.members, *first.members]
    weights = theirs.weights + mine.weights
    common = _step(plan, members, SUMMED, reads, writes, theirs.bias or mine.bias, weights)
    for at, old in ((first.at, first.step), (second.at, second.step)):
        replaced[at] = [step for step in replaced[at] if step is not old]
    replaced[first.at] = [*replaced[first.at], common]
    _log.debug("shared gradient: %d weights, %s", weights, common.node.name)
    return _CommonGradient(first.at, common, members)


def _without(step: Step, outputs: dict[int, Any]) -> Step | None:
    """The step that does not compute these outputs; None where no other is wanted."""
    writes = [UNWANTED if k in outputs else value for k, value in enumerate(step.writes)]
    if all(value == UNWANTED for value in writes):
        return None
    op = step.node.op
    assert op is not None
    call = replace(step.call, unwanted=step.call.unwanted | frozenset(outputs))
    kernel = op.choose(step.node.params, call, step.kernel.level)
    req = tuple([OpReq.NULL if value == UNWANTED else req for value, req in zip(writes, step.req, strict=True)])
    return replace(step, call=call, writes=writes, req=req, kernel=kernel)
