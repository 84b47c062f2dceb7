"""Batch normalisation with the ReLU behind it in one step, forward and backward: fewer sweeps through memory.

    n = BatchNorm(x), y = relu(n)          ->   y = normalized_relu(x)
    h = gradient of relu(g, y),
    gx = gradient of BatchNorm(h, x)       ->   gx = gradient of normalized_relu(g, x)
    s = gx + a                             ->   s = gradient of normalized_relu(g, x) + a

where oneDNN would run BatchNorm on arrays with the channels last, or a GPU's own kernels, and nobody else reads n, h or
gx. On a CPU it takes kernels in C: by NumPy alone the sweeps take three times as long as oneDNN's and
ReLU's. There float32 agrees within its rounding, as the statistics are added up in another order; the sum has the bits
of a step of its own. On a GPU all results have the bits of steps of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opbox_ops.compute import CallSpec, OpReq
from opbox_ops.cpu.runtime import c_compiler
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
    if not forwards or (plan.device == "cpu" and not c_compiler.has_kernels()):
        return plan
    readers = plan.readers()
    joined: dict[int, Step] = {}
    normalized: dict[int, int] = {}
    added: set[int] = set()
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
            call = replace(norm.call, inputs=(*specs[:3], plan.values[beta].spec, *specs[3:]))
            joined[t] = _step(NORMALIZED_RELU_BACKWARD, pair, reads, norm.writes, call, norm.req)
            if t + 2 < len(plan.steps) and (summed := _with_addend(plan, joined[t], plan.steps[t + 2], readers)):
                joined[t] = summed
                added.add(t + 2)
    if joined:
        gone = {t + 1 for t in joined} | added
        plan.steps = [joined.get(t, step) for t, step in enumerate(plan.steps) if t not in gone]
        plan.forward_steps -= len([t for t in gone if t < plan.forward_steps])
        _log.debug("normalized relus: %d", len(joined))
    return plan


def _is(step: Step, name: str) -> bool:
    return step.node.op is not None and step.node.op.name == name and not step.view


def _is_library(step: Step) -> bool:
    return step.kernel.level == ("library" if step.call.device == "cpu" else "generated")


def _follows(plan: Plan, pair: Sequence[Step], name: str, readers: list[int]) -> bool:
    """Return whether the second step is `name`, alone reads the first one's output, and both are for sweeps."""
    first, second = pair
    if not _is(second, name) or second.reads[0] != first.writes[0]:
        return False
    relu, norm = (second, first) if name == "Activation" else (first, second)
    value = plan.values[first.writes[0]]
    alone = readers[first.writes[0]] == 1 and value.array is None and value.part is None
    data = norm.call.inputs[0 if norm is first else 1]
    function: Any = relu.node.params
    params: Any = norm.node.params
    return (
        alone
        and function.act_type == "relu"
        and set(relu.req) == {OpReq.WRITE}
        and norm.req[0] != OpReq.ADD
        and (norm.call.device != "cpu" or is_for_sweeps(params, norm.call, data))
    )


def _with_addend(plan: Plan, norm: Step, total: Step, readers: list[int]) -> Step | None:
    """Return the gradient `norm` that writes the sum behind it, `total`; None where that is not its own and another."""
    gradient, addends = norm.writes[0], [value for value in total.reads if value != norm.writes[0]]
    if not _is(total, "_grad_add") or len(total.reads) != 2 or len(addends) != 1:
        return None
    if norm.req[0] != OpReq.WRITE or total.req != (OpReq.WRITE,):
        return None
    value, spec = plan.values[gradient], norm.call.outputs[0]
    placed = [plan.values[one] for one in (gradient, addends[0], total.writes[0])]
    if readers[gradient] != 1 or value.array is not None or any(one.spec != spec or one.part for one in placed):
        return None
    params: Any = norm.node.params
    summing = NormalizedReluParams(params=params.params, adds=True)
    call = replace(norm.call, inputs=(*norm.call.inputs, spec))
    kernel = NORMALIZED_RELU_BACKWARD.choose(summing, call)
    name = f"{norm.node.name} to {total.node.name}"
    node = Node(NORMALIZED_RELU_BACKWARD, name, params=summing, source=norm.node.source)
    members = (*norm.members, *(total.members or (total,)))
    reads, writes = (*norm.reads, addends[0]), [total.writes[0], *norm.writes[1:]]
    inplace = ((0, 0), (len(norm.reads), 0))
    req = (*total.req, *norm.req[1:])
    return Step(node, kernel, call, reads, writes, req, inplace=inplace, members=members)


def _step(
    op: Op, pair: Sequence[Step], reads: tuple[int, ...], writes: list[int], call: CallSpec, req: tuple[OpReq, ...] = ()
) -> Step:
    """Return the one step that replaces both; its first output may be written over its first input."""
    norm = pair[0] if op is NORMALIZED_RELU else pair[1]
    params = NormalizedReluParams(params=norm.node.params)
    kernel = op.choose(params, call)
    node = Node(op, f"{pair[0].node.name} to {pair[1].node.name}", params=params, source=norm.node.source)
    members = tuple([one for step in pair for one in step.members or (step,)])
    return Step(node, kernel, call, reads, list(writes), req or norm.req, inplace=((0, 0),), members=members)
