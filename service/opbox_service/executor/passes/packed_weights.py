"""Packed weights: a kernel's copies of weights stay from one inference to the next.

oneDNN wants a convolution's weight laid out for its kernel. A kernel says which of its temporaries are such copies
(`packs`), and where the weight is an argument that is read for nothing else, the temporary gets memory of its own in
place of a piece of the arena. A plan with a backward has both, as weights are written to between two steps of a
training: such a run packs in the arena, and an executor that is never run for inference does not touch the memory.

Whether the copy is still the weight's is for who runs the plan to say, by the number that `BoundPlan.forward` is
given: without one it is made anew in each run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from opbox_ops import switches

from ..plan import Plan

__all__ = ["packed_weights", "without_packed_weights"]


def packed_weights(plan: Plan) -> Plan:
    """The plan with the steps that have packed weights marked (`Step.packed`), unless OPBOX_DISABLE forbids it."""
    if switches.is_off("packed-weights") or plan.device != "cpu":
        return plan
    packing: Counter[int] = Counter()
    pairs = {}
    for t, step in enumerate(plan.steps[: plan.forward_steps]):
        if step.kernel.packs:
            pairs[t] = step.kernel.packs
            packing.update([step.reads[i] for i, _ in pairs[t]])
    if not packing:
        return plan
    readers = Counter([value for step in plan.steps[: plan.forward_steps] for value in step.reads] + plan.outputs)
    fit = {
        value
        for value, count in packing.items()
        if count == readers[value] and (plan.values[value].array or ("",))[0] == "arg"
    }
    for t, pair in pairs.items():
        step = plan.steps[t]
        packed = tuple([k for i, k in pair if step.reads[i] in fit])
        # All or none: the kernel makes its copies together.
        if packed and len(packed) == len(pair):
            plan.steps[t] = replace(step, packed=packed)
    return plan


def without_packed_weights(plan: Plan) -> Plan:
    """The plan with no step marked."""
    plan.steps = [replace(step, packed=()) if step.packed else step for step in plan.steps]
    return plan
