"""Parts in place: what is sliced is read where it lies, and what is joined is written where it will lie.

    slices of s = a + b, read by elementwise steps   ->   those read a and b with strides; s is in no array
    a gradient joined from those of slices           ->   the steps that compute those write with strides; no copy

`FParts` of an operator, `(params, array)`, gives the parts of its input as views; of its backward, those of its output.
Only elementwise steps (`FExpression`) get arrays with strides, of rows that are long enough. A value that several
parts keep alive is kept only where that takes no more memory than there was at most.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from opbox_ops.compute import PLAIN, ArraySpec, CallSpec, OpReq
from opbox_ops.expression.swept import SHORT_ROW
from opbox_ops.infer import size_of
from opbox_ops.node import Node

from ..plan import UNWANTED, Part, Plan, Step, Value
from .live import LiveBytes

__all__ = ["parts"]

_log = logging.getLogger(__name__)


def parts(plan: Plan) -> Plan:
    """The plan with its slices and joins in place; it logs them."""
    slicing = [t for t, step in enumerate(plan.steps) if step.node.op is not None and step.node.op.get_attr("FParts")]
    if slicing:
        _PartsInPlace(plan).run(slicing)
    return plan


class _PartsInPlace:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.live = LiveBytes(plan)
        self.makers = {v: t for t, step in enumerate(plan.steps) for v in step.writes if v != UNWANTED}
        self.readers: dict[int, list[int]] = {}
        for t, step in enumerate(plan.steps):
            for v in step.reads:
                self.readers.setdefault(v, []).append(t)
        self.replaced: dict[int, list[Step]] = {}
        self.calls: dict[Any, CallSpec] = {}
        self.offsets: dict[Any, list[tuple[int, tuple[int, ...]]]] = {}

    def run(self, slicing: Sequence[int]) -> None:
        """Rewrite the plan."""
        plan = self.plan
        for t in slicing:
            step = plan.steps[t]
            if any(req not in (OpReq.WRITE, OpReq.NULL) for req in step.req):
                continue
            if t < plan.forward_steps:
                self._slice(t, step)
            elif len(step.writes) == 1 and step.writes[0] != UNWANTED:
                self._join(t, step)
        if not self.replaced:
            return
        before = plan.forward_steps
        steps: list[Step] = []
        for t, step in enumerate(plan.steps):
            if t == before:
                plan.forward_steps = len(steps)
            steps += self.replaced.get(t, (step,))
        if before == len(plan.steps):
            plan.forward_steps = len(steps)
        plan.steps = steps

    # -- slices ---------------------------------------------------------------------------------------------------

    def _slice(self, t: int, step: Step) -> None:
        """Let the readers of slices read what is sliced, or what that is computed from."""
        source, values = step.reads[0], self.plan.values
        slices = [v for v in step.writes if v != UNWANTED]
        maker = self.makers.get(source)
        if maker is None or not self._is_alone(source) or not all(self._is_free(v) for v in slices):
            return
        if any(not self._is_elementwise(self.plan.steps[r]) for v in slices for r in self.readers.get(v, ())):
            return
        offsets = self._offsets(step, values[source].spec)
        if not offsets:
            return
        origin = self.plan.steps[maker]
        if self._goes_through(maker, origin) and self.live.change(
            dict.fromkeys(origin.reads, t), [source], self.live.peak
        ):
            self._compute_slices(t, step, maker, origin, offsets)

    def _compute_slices(
        self, t: int, step: Step, maker: int, origin: Step, offsets: list[tuple[int, tuple[int, ...]]]
    ) -> None:
        """Put a step for each slice in the place of the one for the whole."""
        plan, node = self.plan, origin.node
        assert node.op is not None
        slices: list[Step] = []
        for v, (begin, strides) in zip(step.writes, offsets, strict=True):
            if v == UNWANTED:
                continue
            spec = plan.values[v].spec
            ins = tuple([ArraySpec(spec.shape, plan.values[source].dtype) for source in origin.reads])
            call = self.calls.setdefault((node.op, ins, spec), CallSpec(plan.device, ins, (spec,)))
            reads = tuple(
                [
                    plan.add(Value(of, part=self._part(source, begin, strides)))
                    for source, of in zip(origin.reads, ins, strict=True)
                ]
            )
            own = Node(node.op, f"{node.name} of {step.node.name}", params=node.params, source=node.source)
            kernel = node.op.choose(node.params, call, origin.kernel.level)
            slices.append(Step(own, kernel, call, reads, [v], (OpReq.WRITE,), hidden=True))
        slices[0].hidden, slices[0].members = False, (origin, step)
        self.replaced[maker] = []
        self.replaced[t] = slices
        _log.debug("slices in place: %s through %s", step.node.name, node.name)

    def _goes_through(self, t: int, step: Step) -> bool:
        """Return whether slices of what an elementwise step computes can be computed from slices of what it reads."""
        if t in self.replaced or not self._is_elementwise(step) or len(step.writes) > 1:
            return False
        whole = self.plan.values[step.writes[0]].spec
        return all(
            self.plan.values[v].spec.shape == whole.shape
            and self.plan.values[v].dtype == whole.dtype
            and self._is_alone(v)
            and self._is_made(v)
            for v in step.reads
        )

    # -- joins ----------------------------------------------------------------------------------------------------

    def _join(self, t: int, step: Step) -> None:
        """Let the steps that compute the parts of a value write them into it."""
        values, target = self.plan.values, step.writes[0]
        makers = [self.makers.get(v) for v in step.reads]
        if (
            len(set(step.reads)) < len(step.reads)
            or values[target].array is not None
            or values[target].part is not None
        ):
            return
        for v, maker in zip(step.reads, makers, strict=True):
            if maker is None or not self._is_free(v) or len(self.readers[v]) > 1 or maker < self.plan.forward_steps:
                return
            if not self._is_elementwise(self.plan.steps[maker]):
                return
        offsets = self._offsets(step, values[target].spec)
        # The whole is there from the first part on.
        if not offsets or not self._fits(target, min(maker for maker in makers if maker is not None), t, step.reads):
            return
        for v, (begin, strides) in zip(step.reads, offsets, strict=True):
            values[v].part = self._part(target, begin, strides)
        self.replaced[t] = []
        _log.debug("parts in place: %s", step.node.name)

    def _fits(self, target: int, first: int, t: int, gone: Sequence[int]) -> bool:
        """Return whether a value can be there from step `first` on in place of its parts."""
        last = self.live.last[target]
        before = self.live.first[target]
        self.live.first[target], self.live.last[target] = first, first - 1
        if self.live.change({target: t - 1}, list(gone), self.live.peak):
            self.live.last[target] = last
            return True
        self.live.first[target], self.live.last[target] = before, last
        return False

    # -- both -----------------------------------------------------------------------------------------------------

    def _part(self, whole: int, begin: int, strides: tuple[int, ...]) -> Part:
        """A part of a value, which may itself be some rows of another."""
        outer = self.plan.values[whole].part
        return Part(whole, begin, strides) if outer is None else Part(outer.base, outer.begin + begin, strides)

    def _offsets(self, step: Step, spec: ArraySpec) -> list[tuple[int, tuple[int, ...]]]:
        """Return the first byte and strides of each part of an array; none where their rows are short."""
        assert step.node.op is not None
        key = (step.node.op, id(step.node.params), spec)
        if key not in self.offsets:
            array = np.empty(spec.shape, spec.dtype)
            at = array.__array_interface__["data"][0]
            views = step.node.op.get_attr("FParts")(step.node.params, array)
            long = all(
                view.ndim and view.shape[-1] >= SHORT_ROW and view.strides[-1] == spec.dtype.itemsize for view in views
            )
            self.offsets[key] = [(v.__array_interface__["data"][0] - at, v.strides) for v in views] if long else []
        return self.offsets[key]

    def _is_free(self, v: int) -> bool:
        """Return whether a value may lie anywhere."""
        value = self.plan.values[v]
        return value.array is None and value.part is None and value.spec.layout == PLAIN and v not in self.plan.outputs

    def _is_alone(self, v: int) -> bool:
        """Return whether a value is in the arena, in rows, and read once."""
        value = self.plan.values[v]
        if value.part is not None and value.part.strides is not None:
            return False
        return value.array is None and value.spec.layout == PLAIN and len(self.readers.get(v, ())) == 1

    def _is_made(self, v: int) -> bool:
        """Return whether a step computes a value, alone or with what it is a part of, in memory of its own."""
        maker = self.makers.get(self.live.whole.get(v, v))
        return maker is not None and not self.plan.steps[maker].view

    def _is_elementwise(self, step: Step) -> bool:
        """Return whether a step computes element by element, on arrays that may have strides."""
        op = step.node.op
        if op is None or step.view or step.takes_physical or step.kernel.level != "reference":
            return False
        rule = op.get_attr("FExpression")
        if rule is None or any(req not in (OpReq.WRITE, OpReq.NULL) for req in step.req):
            return False
        call = step.call
        formulas = rule(step.node.params, [s.dtype for s in call.inputs], [s.dtype for s in call.outputs])
        return (
            formulas is not None
            and not formulas.states
            and not formulas.summed
            and bool(size_of(call.outputs[0].shape))
        )
