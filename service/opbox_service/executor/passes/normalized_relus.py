"""Batch normalisation with the ReLU behind it in one step, forward and backward: fewer sweeps through memory.

    n = BatchNorm(x), y = relu(n)          ->   y = normalized_relu(x)
    h = gradient of relu(g, y),
    gx = gradient of BatchNorm(h, x)       ->   gx = gradient of normalized_relu(g, x)

where oneDNN would run BatchNorm on arrays with the channels last, and nobody else reads n, or h. It takes a C compiler
on the machine: by NumPy alone the sweeps take three times as long as oneDNN's and ReLU's. Float32 agrees within its
rounding, as the statistics are added up in another order.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from opbox_ops import c_compiler
from opbox_ops.compute import CallSpec, OpReq
from opbox_ops.nn.normalized_relu import (
    NORMALIZED_RELU,
    NORMALIZED_RELU_BACKWARD,
    NormalizedReluParams,
    is_for_sweeps,
)
from opbox_ops.node import Node
from opbox_ops.operator import Op

from ..plan import Plan, Step

__all__ = ["normalized_relus"]

_log = logging.getLogger(__name__)


def normalized_relus(plan: Plan) -> Plan:
    """The plan with its pairs in one step; it logs how many there are."""
    forwards = [t for t, step in enumerate(plan.steps) if _is(step, "BatchNorm") and _is_library(step)]
    if plan.device != "cpu" or not forwards or not c_compiler.may_compile():
        return plan
    readers = plan.readers()
    joined: dict[int, Step] = {}
    normalized: dict[int, int] = {}
    for t in forwards:
        pair = plan.steps[t : t + 2]
        if t + 1 < plan.forward_steps and _follows(plan, pair, "Activation", readers):
            norm, relu = pair
            joined[t] = _step(NORMALIZED_RELU, pair, norm.reads, [relu.writes[0], *norm.writes[1:]], norm.call)
            normalized[relu.writes[0]] = norm.reads[2]
    for t in range(plan.forward_steps, len(plan.steps) - 1):
        pair = plan.steps[t : t + 2]
        relu, norm = pair
        if not (_is(relu, "_backward_Activation") and relu.reads[1] in normalized and _is_library(norm)):
            continue
        if _follows(plan, pair, "_backward_BatchNorm", readers):
            beta = normalized[relu.reads[1]]
            reads = (relu.reads[0], *norm.reads[1:3], beta, *norm.reads[3:])
            specs = norm.call.inputs
            call = CallSpec(plan.device, (*specs[:3], plan.values[beta].spec, *specs[3:]), norm.call.outputs)
            joined[t] = _step(NORMALIZED_RELU_BACKWARD, pair, reads, norm.writes, call, norm.req)
    if joined:
        gone = {t + 1 for t in joined}
        plan.steps = [joined.get(t, step) for t, step in enumerate(plan.steps) if t not in gone]
        plan.forward_steps -= len([t for t in gone if t < plan.forward_steps])
        _log.debug("normalized relus: %d", len(joined))
    return plan


def _is(step: Step, name: str) -> bool:
    return step.node.op is not None and step.node.op.name == name and not step.view


def _is_library(step: Step) -> bool:
    return step.compute.level == "library"


def _follows(plan: Plan, pair: Sequence[Step], name: str, readers: list[int]) -> bool:
    """Return whether the second step is `name`, alone reads the first one's output, and both are for sweeps."""
    first, second = pair
    if not _is(second, name) or second.reads[0] != first.writes[0]:
        return False
    relu, norm = (second, first) if name == "Activation" else (first, second)
    value = plan.values[first.writes[0]]
    alone = readers[first.writes[0]] == 1 and value.array is None and value.part is None
    data = norm.call.inputs[0 if norm is first else 1]
    others = [spec.dtype for spec in norm.call.inputs]
    function: Any = relu.node.params
    params: Any = norm.node.params
    return (
        alone
        and function.act_type == "relu"
        and set(relu.req) == {OpReq.WRITE}
        and norm.req[0] != OpReq.ADD
        and is_for_sweeps(params, data)
        and all(dtype == data.dtype for dtype in others)
    )


def _step(
    op: Op, pair: Sequence[Step], reads: tuple[int, ...], writes: list[int], call: CallSpec, req: tuple[OpReq, ...] = ()
) -> Step:
    """Return the one step that replaces both; its first output may be written over its first input."""
    norm = pair[0] if op is NORMALIZED_RELU else pair[1]
    params = NormalizedReluParams(params=norm.node.params)
    compute = op.choose(params, call)
    node = Node(op, f"{pair[0].node.name} to {pair[1].node.name}", params=params, source=norm.node.source)
    members = tuple([one for step in pair for one in step.members or (step,)])
    temps = op.temps(compute, params, call)
    return Step(node, compute, call, reads, list(writes), req or norm.req, temps, inplace=((0, 0),), members=members)
