"""ReLU as the last step of the convolution or product before it, where that has a kernel for both.

    y = Convolution(x, w), z = relu(y)   ->   z = rectified Convolution(x, w)        FullyConnected likewise

That takes a step that ReLU alone reads. In training too: the gradient of ReLU reads z, that of a convolution neither.
What is computed has the bits of two steps.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from opbox_ops.compute import OpReq
from opbox_ops.nn.rectified import RECTIFIED, RectifiedParams
from opbox_ops.node import Node

from ..plan import Plan, Step

__all__ = ["rectified"]

_log = logging.getLogger(__name__)


def rectified(plan: Plan) -> Plan:
    """The plan whose convolutions and products are followed by no ReLU of their own; it logs how many there were."""
    if plan.device != "cpu":
        return plan
    readers = plan.readers()
    joined: dict[int, Step] = {}
    for t in range(plan.forward_steps - 1):
        pair = plan.steps[t], plan.steps[t + 1]
        if _may_join(plan, *pair, readers) and (step := _joined(*pair)) is not None:
            joined[t] = step
    if joined:
        gone = {t + 1 for t in joined}
        plan.steps = [joined.get(t, step) for t, step in enumerate(plan.steps) if t not in gone]
        plan.forward_steps -= len(gone)
        _log.debug("rectified: %d", len(joined))
    return plan


def _may_join(plan: Plan, first: Step, relu: Step, readers: list[int]) -> bool:
    """Return whether the second step is a ReLU that alone reads what the first, a library's, writes whole."""
    op = first.node.op
    if op is None or op.name not in RECTIFIED or first.view or first.compute.level != "library" or not _is_relu(relu):
        return False
    if relu.reads != (first.writes[0],) or first.req != (OpReq.WRITE,) or relu.req != (OpReq.WRITE,):
        return False
    value, out = plan.values[first.writes[0]], plan.values[relu.writes[0]]
    alone = readers[first.writes[0]] == 1 and value.array is None and value.part is None and out.part is None
    return alone and value.spec == out.spec and value.spec.dtype == np.float32


def _is_relu(step: Step) -> bool:
    op, params = step.node.op, step.node.params
    if op is None or step.view:
        return False
    return op.name == "relu" or (op.name == "Activation" and getattr(params, "act_type", None) == "relu")


def _joined(first: Step, relu: Step) -> Step | None:
    """Return the one step for both; None where there is no kernel for it."""
    assert first.node.op is not None
    op, call = RECTIFIED[first.node.op.name], first.call
    params: Any = RectifiedParams(params=first.node.params)
    computes = [one for one in op.computes(call.device) if one.takes(params, call)]
    if not computes:
        return None
    node = Node(op, f"{first.node.name} to {relu.node.name}", params=params, source=first.node.source)
    members = tuple([one for step in (first, relu) for one in step.members or (step,)])
    temps = op.temps(computes[0], params, call)
    return Step(node, computes[0], call, first.reads, list(relu.writes), relu.req, temps, members=members)
