"""Products that wait for one another and share a weight: it is packed once for all of them, in front of the first.

An unrolled recurrent network multiplies the state of each step by one weight, and the gradient of each step's sums by
its transpose; a kernel reads both faster in a layout of its own. Nobody writes to the weight within a run. The packed
weight is a value of the plan like any other; it is made only where it fits beside what is alive at once, within
`GROWTH`.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from opbox_ops.compute import ArraySpec, CallSpec, OpReq
from opbox_ops.nn.packed_product import MIN_CALLS, PackedProduct, PackParams
from opbox_ops.node import Node

from ..allocation import bytes_of
from ..plan import Plan, Step, Value
from .live import LiveBytes
from .shared_products import GROWTH

__all__ = ["packed_products"]

_log = logging.getLogger(__name__)


def packed_products(plan: Plan, growth: float = GROWTH) -> Plan:
    """The plan with packed weights; it logs for which steps.

    Args:
        plan: the plan.
        growth: the factor by which the memory that is alive at once may grow.
    """
    if plan.device != "cpu":
        return plan
    products: dict[Any, list[int]] = {}
    for t, step in enumerate(plan.steps):
        kind = None if step.node.op is None else step.node.op.get_attr("FPackedProduct")
        if kind is None or step.kernel.level != "library" or step.view:
            continue
        weight = plan.values[step.reads[kind.reads[1]]].array
        alone = step.req[0] == OpReq.WRITE and all(req == OpReq.NULL for req in step.req[1:])
        if weight is not None and weight[0] == "arg" and alone:
            others = tuple(step.reads[i] for i in kind.reads[1:] if i < len(step.reads))
            products.setdefault((step.node.op, others, step.node.params, step.call), []).append(t)
    products = {key: places for key, places in products.items() if len(places) >= MIN_CALLS}
    if not products:
        return plan
    temps = [sum([bytes_of(temp.planned, temp.dtype) for temp in step.temps]) for step in plan.steps]
    alive = LiveBytes(plan).bytes[: len(temps)] + np.array(temps)
    replaced: dict[int, list[Step]] = {}
    for (op, *_), places in products.items():
        _pack(plan, alive, op.get_attr("FPackedProduct"), places, replaced, growth)
    if replaced:
        forward, backward = (
            [one for t in part for one in replaced.get(t, (plan.steps[t],))]
            for part in (range(plan.forward_steps), range(plan.forward_steps, len(plan.steps)))
        )
        plan.steps = forward + backward
        plan.forward_steps = len(forward)
    return plan


def _pack(
    plan: Plan, alive: Any, kind: PackedProduct, places: list[int], replaced: dict[int, list[Step]], growth: float
) -> None:
    """Let the products at `places`, which are alike, read one packed weight."""
    first = plan.steps[places[0]]
    call = first.call
    nbytes = kind.nbytes(first.node.params, call)
    if nbytes is None:
        return
    places = _fitting(plan, alive, places, nbytes, growth)
    if not places:
        _log.debug("packed weight: %s would take too much memory", first.node.name)
        return
    packed = plan.add(Value(ArraySpec((nbytes,), np.dtype(np.uint8))))
    params = PackParams(params=first.node.params, call=call)
    read = [i for i in kind.reads if i < len(first.reads)]
    weight = first.reads[kind.reads[1]]
    pack = CallSpec(plan.device, plan.specs([weight]), (plan.values[packed].spec,))
    inputs = (*(call.inputs[i] for i in read), plan.values[packed].spec)
    product = CallSpec(plan.device, inputs, call.outputs[:1])
    chosen = {one: (one.choose(params, of), of) for one, of in ((kind.pack, pack), (kind.product, product))}

    def step(one: Any, name: str, reads: tuple[int, ...], writes: list[int], members: tuple[Step, ...]) -> Step:
        kernel, of = chosen[one]
        node = Node(one, name, params=params, source=first.node.source)
        return Step(node, kernel, of, reads, writes, (OpReq.WRITE,), members=members, hidden=not members)

    for t in places:
        old = plan.steps[t]
        reads = (*(old.reads[i] for i in read), packed)
        replaced[t] = [step(kind.product, old.node.name, reads, old.writes[:1], (old,))]
    replaced[places[0]].insert(0, step(kind.pack, f"pack for {first.node.name}", (weight,), [packed], ()))
    _log.debug("packed weight: %d steps, %s", len(places), first.node.name)


def _fitting(plan: Plan, alive: Any, places: list[int], nbytes: int, growth: float) -> list[int]:
    """Return the products beside which a packed weight fits, which `alive` then has; none if those are few.

    A backward has most alive at its beginning, where forward has it at its end: there some products may do without.
    """
    left_out, most = 0, growth * max(int(alive.max()), plan.spare)
    while len(places) - left_out >= MIN_CALLS:
        fitting = places[left_out:] if places[0] >= plan.forward_steps else places[: len(places) - left_out]
        beside = alive[fitting[0] : fitting[-1] + 1]
        if int(beside.max()) + nbytes <= most:
            beside += nbytes
            return fitting
        left_out = 2 * left_out + 1
    return []
