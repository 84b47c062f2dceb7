"""A plan: what a compiled graph computes, as a flat list of steps over values. No arrays yet.

This is the form that plan passes rewrite (`executor/passes`) before the memory plan is made. The list has the forward
steps, one that takes in the head gradients, and the backward steps. Each step knows its kernel, its parameters, the
values that it reads and writes, and how (req); each value knows its shape, type and layout, and where it lies: in an
array of the user's, in an executor output, or wherever the memory plan puts it. A Plan may be bound many times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from opbox_ops.compute import ArraySpec, CallSpec, Kernel, OpReq, Temp
from opbox_ops.node import Node

from ..graph.ir import Graph
from ..graph.passes.backward_trace import BackwardTrace
from ..graph.passes.memory import External, MemoryPlan, StepUse, plan_memory
from ..task import NODES, checkpoint
from .allocation import bytes_of

__all__ = ["UNWANTED", "Part", "Plan", "Step", "Value"]

UNWANTED = -1
"""Marks, in `Step.writes`, an output that is unused."""
OBJECT_BYTES = 1024
"""Estimated bytes of Python objects per value or step; a convolution's step takes six times as much."""


class Part(NamedTuple):
    """The position of a value inside another one.

    Attributes:
        base: that value.
        begin: at which of its bytes.
        strides: in bytes; None: the elements follow one another.
    """

    base: int
    begin: int
    strides: tuple[int, ...] | None = None


@dataclass(slots=True)
class Value:
    """One output of one step, or a variable.

    Attributes:
        spec: its shape, type and layout.
        array: where it lies outside the arena: ("arg", name), ("aux", name), ("grad", name) or ("out", number of the
            first head that it is); None: the memory plan knows.
        part: it has no memory of its own: it is some rows or columns of another value, which is written for several
            or read by several.
    """

    spec: ArraySpec
    array: tuple[str, str | int] | None = None
    part: Part | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.spec.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.spec.shape) * self.spec.dtype.itemsize


@dataclass(slots=True)
class Step:
    """One call of a kernel. Values are numbers in `Plan.values`.

    Attributes:
        node: what it is a call of: operator, parameters, name and source line for errors, state.
        kernel: chosen for `call`.
        call: shapes, types and layouts of the operator's inputs and outputs, unwanted ones included.
        reads: the value of each input.
        writes: the value of each output; UNWANTED where nobody reads it.
        req: how each output is written; ADD only into a user's gradient array.
        view: whether the output is input 0 under another shape, so that the step need not run.
        saved: the value of what forward leaves for backward; UNWANTED where it leaves nothing.
        inplace: pairs (position in `reads`, position in `writes`) that may share memory, where the output is written.
        takes_physical: whether the kernel gets arrays as they lie in memory, whatever their layout.
        packed: positions in `temps` of copies of arguments that stay from run to run, in memory of their own; in a plan
            with a backward from one inference to the next.
        members: the steps that this one stands for, in their order; empty for a step of the graph's own.
        hidden: whether it computes what steps of the graph do not: a monitor is shown nothing of it.
    """

    node: Node
    kernel: Kernel
    call: CallSpec
    reads: tuple[int, ...]
    writes: list[int]
    req: tuple[OpReq, ...]
    view: bool = False
    saved: int = UNWANTED
    inplace: tuple[tuple[int, int], ...] = ()
    takes_physical: bool = False
    packed: tuple[int, ...] = ()
    members: tuple[Step, ...] = ()
    hidden: bool = False

    @property
    def temps(self) -> tuple[Temp, ...]:
        """The temporary arrays that the kernel asks for."""
        return self.kernel.temps


@dataclass(slots=True)
class Plan:
    """A compiled graph.

    Attributes:
        graph, device: what it was compiled from.
        strided: ("arg", name), ("aux", name) or ("grad", name) of arrays that are not contiguous.
        values, steps: see `Value` and `Step`.
        forward_steps: how many steps forward has; backward has the rest.
        outputs: the value of each head.
        external: the values with memory of their own.
        head_grads: the value of each head's gradient; UNWANTED where backward does not read it.
        trace: what monitors are shown of backward; None without one.
        zero_grads: arguments whose gradient is zero and whose array is to say so.
        spare: bytes that its arena may take without anybody's loss, as they are there for another plan.
        keeps: whether backward may run again: what forward leaves for it stays to the end.
        memory: where the values lie; None until it is planned.
        level: the highest level of computes that its steps may have; by default what OPBOX_COMPUTE_LEVEL says.
    """

    graph: Graph
    device: str
    strided: frozenset[tuple[str, str]] = frozenset()
    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    forward_steps: int = 0
    outputs: list[int] = field(default_factory=list)
    head_grads: list[int] = field(default_factory=list)
    trace: BackwardTrace | None = None
    zero_grads: list[str] = field(default_factory=list)
    spare: int = 0
    keeps: bool = False
    external: dict[int, External] = field(default_factory=dict)
    memory: MemoryPlan | None = None
    level: str | None = None

    def add(self, value: Value) -> int:
        """Append a value; its number."""
        self.values.append(value)
        return len(self.values) - 1

    def specs(self, values: Sequence[int]) -> tuple[ArraySpec, ...]:
        """Shape, type and layout of each of `values`."""
        return tuple([self.values[value].spec for value in values])

    def readers(self) -> list[int]:
        """The number of reads of each value, by steps and as an output of the plan."""
        counts = [0] * len(self.values)
        for step in self.steps:
            for value in step.reads:
                counts[value] += 1
        for value in self.outputs:
            counts[value] += 1
        return counts

    def wholes(self) -> dict[int, int]:
        """For each value that is a part of another, that other."""
        return {v: value.part.base for v, value in enumerate(self.values) if value.part is not None}

    def used(self, steps: Sequence[int]) -> set[int]:
        """The values that these of the steps read and write."""
        values = {value for t in steps for value in (*self.steps[t].reads, *self.steps[t].writes, self.steps[t].saved)}
        return values - {UNWANTED}

    @property
    def arena_bytes(self) -> int:
        """The arena's size."""
        assert self.memory is not None
        return self.memory.arena_bytes

    @property
    def output_bytes(self) -> int:
        """Bytes of the executor's outputs, outside the arena."""
        return sum(value.nbytes for value in self.values if value.array is not None and value.array[0] == "out")

    @property
    def trains(self) -> bool:
        """True if there is a backward."""
        return self.forward_steps < len(self.steps)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the copies of arguments that stay from run to run, outside the arena."""
        return sum(bytes_of(step.temps[k].shape, step.temps[k].dtype) for step in self.steps for k in step.packed)

    @property
    def packed_arguments(self) -> list[str]:
        """The names of the arguments that such copies are of."""
        arrays = [self.values[step.reads[i]].array for step in self.steps if step.packed for i, _ in step.kernel.packs]
        return list(dict.fromkeys([str(array[1]) for array in arrays if array is not None]))

    @property
    def object_bytes(self) -> int:
        """Bytes of the plan as objects of Python, estimated; one that trains counts a plan for inference too."""
        objects = len(self.values) + len(self.steps)
        return OBJECT_BYTES * (objects + objects // 2 if self.trains else objects)

    @property
    def allocates(self) -> int:
        """Bytes that an executor of this plan allocates."""
        return self.arena_bytes + self.output_bytes + self.packed_bytes

    def place(self, *, share: bool = True, temps: bool = True, apart: bool = False, keep: bool = False) -> MemoryPlan:
        """Plan the memory.

        Args:
            share, temps: False leave sharing or temporaries out, for comparison.
            apart: put what forward leaves for backward first, so that it can be copied in one piece.
            keep: let backward overwrite nothing that forward has left for it.
        """
        uses = []
        # Steps that are alike have one tuple of temporaries, and values that are alike one description.
        of_temps = {id(step.temps): step.temps for step in self.steps} if temps else {}
        temp_bytes = {key: tuple([bytes_of(x.planned, x.dtype) for x in group]) for key, group in of_temps.items()}
        of_values = {id(value.spec): value.nbytes for value in self.values}
        whole = self.wholes()
        for t, step in enumerate(self.steps):
            if not t % NODES:
                checkpoint(NODES)
            reads, writes = step.reads, tuple(step.writes)
            if step.saved != UNWANTED:
                if t < self.forward_steps:
                    writes = (*writes, step.saved)
                else:
                    reads = (*reads, step.saved)
            inplace = step.inplace
            if whole and not (whole.keys().isdisjoint(reads) and whole.keys().isdisjoint(writes)):
                # Parts have no memory of their own: none is written over.
                inplace = tuple([(i, o) for i, o in inplace if reads[i] not in whole and writes[o] not in whole])
                reads = tuple([whole.get(value, value) for value in reads])
                writes = tuple([whole.get(value, value) for value in writes])
            if inplace and OpReq.ADD in step.req:
                inplace = tuple([(i, o) for i, o in inplace if step.req[o] == OpReq.WRITE])
            sizes = temp_bytes.get(id(step.temps), ())
            if step.packed and not self.trains:
                sizes = tuple([0 if k in step.packed else size for k, size in enumerate(sizes)])
            uses.append(StepUse(reads, writes, inplace, step.view, sizes))
        nbytes = [of_values[id(value.spec)] for value in self.values]
        return plan_memory(
            uses, nbytes, self.external, boundary=self.forward_steps, share=share, apart=apart, keep=keep
        )
