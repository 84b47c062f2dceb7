"""Residual sums: a convolution adds its output to what it is to be added to, and the sum is no step of its own.

    y = Convolution(x, w), z = y + shortcut   ->   z = shortcut, and Convolution adds to it

oneDNN adds as it writes, so that an array is read once instead of being written, read and added. The convolution stands
where it stood, and writes the sum. That takes a convolution that nobody else reads, and a shortcut that is there before
it and that nobody reads behind it: the sum lies in the shortcut's memory. Training keeps most shortcuts for backward:
there a convolution whose kernel can add to what lies elsewhere writes the sum to memory of its own, and all others stay
as they were. Float32 agrees within its rounding.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from opbox_ops.compute import CallSpec, Kernel, OpReq
from opbox_ops.nn.summed_convolution import SUMMED, SummedParams
from opbox_ops.node import Node

from ..plan import Plan, Step
from .live import LiveBytes

__all__ = ["residual_sums"]

_SUMS = ("elemwise_add", "broadcast_add")
_Choice = tuple[SummedParams, CallSpec, Kernel]

_log = logging.getLogger(__name__)


def residual_sums(plan: Plan) -> Plan:
    """The plan whose convolutions add; it logs how many sums are gone."""
    forward = plan.steps[: plan.forward_steps]
    makers = {step.writes[0]: t for t, step in enumerate(forward) if _may_add(step)}
    sums = [t for t, step in enumerate(forward) if step.node.op is not None and step.node.op.name in _SUMS]
    if plan.device != "cpu" or not makers or not sums:
        return plan
    live, readers = LiveBytes(plan), plan.readers()
    choices: dict[Any, _Choice | None] = {}
    gone: set[int] = set()
    for t in sums:
        step = plan.steps[t]
        for value, addend in (step.reads, step.reads[::-1]):
            at = makers.get(value, -1)
            alone = value != addend and at >= 0 and readers[value] == 1 and plan.values[value].array is None
            if not alone or not _is_there(plan, live, addend, at):
                continue
            apart = not _may_be_overwritten(plan, live, addend, at, t)
            if _joined(plan, at, step, addend, apart, choices):
                live.first[step.writes[0]] = at
                del makers[value]
                gone.add(t)
                break
    if gone:
        plan.steps = [step for t, step in enumerate(plan.steps) if t not in gone]
        plan.forward_steps -= len(gone)
        _log.debug("residual sums: %d", len(gone))
    return plan


def _may_add(step: Step) -> bool:
    """Return whether the step is a convolution of a library's that writes its output whole."""
    op = step.node.op
    return op is not None and op.name == "Convolution" and step.kernel.level == "library" and step.req == (OpReq.WRITE,)


def _is_there(plan: Plan, live: LiveBytes, addend: int, at: int) -> bool:
    """True if the addend is a value of the plan's that is written before step `at`."""
    placed = plan.values[addend]
    return placed.part is None and placed.array is None and 0 <= live.first[addend] < at


def _may_be_overwritten(plan: Plan, live: LiveBytes, addend: int, at: int, t: int) -> bool:
    """True if the sum may lie in the addend's memory from step `at` on: steps before it write it, and of those from
    there on the sum at `t` alone reads it."""
    placed = plan.values[addend]
    if placed.array is not None or placed.part is not None or addend in live.whole.values() or addend in plan.outputs:
        return False
    if not 0 <= live.first[addend] < at or live.last[addend] != t:
        return False
    return not any(addend in step.reads or addend in step.writes for step in plan.steps[at:t])


def _joined(plan: Plan, at: int, total: Step, addend: int, apart: bool, choices: dict[Any, _Choice | None]) -> bool:
    """Let the convolution at `at` write the sum of the step `total`; False where there is no kernel for it.

    With `apart` the addend stays as it is.
    """
    step, values, out = plan.steps[at], plan.values, total.writes[0]
    spec = step.call.outputs[0]
    if spec.dtype != np.float32 or values[out].spec != spec or values[addend].spec != spec or total.req != step.req:
        return False
    if values[out].part is not None:
        return False
    key = (id(step.node.params), id(step.call), apart)
    if key not in choices:
        choices[key] = _choice(step, apart)
    choice = choices[key]
    if choice is None:
        return False
    params, call, kernel = choice
    name = f"{step.node.name} to {total.node.name}"
    node = Node(SUMMED, name, params=params, source=step.node.source)
    inplace = () if apart else ((len(step.reads), 0),)
    members = (*(step.members or (step,)), *(total.members or (total,)))
    reads = (*step.reads, addend)
    plan.steps[at] = Step(node, kernel, call, reads, [out], step.req, inplace=inplace, members=members)
    return True


def _choice(step: Step, apart: bool) -> _Choice | None:
    """Return the kernel of such a convolution with an addend; None where there is none."""
    call = CallSpec(step.call.device, (*step.call.inputs, step.call.outputs[0]), step.call.outputs)
    params = SummedParams(params=step.node.params, call=step.call, apart=apart)
    kernel = SUMMED.find_kernel(params, call, step.kernel.level)
    return None if kernel is None else (params, call, kernel)
