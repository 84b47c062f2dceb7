"""ReLU as the last step of the convolution or product before it, where that has a kernel for both.

    y = Convolution(x, w), z = relu(y)   ->   z = Convolution with ReLU         FullyConnected likewise

That takes a step that ReLU alone reads. In training too: the gradient of ReLU reads z, that of a convolution neither.
What is computed has the bits of two steps.
"""

from __future__ import annotations

import logging

from opbox_ops.nn.relu_epilogue import WITH_RELU, ReluEpilogueParams

from ..plan import Plan, Step
from .joined_pairs import join_pairs, joined, reads_alone

__all__ = ["relu_epilogues"]

_log = logging.getLogger(__name__)


def relu_epilogues(plan: Plan) -> Plan:
    """The plan whose convolutions and products are followed by no ReLU of their own; it logs how many there were."""
    if plan.device != "cpu":
        return plan

    def join(first: Step, relu: Step, readers: list[int]) -> Step | None:
        op = None if first.node.op is None else WITH_RELU.get(first.node.op.name)
        if op is None or not _is_relu(relu) or not reads_alone(plan, first, relu, readers):
            return None
        return joined(op, ReluEpilogueParams(params=first.node.params), first.call, first, relu)

    if count := join_pairs(plan, join):
        _log.debug("relu_epilogues: %d", count)
    return plan


def _is_relu(step: Step) -> bool:
    op, params = step.node.op, step.node.params
    if op is None or step.view:
        return False
    return op.name == "relu" or (op.name == "Activation" and getattr(params, "act_type", None) == "relu")
