"""Steps of forward that become one with the step behind them, which alone reads what they write: what passes share."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from opbox_ops.compute import CallSpec, OpReq
from opbox_ops.node import Node
from opbox_ops.operator import Op
from opbox_ops.params import Params

from ..plan import Plan, Step

__all__ = ["join_pairs", "joined", "reads_alone"]


def join_pairs(plan: Plan, join: Callable[[Step, Step, list[int]], Step | None]) -> int:
    """Put one step in the place of each two of forward, of which `join` makes one; how many there were.

    Args:
        join: from a step, the one behind it, and the number of readers of each value, to one step; None: they stay.
    """
    readers, forward = plan.readers(), plan.steps[: plan.forward_steps]
    steps = {t: step for t, pair in enumerate(pairwise(forward)) if (step := join(*pair, readers)) is not None}
    if steps:
        gone = {t + 1 for t in steps}
        plan.steps = [steps.get(t, step) for t, step in enumerate(plan.steps) if t not in gone]
        plan.forward_steps -= len(gone)
    return len(steps)


def reads_alone(plan: Plan, first: Step, second: Step, readers: list[int]) -> bool:
    """Whether the second step alone reads the output of the first, a library's: float32, which it writes on as it is.

    Both write whole arrays, and what is between them is neither the user's nor a part of another array.
    """
    if first.view or first.kernel.level != "library" or second.reads[:1] != (first.writes[0],):
        return False
    value, out = plan.values[first.writes[0]], plan.values[second.writes[0]]
    alone = readers[first.writes[0]] == 1 and value.array is None and value.part is None and out.part is None
    whole = first.req == (OpReq.WRITE,) and second.req[0] == OpReq.WRITE
    return alone and whole and value.spec == out.spec and value.spec.dtype == np.float32


def joined(op: Op, params: Params, call: CallSpec, first: Step, second: Step) -> Step | None:
    """The step of `op` for both, which reads what they read; None where no compute takes the call."""
    kernel = op.find_kernel(params, call, first.kernel.level)
    if kernel is None:
        return None
    node = Node(op, f"{first.node.name} to {second.node.name}", params=params, source=first.node.source)
    members = tuple([one for step in (first, second) for one in step.members or (step,)])
    reads = (*first.reads, *second.reads[1:])
    return Step(node, kernel, call, reads, second.writes[:1], second.req[:1], members=members)
