"""The executor's own steps: taking in head gradients, and writing or adding a value to a user's array.

A step of an operator writes contiguous arrays of its inferred type. Targets that are added to, or that are not
contiguous, are served by a copy step behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_ops.compute import Array, CallSpec, Kernel, OpContext, OpReq
from opbox_ops.cpu.onednn.reorder import REORDER as ONEDNN_REORDER
from opbox_ops.cuda.reorder import REORDER as CUDA_REORDER
from opbox_ops.node import Node

from .plan import Plan, Step

__all__ = ["add_to", "copy_step", "is_copy", "reorder_step", "take_in_step"]


def add_to(xp: Any, target: Array, value: Array) -> None:
    """`target += value`, cast to target's type; booleans are or-ed."""
    if target.dtype == np.bool_:
        xp.logical_or(target, value, out=target)
    else:
        xp.add(target, value, out=target, casting="unsafe")


def _copy(p: Any, ctx: OpContext, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    if ctx.req[0] == OpReq.ADD:
        add_to(ctx.xp, outputs[0], inputs[0])
    else:
        ctx.xp.copyto(outputs[0], inputs[0], casting="unsafe")


def _take_in(p: Any, ctx: OpContext, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    """Head gradients are copied in by `BoundPlan.backward` before the steps run; this step only marks their birth."""


_COPY = Kernel.of(_copy, accumulates=True)
_TAKE_IN = Kernel.of(_take_in)
_REORDERS = (ONEDNN_REORDER, CUDA_REORDER)
"""Copy kernels by device; other devices use plain copies."""


def copy_step(plan: Plan, name: str, source: int, target: int, req: OpReq) -> Step:
    """The step that writes or adds value `source` to value `target`."""
    call = CallSpec(plan.device, plan.specs((source,)), plan.specs((target,)))
    return Step(Node(None, name), _COPY, call, (source,), [target], (req,))


def reorder_step(plan: Plan, name: str, source: int, target: int) -> Step:
    """The step that writes value `source` to value `target`, which has another layout."""
    call = CallSpec(plan.device, plan.specs((source,)), plan.specs((target,)))
    kernels = (reorder.choose(None, call) for reorder in _REORDERS)
    kernel = next((one for one in kernels if one is not None), _COPY)
    return Step(Node(None, name), kernel, call, (source,), [target], (OpReq.WRITE,))


def is_copy(step: Step) -> bool:
    """Return whether `copy_step` made the step."""
    return step.kernel is _COPY


def take_in_step(plan: Plan, values: Sequence[int]) -> Step:
    """The step in which the head gradients `values` come to be."""
    call = CallSpec(plan.device, (), plan.specs(values))
    return Step(Node(None, "head gradients"), _TAKE_IN, call, (), list(values), (OpReq.WRITE,) * len(values))
