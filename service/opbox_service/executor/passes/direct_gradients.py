"""Write gradients straight into the user's arrays: removes the copies from a step's output to a gradient array.

Lowering ends each gradient in a copy `array = value` or `array += value`. The copy goes, and the step that makes the
value writes the array itself, where

- the array is overwritten (`write`); other steps may read the value, they then read the array;
- or it is added to, nothing else reads the value, and the step's kernel accumulates;

and the array is contiguous, as computes expect their outputs.
"""

from __future__ import annotations

from opbox_ops.compute import OpReq

from ...graph.passes.memory import External
from ..copying import is_copy
from ..plan import Plan

__all__ = ["direct_gradients"]


def direct_gradients(plan: Plan) -> Plan:
    """The plan without the copies that its steps can do without."""
    makers = {
        value: (t, k)
        for t in range(plan.forward_steps, len(plan.steps))
        for k, value in enumerate(plan.steps[t].writes)
        if plan.steps[t].node.op is not None
    }
    readers = plan.readers()
    dropped: set[int] = set()
    for t in range(plan.forward_steps, len(plan.steps)):
        step = plan.steps[t]
        if not is_copy(step):
            continue
        source, target = step.reads[0], step.writes[0]
        array = plan.values[target].array
        if source not in makers or plan.values[source].array is not None or array in plan.strided:
            continue
        maker, k = makers[source]
        if step.req[0] == OpReq.ADD:
            if readers[source] > 1 or not plan.steps[maker].kernel.accumulates or plan.steps[maker].view:
                continue
            req = plan.steps[maker].req
            plan.steps[maker].req = (*req[:k], OpReq.ADD, *req[k + 1 :])
        plan.values[source].array = array
        plan.external[source] = External(adopt=step.req[0] == OpReq.WRITE, since=plan.forward_steps)
        plan.external.pop(target, None)
        dropped.add(t)
    plan.steps = [step for t, step in enumerate(plan.steps) if t not in dropped]
    return plan
