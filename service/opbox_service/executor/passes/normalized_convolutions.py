"""BatchNorm with ReLU as the last steps of the convolution before it, in a plan for inference.

    y = Convolution(x, w), z = relu(BatchNorm(y))   ->   z = normalized Convolution(x, w)

where they alone read y, and nobody reads the statistics. What is computed has the bits of two steps, by the statistics
of a batch too, which such a plan may be run with. A plan that trains keeps both: backward reads y.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from opbox_ops.compute import CallSpec, OpReq
from opbox_ops.nn.normalized_convolution import NORMALIZED_CONVOLUTION, NormalizedConvolutionParams
from opbox_ops.nn.normalized_relu import NORMALIZED_RELU
from opbox_ops.node import Node

from ..plan import UNWANTED, Plan, Step

__all__ = ["normalized_convolutions"]

_log = logging.getLogger(__name__)


def normalized_convolutions(plan: Plan) -> Plan:
    """The plan whose convolutions normalize what they write; it logs how many there are."""
    if plan.device != "cpu" or plan.trains:
        return plan
    readers = plan.readers()
    joined: dict[int, Step] = {}
    for t in range(plan.forward_steps - 1):
        pair = plan.steps[t], plan.steps[t + 1]
        if _may_join(plan, *pair, readers) and (step := _joined(plan, *pair)) is not None:
            joined[t] = step
    if joined:
        gone = {t + 1 for t in joined}
        plan.steps = [joined.get(t, step) for t, step in enumerate(plan.steps) if t not in gone]
        plan.forward_steps -= len(gone)
        _log.debug("normalized convolutions: %d", len(joined))
    return plan


def _may_join(plan: Plan, first: Step, norm: Step, readers: list[int]) -> bool:
    """Return whether the second step is BatchNorm with ReLU that alone reads what the first, a library's, writes."""
    op = first.node.op
    if op is None or op.name != "Convolution" or first.view or first.compute.level != "library":
        return False
    if norm.node.op is not NORMALIZED_RELU or norm.reads[0] != first.writes[0] or first.req != (OpReq.WRITE,):
        return False
    statistics = [value for value in norm.writes[1:] if value != UNWANTED]
    if norm.req[0] != OpReq.WRITE or any(readers[v] or plan.values[v].array is not None for v in statistics):
        return False
    value, out = plan.values[first.writes[0]], plan.values[norm.writes[0]]
    alone = readers[first.writes[0]] == 1 and value.array is None and value.part is None and out.part is None
    return alone and value.spec == out.spec and value.spec.dtype == np.float32


def _joined(plan: Plan, first: Step, norm: Step) -> Step | None:
    """Return the one step for both; None where there is no kernel for it."""
    op = NORMALIZED_CONVOLUTION
    behind: Any = norm.node.params
    params = NormalizedConvolutionParams(params=first.node.params, call=first.call, norm=behind.params)
    call = CallSpec(plan.device, (*first.call.inputs, *norm.call.inputs[1:]), first.call.outputs)
    computes = [one for one in op.computes(call.device) if one.takes(params, call)]
    if not computes:
        return None
    node = Node(op, f"{first.node.name} to {norm.node.name}", params=params, source=first.node.source)
    members = tuple([one for step in (first, norm) for one in step.members or (step,)])
    reads, temps = (*first.reads, *norm.reads[1:]), op.temps(computes[0], params, call)
    return Step(node, computes[0], call, reads, [norm.writes[0]], (OpReq.WRITE,), temps, members=members)
