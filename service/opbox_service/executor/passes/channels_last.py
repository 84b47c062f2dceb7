"""Regions of channels last: convolutions, and what stands between them, compute on arrays whose channels lie last.

oneDNN's convolutions take such arrays much faster than those with the channels second, and so do cuDNN's on tensor
cores. Which calls get it is for the computes to say, by what they accept. The pass goes through the steps in order,
forward and backward alike:

- a step that prefers the layout (`TPrefersChannelsLast`), and has a compute for it, gets it; where that compute wants
  the weights in it too (`FSpatialWeights`), they are reordered like any other value, once in a run of forward;
- a step that can do with it (`FSpatialOperands`: pooling, batch normalisation, joined channels), or that computes
  element by element (`FExpression`; a factor for each channel may be repeated), or is a view of the same shape, gets it
  where one of its inputs has it;
- a copy step reads either;
- all others get arrays as they were.

At the edges of a region arrays are reordered: once for a value, however many steps read it. What the user sees stays as
it was: arguments, gradients, outputs, and what a monitor is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opbox_ops.compute import PLAIN, ArraySpec, CallSpec, Kernel, OpReq
from opbox_ops.layout import CHANNELS_LAST, physical_shape

from ..copying import copy_step, is_copy, reorder_step
from ..plan import UNWANTED, Plan, Step, Value

__all__ = ["channels_last"]

_Operands = tuple[tuple[int, ...], tuple[int, ...]]
"""Positions among a step's inputs and among its outputs."""

_log = logging.getLogger(__name__)


def channels_last(plan: Plan) -> Plan:
    """The plan with its regions; it logs how many steps they have, and how many reorders stand at their edges."""
    if not any(_prefers(step) for step in plan.steps):
        return plan
    region = _Region(plan)
    for t, step in enumerate(plan.steps):
        if t == plan.forward_steps:
            region.forward_steps = len(region.steps)
        region.take(step)
    if not region.converted:
        return plan
    plan.forward_steps = min(region.forward_steps, len(region.steps))
    plan.steps = region.steps
    _log.debug("channels last: %d steps, %d reorders", region.converted, region.reorders)
    return plan


def _prefers(step: Step) -> bool:
    return step.node.op is not None and bool(step.node.op.get_attr("TPrefersChannelsLast"))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that arrays of these are repeated to, which have as many axes and 1 there; None where they have not."""
    if len({len(shape) for shape in shapes}) != 1:
        return None
    whole = tuple([max(sizes) for sizes in zip(*shapes, strict=True)])
    fit = all(size in (1, all_of) for shape in shapes for size, all_of in zip(shape, whole, strict=True))
    return whole if fit else None


def _no_weights(params: Any) -> _Operands:
    return (), ()


class _Region:
    """The steps as they become, and where each value lies with its channels last.

    Attributes:
        steps: those so far.
        forward_steps: how many of them are forward's.
        converted: how many steps compute on channels last.
        reorders: how many steps reorder.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps: list[Step] = []
        self.forward_steps = 1 << 60
        self.converted = self.reorders = 0
        self._last: dict[int, int] = {}
        self._plain: dict[int, int] = {}
        self._specs: dict[int, ArraySpec] = {}
        self._calls: dict[tuple[int, tuple[int, ...], tuple[int, ...]], CallSpec] = {}
        self._kernels: dict[Any, Kernel | None] = {}

    def take(self, step: Step) -> None:
        """Append a step, in the layout that suits it."""
        operands = self._operands(step)
        if operands is None or not (self._spatial(step, operands) or self._element_wise(step, operands)):
            if not is_copy(step):
                step.reads = tuple([self._as_plain(value) for value in step.reads])
            self.steps.append(step)

    # -- what a step is -----------------------------------------------------------------------------------------

    def _operands(self, step: Step) -> _Operands | None:
        """The positions of the arrays that have one layout, where the step may have another: inputs and outputs."""
        op = step.node.op
        if op is None:
            return None
        rule = op.get_attr("FSpatialOperands")
        operands: _Operands | None = rule(step.node.params) if rule is not None else None
        if operands is None and (op.get_attr("FExpression") is not None or step.view):
            operands = tuple(range(len(step.reads))), tuple(range(len(step.writes)))
        if operands is None or not (_prefers(step) or any(step.reads[i] in self._last for i in operands[0])):
            return None
        shapes = [step.call.inputs[i].shape for i in operands[0]] + [step.call.outputs[k].shape for k in operands[1]]
        return operands if all(len(shape) >= 3 and 0 not in shape for shape in shapes) else None

    def _spatial(self, step: Step, operands: _Operands) -> bool:
        """Append the step on channels last where its operator names the arrays and has a compute for them."""
        op = step.node.op
        assert op is not None
        if op.get_attr("FSpatialOperands") is None:
            return False
        weights: _Operands = (op.get_attr("FSpatialWeights") or _no_weights)(step.node.params)
        for more in ((), ()), weights:
            ins, outs = operands[0] + more[0], operands[1] + more[1]
            call = self._call(step.call, ins, outs)
            kernel = self._kernel(step, call)
            if kernel is not None:
                self._append(step, ins, outs, call, weights, takes_physical=False)
                step.kernel = kernel
                return True
        return False

    def _element_wise(self, step: Step, operands: _Operands) -> bool:
        """Append the step on the memory of its arrays where it computes element by element.

        All are of one shape, or have 1 where they are repeated, or summed: those of another are reordered, too.
        """
        op = step.node.op
        assert op is not None
        if op.get_attr("FSpatialOperands") is not None:
            return False
        call, (ins, outs) = step.call, operands
        whole = _broadcast([spec.shape for spec in (*call.inputs, *call.outputs)])
        if not any(value in self._last and call.inputs[i].shape == whole for i, value in enumerate(step.reads)):
            return False
        call_last = self._with_channels_last(call)
        kernel = self._kernel(step, call_last)
        if kernel is None or not (step.view or self._has_formulas(step)):
            return False
        self._append(step, ins, outs, call_last, ((), ()), takes_physical=True)
        step.kernel = kernel
        return True

    def _has_formulas(self, step: Step) -> bool:
        """Return whether formulas of the elements at one place are all that the step computes."""
        op, call = step.node.op, step.call
        assert op is not None
        types = [spec.dtype for spec in call.inputs], [spec.dtype for spec in call.outputs]
        formulas = op.get_attr("FExpression")(step.node.params, *types)
        if formulas is None or formulas.states:
            return False
        alike = len({spec.shape for spec in (*call.inputs, *call.outputs)}) == 1
        return not formulas.summed if alike else not (formulas.start or formulas.start_out)

    def _kernel(self, step: Step, call: CallSpec) -> Kernel | None:
        """The kernel for `call`, of the plan's level at most where the operator names its arrays.

        Otherwise of the step's own: a formula stays one.
        """
        op = step.node.op
        assert op is not None
        key = (op, id(step.node.params), id(call))
        if key not in self._kernels:
            level = self.plan.level if op.get_attr("FSpatialOperands") is not None else step.kernel.level
            self._kernels[key] = op.find_kernel(step.node.params, call, level)
        return self._kernels[key]

    # -- rewriting ----------------------------------------------------------------------------------------------

    def _append(
        self,
        step: Step,
        ins: tuple[int, ...],
        outs: tuple[int, ...],
        call: CallSpec,
        weights: _Operands,
        *,
        takes_physical: bool,
    ) -> None:
        """Append `step`, its operands with the channels last, and behind it what writes those that lie outside.

        Weights of one position, or of one channel, lie in both layouts as they are.
        """
        plan, after = self.plan, []
        inside = [i for i in ins if i not in weights[0] or not self._has_both_layouts(step.reads[i])]
        step.reads = tuple(
            [self._as_last(value) if i in inside else self._as_plain(value) for i, value in enumerate(step.reads)]
        )
        for k in outs:
            value = step.writes[k]
            if value == UNWANTED or (k in weights[1] and self._has_both_layouts(value)):
                continue
            spec = self._spec(plan.values[value].spec)
            if plan.values[value].array is None and value not in plan.external:
                plan.values[value].spec = spec
                self._last[value] = value
                continue
            step.writes[k] = copied = plan.add(Value(spec))
            self._last[value] = copied
            if step.req[k] == OpReq.ADD:
                after.append(copy_step(plan, step.node.name, copied, value, OpReq.ADD))
            else:
                after.append(reorder_step(plan, step.node.name, copied, value))
            step.req = (*step.req[:k], OpReq.WRITE, *step.req[k + 1 :])
            self.reorders += 1
        step.call, step.takes_physical, step.view = call, takes_physical, step.view and not after
        self.converted += 1
        self.steps += [step, *after]

    def _has_both_layouts(self, value: int) -> bool:
        _, channels, *spatial = self.plan.values[value].shape
        return channels == 1 or all(size == 1 for size in spatial)

    def _as_last(self, value: int) -> int:
        """The value with its channels last: reordered before this step where there is none yet."""
        inside = self._last.get(value)
        if inside is None:
            inside = self._last[value] = self._reordered(value, self._spec(self.plan.values[value].spec))
        return inside

    def _as_plain(self, value: int) -> int:
        """The value as it was: reordered before this step where it lies with its channels last."""
        spec = self.plan.values[value].spec
        if spec.layout == PLAIN:
            return value
        outside = self._plain.get(value)
        if outside is None:
            outside = self._plain[value] = self._reordered(value, replace(spec, layout=PLAIN))
        return outside

    def _reordered(self, value: int, spec: ArraySpec) -> int:
        target = self.plan.add(Value(spec))
        self.steps.append(reorder_step(self.plan, "reorder", value, target))
        self.reorders += 1
        return target

    # -- descriptions, one for all that are alike ----------------------------------------------------------------

    def _spec(self, spec: ArraySpec) -> ArraySpec:
        if spec.layout != PLAIN:
            return spec
        if id(spec) not in self._specs:
            self._specs[id(spec)] = replace(spec, layout=CHANNELS_LAST)
        return self._specs[id(spec)]

    def _call(self, call: CallSpec, ins: tuple[int, ...], outs: tuple[int, ...]) -> CallSpec:
        key = (id(call), ins, outs)
        if key not in self._calls:
            self._calls[key] = replace(
                call,
                inputs=tuple([self._spec(spec) if i in ins else spec for i, spec in enumerate(call.inputs)]),
                outputs=tuple([self._spec(spec) if k in outs else spec for k, spec in enumerate(call.outputs)]),
            )
        return self._calls[key]

    def _with_channels_last(self, call: CallSpec) -> CallSpec:
        key = (id(call), (), ())
        if key not in self._calls:
            sides = call.inputs, call.outputs
            ins, outs = (tuple([ArraySpec(physical_shape(self._spec(s)), s.dtype) for s in side]) for side in sides)
            self._calls[key] = replace(call, inputs=ins, outputs=outs)
        return self._calls[key]
