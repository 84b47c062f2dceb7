"""BatchNorm with ReLU as the last steps of the convolution before it, in a plan for inference.

    y = Convolution(x, w), z = relu(BatchNorm(y))   ->   z = normalized Convolution(x, w)

where they alone read y, and nobody reads the statistics. What is computed has the bits of two steps, by the statistics
of a batch too, which such a plan may be run with. A plan that trains keeps both: backward reads y.
"""

from __future__ import annotations

import logging
from typing import Any

from opbox_ops.compute import CallSpec
from opbox_ops.nn.normalized_convolution import NORMALIZED_CONVOLUTION, NormalizedConvolutionParams
from opbox_ops.nn.normalized_relu import NORMALIZED_RELU

from ..plan import UNWANTED, Plan, Step
from .joined_pairs import join_pairs, joined, reads_alone

__all__ = ["normalized_convolutions"]

_log = logging.getLogger(__name__)


def normalized_convolutions(plan: Plan) -> Plan:
    """The plan whose convolutions normalize what they write; it logs how many there are."""
    if plan.device != "cpu" or plan.trains:
        return plan

    def join(first: Step, norm: Step, readers: list[int]) -> Step | None:
        return _joined(plan, first, norm) if _may_join(plan, first, norm, readers) else None

    if count := join_pairs(plan, join):
        _log.debug("normalized convolutions: %d", count)
    return plan


def _may_join(plan: Plan, first: Step, norm: Step, readers: list[int]) -> bool:
    """Return whether the second step is BatchNorm with ReLU, and alone reads the first, a library's convolution."""
    if first.node.op is None or first.node.op.name != "Convolution" or norm.node.op is not NORMALIZED_RELU:
        return False
    statistics = [value for value in norm.writes[1:] if value != UNWANTED]
    unread = not any(readers[value] or plan.values[value].array is not None for value in statistics)
    return unread and reads_alone(plan, first, norm, readers)


def _joined(plan: Plan, first: Step, norm: Step) -> Step | None:
    """Return the one step for both; None where there is no kernel for it."""
    behind: Any = norm.node.params
    params = NormalizedConvolutionParams(params=first.node.params, call=first.call, norm=behind.params)
    call = CallSpec(plan.device, (*first.call.inputs, *norm.call.inputs[1:]), first.call.outputs)
    return joined(NORMALIZED_CONVOLUTION, params, call, first, norm)
