"""Fusion: steps that compute element by element and read one another become one step, in one sweep through memory.

A group grows while the next step that reads it computes element by element too (`FExpression`), on arrays of the same
shape and in the same floating type. Other inputs may be repeated to that shape (a scalar, a bias, a row). The group
stands where its last member stood, writes the values that others read, and leaves the rest in no array at all. It ends

- where its formulas, its arrays or its members become many (`MAX_*`): what is made of them stays small;
- where inputs that wait for it would make more bytes alive at once than there were at most without it.

Results are the same to the last bit: `opbox_ops.expression.fused`. Values of 16 bits that flow within a group are
rounded on their way. A monitor is shown every operator's outputs, from the steps as they were. `OPBOX_DISABLE=fusion`
leaves the pass out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opbox_ops import switches
from opbox_ops.accumulation import is_narrow
from opbox_ops.compute import PLAIN, ArraySpec, CallSpec, Kernel, OpReq
from opbox_ops.expression.fused import FUSED, FusedParams, Source, combine, size
from opbox_ops.expression.pointwise import Pointwise, working_type
from opbox_ops.infer import size_of
from opbox_ops.node import Node

from ..plan import UNWANTED, Plan, Step
from .live import LiveBytes

__all__ = ["fusion"]

MAX_STEPS = 12_000
"""Maximum number of steps of a plan that is fused: 10,000 take 0.3 s of a core, and a graph of 10,000 nodes is to
compile within a second, gradients too."""
MAX_MEMBERS = 24
MAX_ARRAYS = 24
"""Maximum number of inputs and outputs of a group: a CUDA kernel names each by a letter."""
MAX_LEAVES = 160
"""Maximum number of terms of a formula when written out, shared terms counted each time."""
_WORK = (np.dtype(np.float32), np.dtype(np.float64))

_log = logging.getLogger(__name__)


def fusion(plan: Plan) -> Plan:
    """The plan with its groups; it logs what each stands for."""
    if switches.is_off("fusion") or len(plan.steps) > MAX_STEPS:
        return plan
    groups = _Fusion(plan)
    if groups.candidates > 1:
        groups.run()
    return plan


@dataclass(frozen=True, slots=True)
class _Formulas:
    """The formulas of steps that are alike, element by element.

    Attributes:
        formulas: see there.
        work: the type computed in.
        shape: of the outputs.
        leaves: names and numbers in its longest formula.
        uses: how often that names each input.
    """

    formulas: Pointwise
    work: np.dtype[Any]
    shape: tuple[int, ...]
    leaves: int
    uses: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _StepGroup:
    """Steps that become one.

    Attributes:
        key: shape, type computed in, and whether arrays are taken as they lie.
        members: their places, in order.
        outputs: the values that they write and others may read; how large each one's formula is.
        inputs: the values that come from elsewhere.
    """

    key: tuple[Any, ...]
    members: list[int] = field(default_factory=list)
    outputs: dict[int, int] = field(default_factory=dict)
    inputs: dict[int, None] = field(default_factory=dict)


class _Fusion:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.known: dict[Any, _Formulas | None] = {}
        self.computed = [self._formulas(step) for step in plan.steps]
        self.candidates = sum(formulas is not None for formulas in self.computed)
        self.groups: dict[_StepGroup, None] = {}
        self.owner: dict[int, list[_StepGroup]] = {}
        """The open groups that write a value, or a part of it."""
        self.steps: dict[Any, tuple[FusedParams, CallSpec, Kernel, tuple[tuple[int, int], ...]]] = {}

    def run(self) -> None:
        """Rewrite the plan."""
        plan = self.plan
        self.live = LiveBytes(plan)
        self.left = plan.readers()
        for t, step in enumerate(plan.steps):
            if t == plan.forward_steps:
                self.owner.clear()
            self._take(t, step, self.computed[t])
        groups = [g for g in self.groups if len(g.members) > 1 and any(map(self._is_read, g.outputs))]
        if not groups:
            return
        fused = {group.members[-1]: group for group in groups}
        gone = {t for group in groups for t in group.members[:-1]}
        steps: list[Step] = []
        before, plan.forward_steps = plan.forward_steps, -1
        for t, step in enumerate(plan.steps):
            if t == before:
                plan.forward_steps = len(steps)
            if t in fused:
                steps.append(self._step(fused[t]))
            elif t not in gone:
                steps.append(step)
        if plan.forward_steps < 0:
            plan.forward_steps = len(steps)
        plan.steps = steps
        _log.debug("fusion: %d steps in %d groups", len(gone) + len(groups), len(groups))

    # -- grouping -------------------------------------------------------------------------------------------------

    def _formulas(self, step: Step) -> _Formulas | None:
        """Return the step's formulas; None if it may not be a member of a group."""
        op, call, values = step.node.op, step.call, self.plan.values
        if op is None or step.view or step.kernel.level != "reference":
            return None
        rule = op.get_attr("FExpression")
        if rule is None or OpReq.ADD in step.req or any((values[v].array or ("",))[0] == "aux" for v in step.reads):
            return None
        if not step.takes_physical and any(
            values[v].spec.layout != PLAIN for v in (*step.reads, *step.writes) if v >= 0
        ):
            return None
        key = (op, id(step.node.params), id(call))
        if key not in self.known:
            self.known[key] = self._formulas_of(rule, step.node.params, call)
        return self.known[key]

    def _formulas_of(self, rule: Any, params: Any, call: CallSpec) -> _Formulas | None:
        ins, outs = [spec.dtype for spec in call.inputs], [spec.dtype for spec in call.outputs]
        formulas: Pointwise | None = rule(params, ins, outs)
        if formulas is None or formulas.states or formulas.summed or not call.outputs:
            return None
        counted = [t for name, t in zip(formulas.inputs, ins, strict=True) if name not in formulas.conditions]
        work = working_type(formulas.outputs, [*counted, *outs])
        shapes = {spec.shape for spec in call.outputs}
        if work not in _WORK or len(shapes) > 1 or not size_of(call.outputs[0].shape):
            return None
        return _Formulas(formulas, work, call.outputs[0].shape, *size(formulas))

    def _take(self, t: int, step: Step, formulas: _Formulas | None) -> None:
        """Add a step to the groups that it reads, or close these groups."""
        values = self.plan.values
        joined: dict[_StepGroup, None] = {}
        ended: dict[_StepGroup, None] = {}
        key = None if formulas is None else (formulas.shape, formulas.work, step.takes_physical)
        for i, v in enumerate(step.reads):
            part = values[v].part
            for group in self.owner.get(v if part is None else part.base, ()):
                flows = (
                    formulas is not None
                    and group.key == key
                    and part is None
                    and v in group.outputs
                    and _flows(step.call.inputs[i].dtype, formulas.work)
                )
                (joined if flows else ended)[group] = None
        for group in ended:
            self._end(group)
        if formulas is None:
            return
        groups = [group for group in joined if group not in ended]
        for group in groups:
            self._end(group)
        merged = self._merged(t, step, formulas, key or (), groups) or self._merged(t, step, formulas, key or (), [])
        assert merged is not None
        self.groups[merged] = None
        for v in merged.outputs:
            part = values[v].part
            self.owner.setdefault(v if part is None else part.base, []).append(merged)

    def _merged(
        self, t: int, step: Step, formulas: _Formulas, key: tuple[Any, ...], groups: list[_StepGroup]
    ) -> _StepGroup | None:
        """The group of `groups` and the step, in the first of them; None where it would be too large."""
        group = groups[0] if groups else _StepGroup(key)
        within: dict[int, int] = {}
        for other in groups:
            within |= {v: other.outputs[v] for v in step.reads if v in other.outputs}
        leaves = formulas.leaves + sum(
            [n * within[v] for v, n in zip(step.reads, formulas.uses, strict=True) if v in within]
        )
        inputs = dict.fromkeys([v for v in step.reads if v not in within])
        writes = [v for v in step.writes if v != UNWANTED]
        gone = [v for v in within if not self._is_read(v, step)]
        if groups:
            members = 1 + sum([len(other.members) for other in groups])
            arrays = sum([len(other.inputs) + len(other.outputs) for other in groups]) + len(inputs) + len(writes)
            if members > MAX_MEMBERS or leaves > MAX_LEAVES or arrays - len(gone) > MAX_ARRAYS:
                return None
            longer = {v: t for other in groups for v in other.inputs} | dict.fromkeys(inputs, t)
            if not self.live.change(longer, gone, self.live.peak):
                return None
        for other in groups[1:]:
            group.members += other.members
            group.outputs |= other.outputs
            group.inputs |= other.inputs
            del self.groups[other]
        if len(groups) > 1:
            group.members.sort()
        group.members.append(t)
        group.inputs |= inputs
        for v in step.reads:
            if v in within:
                self.left[v] -= 1
        for v in gone:
            del group.outputs[v]
        group.outputs |= dict.fromkeys(writes, leaves)
        return group

    def _is_read(self, v: int, step: Step | None = None) -> bool:
        """Return whether a value of a group is read outside it, `step` being within."""
        if v == UNWANTED:
            return False
        value = self.plan.values[v]
        within = 0 if step is None else step.reads.count(v)
        return self.left[v] > within or value.array is not None or value.part is not None

    def _end(self, group: _StepGroup) -> None:
        """Close the group: no step may join it."""
        for v in group.outputs:
            part = self.plan.values[v].part
            owners = self.owner.get(v if part is None else part.base, [])
            if group in owners:
                owners.remove(group)

    # -- rewriting ------------------------------------------------------------------------------------------------

    def _step(self, group: _StepGroup) -> Step:
        """Return the one step that replaces a group."""
        plan = self.plan
        members = [plan.steps[t] for t in group.members]
        inputs: dict[tuple[Any, ...], int] = {}
        specs: list[ArraySpec] = []
        written: dict[int, Source] = {}
        rows: list[tuple[Pointwise, tuple[Source, ...], tuple[str, ...]]] = []
        for m, (t, step) in enumerate(zip(group.members, members, strict=True)):
            computed = self.computed[t]
            assert computed is not None
            formulas, sources = computed.formulas, []
            for i, (name, v) in enumerate(zip(formulas.inputs, step.reads, strict=True)):
                if v in written:
                    sources.append(written[v])
                    continue
                place = (v, formulas.start.get(name), name in formulas.conditions)
                if place not in inputs:
                    inputs[place] = len(inputs)
                    specs.append(step.call.inputs[i])
                sources.append((-1, inputs[place]))
            rows.append((formulas, tuple(sources), tuple([spec.dtype.name for spec in step.call.outputs])))
            written |= {v: (m, k) for k, v in enumerate(step.writes) if v != UNWANTED}
        outputs = [v for v in written if self._is_read(v)]
        reads = tuple([v for v, *_ in inputs])
        whole = combine(rows, [written[v] for v in outputs])
        outs = tuple([members[m].call.outputs[k] for m, k in (written[v] for v in outputs)])
        takes_physical = members[0].takes_physical
        alike = (
            id(whole.kernels),
            tuple(whole.numbers.items()),
            tuple(map(id, specs)),
            tuple(map(id, outs)),
            takes_physical,
        )
        known = self.steps.get(alike)
        if known is None:
            params, call = FusedParams(formulas=whole), CallSpec(plan.device, tuple(specs), outs)
            kernel = FUSED.choose(params, call)
            pairs = [
                (i, k) for k, out in enumerate(outs) for i, spec in enumerate(specs) if whole.anywhere and spec == out
            ]
            known = self.steps[alike] = params, call, kernel, tuple(pairs)
        params, call, kernel, inplace = known
        name = f"{members[0].node.name} to {members[-1].node.name}"
        node = Node(FUSED, name, params=params, source=members[0].node.source, outputs=len(outputs))
        _log.debug("fusion: %s", ", ".join(step.node.name for step in members))
        req = (OpReq.WRITE,) * len(outputs)
        stands_for = tuple([one for step in members for one in step.members or (step,)])
        return Step(
            node, kernel, call, reads, outputs, req, inplace=inplace, takes_physical=takes_physical, members=stands_for
        )


def _flows(dtype: np.dtype[Any], work: np.dtype[Any]) -> bool:
    """Return whether a value of an array of this type may flow within a group that computes in `work`."""
    return dtype == work or (is_narrow(dtype) and work == np.float32)
