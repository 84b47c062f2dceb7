"""Products that wait for one another and share a weight: it is packed once for all of them, in front of the first.

An unrolled recurrent network multiplies the state of each step by one weight, which oneDNN reads faster in a layout of
its own. Nobody writes to the weight within a run of forward. The packed weight is a value of the plan like any other;
it is made only where it fits beside what is alive at once, within `GROWTH`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from opbox_ops.compute import ArraySpec, CallSpec, OpReq
from opbox_ops.nn.packed_product import LEAST_CALLS, PACK, PACKED, PackParams
from opbox_ops.node import Node

from ..plan import Plan, Step, Value
from .live import LiveBytes
from .shared_products import GROWTH

__all__ = ["packed_products"]

_log = logging.getLogger(__name__)


def packed_products(plan: Plan) -> Plan:
    """The plan with packed weights; it logs for which steps."""
    products: dict[Any, list[int]] = {}
    for t, step in enumerate(plan.steps[: plan.forward_steps]):
        op = step.node.op
        if op is None or step.compute.level != "library" or op.get_attr("FPackedProduct") is None or step.view:
            continue
        weight = plan.values[step.reads[1]].array
        if weight is not None and weight[0] == "arg" and step.req == (OpReq.WRITE,):
            products.setdefault((step.reads[1:], id(step.node.params), step.call), []).append(t)
    replaced: dict[int, list[Step]] = {}
    for places in products.values():
        if len(places) >= LEAST_CALLS:
            _pack(plan, places, replaced)
    if replaced:
        forward = [one for t in range(plan.forward_steps) for one in replaced.get(t, (plan.steps[t],))]
        plan.steps = forward + plan.steps[plan.forward_steps :]
        plan.forward_steps = len(forward)
    return plan


def _pack(plan: Plan, places: list[int], replaced: dict[int, list[Step]]) -> None:
    """Let the products at `places`, which are alike, read one packed weight."""
    first = plan.steps[places[0]]
    op, call = first.node.op, first.call
    assert op is not None
    nbytes = op.get_attr("FPackedProduct")(first.node.params, call)
    if nbytes is None:
        return
    packed = plan.add(Value(ArraySpec((nbytes,), np.dtype(np.uint8))))
    live = LiveBytes(plan)
    live.first[packed], live.last[packed] = places[0], places[0] - 1
    if not live.change({packed: places[-1]}, [], GROWTH * live.peak):
        plan.values.pop()
        _log.debug("packed weight: %s would take too much memory", first.node.name)
        return
    params = PackParams(params=first.node.params, call=call)
    weight = plan.specs(first.reads[1:2])
    pack = CallSpec(plan.device, weight, (plan.values[packed].spec,))
    product = CallSpec(plan.device, (*call.inputs, plan.values[packed].spec), call.outputs)
    chosen = {one: (one.choose(params, of), of) for one, of in ((PACK, pack), (PACKED, product))}

    def step(one: Any, name: str, reads: tuple[int, ...], writes: list[int], members: tuple[Step, ...]) -> Step:
        compute, of = chosen[one]
        node = Node(one, name, params=params, source=first.node.source)
        temps = temps_of[one]
        return Step(node, compute, of, reads, writes, (OpReq.WRITE,), temps, members=members, hidden=not members)

    temps_of = {one: one.temps(compute, params, of) for one, (compute, of) in chosen.items()}
    for t in places:
        old = plan.steps[t]
        replaced[t] = [step(PACKED, old.node.name, (*old.reads, packed), old.writes, (old,))]
    replaced[places[0]].insert(0, step(PACK, f"pack for {first.node.name}", first.reads[1:2], [packed], ()))
    _log.debug("packed weight: %d steps, %s", len(places), first.node.name)
