"""Products that wait for one another and share a weight: it is packed once for all of them, in front of the first.

An unrolled recurrent network multiplies the state of each step by one weight, which oneDNN reads faster in a layout of
its own, and backward the gradient of each step by the same. Nobody writes to the weight within a run of either. A
packed weight is a value of the plan like any other; it is made only where it fits beside what is alive at once, within
`GROWTH`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from opbox_ops.compute import ArraySpec, CallSpec, OpReq
from opbox_ops.nn.packed_product import LEAST_CALLS, PACK, PACKED, PACKED_GRADIENT, PackParams
from opbox_ops.node import Node

from ..plan import Plan, Step, Value
from .live import LiveBytes
from .shared_products import GROWTH

__all__ = ["packed_products"]

_log = logging.getLogger(__name__)


def packed_products(plan: Plan) -> Plan:
    """The plan with packed weights; it logs for which steps."""
    products: dict[Any, list[int]] = {}
    for t, step in enumerate(plan.steps):
        op, is_backward = step.node.op, t >= plan.forward_steps
        if op is None or step.compute.level != "library" or op.get_attr("FPackedProduct") is None or step.view:
            continue
        # Forward's (data, weight, …); backward's (gout, data, weight), where only data's gradient is left to it.
        weights = step.reads[2:] if is_backward else step.reads[1:]
        array = plan.values[weights[0]].array
        wanted = step.req[0] == OpReq.WRITE and set(step.req[1:]) <= {OpReq.NULL}
        if array is not None and array[0] == "arg" and wanted:
            products.setdefault((is_backward, weights, id(step.node.params), step.call), []).append(t)
    replaced: dict[int, list[Step]] = {}
    for (is_backward, *_), places in products.items():
        if len(places) >= LEAST_CALLS:
            _pack(plan, places, replaced, is_backward)
    if replaced:
        steps = [replaced.get(t, (step,)) for t, step in enumerate(plan.steps)]
        plan.forward_steps = sum(map(len, steps[: plan.forward_steps]))
        plan.steps = [one for several in steps for one in several]
    return plan


def _pack(plan: Plan, places: list[int], replaced: dict[int, list[Step]], is_backward: bool) -> None:
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
    params = PackParams(params=first.node.params, call=call, backward=is_backward)
    weights = first.reads[2:] if is_backward else first.reads[1:]
    multiply = PACKED_GRADIENT if is_backward else PACKED
    pack = CallSpec(plan.device, plan.specs(weights[:1]), (plan.values[packed].spec,))
    inputs = plan.specs((first.reads[0], *weights, packed))
    product = CallSpec(plan.device, inputs, call.outputs[:1])
    chosen = {one: (one.choose(params, of), of) for one, of in ((PACK, pack), (multiply, product))}

    def step(one: Any, name: str, reads: tuple[int, ...], writes: list[int], members: tuple[Step, ...]) -> Step:
        compute, of = chosen[one]
        node = Node(one, name, params=params, source=first.node.source)
        temps = temps_of[one]
        return Step(node, compute, of, reads, writes, (OpReq.WRITE,), temps, members=members, hidden=not members)

    temps_of = {one: one.temps(compute, params, of) for one, (compute, of) in chosen.items()}
    for t in places:
        old = plan.steps[t]
        reads = (old.reads[0], *weights, packed)
        replaced[t] = [step(multiply, old.node.name, reads, old.writes[:1], (old,))]
    replaced[places[0]].insert(0, step(PACK, f"pack for {first.node.name}", weights[:1], [packed], ()))
    _log.debug("packed weight: %d steps, %s", len(places), first.node.name)
