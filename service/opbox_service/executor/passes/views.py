"""Views: a step whose output is its input under another shape (`TIsView`: Reshape, Flatten, expand_dims) need not run.

The pass marks the steps; the memory planner gives the output the memory of its input, and the step is left out of the
run where both can have the same. An input that lies in an array of the user's that is not contiguous cannot be viewed
under another shape: its step stays as it is.
"""

from __future__ import annotations

from opbox_ops.compute import OpReq

from ..plan import Plan

__all__ = ["views"]


def views(plan: Plan) -> Plan:
    """Mark the steps of a plan that need not run because their output is a view."""
    for step in plan.steps:
        op = step.node.op
        if op is not None and op.get_attr("TIsView") and step.req[0] == OpReq.WRITE:
            array = plan.values[step.reads[0]].array
            step.view = array is None or array not in plan.strided
    return plan
