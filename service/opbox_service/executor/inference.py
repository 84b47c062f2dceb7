"""Inference by an executor that has gradients: by a plan without backward, in the memory of the one with it.

A plan that trains keeps what backward reads, an activation or two for each operator. Inference does not, so it writes
less, finds more of it in the caches, and adds, folds and packs where only that is in the way. Its plan is compiled at
the first inference. Who calls backward after an inference gets the forward run that was left out before it, and such
an executor runs inference by its own plan from there on.
"""

from __future__ import annotations

from collections.abc import Callable

from opbox_ops.node import Node

from .plan import Plan

__all__ = ["Inference", "leaves_something", "may_infer_apart"]


class Inference:
    """The compiler of the plan for inference, and the reason why it may not be used.

    Args:
        compile_plan: compiles it.
        training: the plan whose memory it is to lie in.
    """

    def __init__(self, compile_plan: Callable[[], Plan], training: Plan) -> None:
        self._compile, self._training = compile_plan, training

    def plan(self) -> Plan | None:
        """The plan, compiled now; None where it takes more memory, or more copies of weights, than the other."""
        plan, training = self._compile(), self._training
        packs = set(plan.packed_arguments) <= set(training.packed_arguments)
        return plan if packs and plan.arena_bytes <= training.arena_bytes else None


def may_infer_apart(plan: Plan) -> bool:
    """True if inference leaves outputs alone: no operator draws then, has a state or subgraphs, or is a user's."""
    return plan.trains and plan.device == "cpu" and not any(leaves_something(step.node) for step in plan.steps)


def leaves_something(node: Node) -> bool:
    """True if inference of an operator changes more than its outputs, or draws: what it computes is not its inputs'."""
    node = node.forward or node
    op = node.op
    if op is None:
        return False
    if any(op.get_attr(name) for name in ("FCreateOpState", "TSubgraphs", "TUserCode")):
        return True
    return bool(op.get_attr("TRandom") and op.get_attr("FDrawsInInference", _always)(node.params))


def _always(params: object) -> bool:
    return True
