"""A compiled graph: a flat list of steps, and where each value lies. No arrays yet.

The list has the forward steps, one that takes in the head gradients, and the backward steps. Each step knows its
compute, its parameters, the values that it reads and writes, and how (req); each value knows where it lies: in an
array of the user's, in an executor output, or at an offset of the arena. A Plan may be bound many times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opbox_ops.compute import Compute, OpReq, Temp
from opbox_ops.node import Node

from ..graph.ir import Graph
from ..graph.passes.memory import External, MemoryPlan, StepUse, plan_memory
from .memory import bytes_of

__all__ = ["Plan", "Step", "Value"]


@dataclass(slots=True)
class Value:
    """One output of one node.

    Attributes:
        shape, dtype: settled.
        array: where it lies outside the arena: ("arg", name), ("aux", name), ("grad", name) or ("out", number of the
            first head that it is); None: the memory plan knows.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    array: tuple[str, str | int] | None = None

    @property
    def nbytes(self) -> int:
        return bytes_of(self.shape, self.dtype)


@dataclass(slots=True)
class Step:
    """One call of a compute. A read or written value is a number in `Plan.values`; writes of -1 are not wanted."""

    node: Node
    compute: Compute
    reads: tuple[int, ...]
    writes: list[int]
    req: list[OpReq]
    null: list[tuple[tuple[int, ...], np.dtype[Any]]]
    temps: tuple[Temp, ...] = ()
    view: bool = False


@dataclass(slots=True)
class Plan:
    """A compiled graph.

    Attributes:
        graph, device: what it was compiled from.
        values, steps: see `Value` and `Step`.
        forward_steps: how many steps forward has; backward has the rest.
        outputs: the value of each head.
        external: the values with memory of their own.
        head_grads: the value of each head's gradient; -1 where backward does not read it.
        zero_grads: arguments whose gradient is zero and whose array is to say so.
        memory: where the values lie.
    """

    graph: Graph
    device: str
    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    forward_steps: int = 0
    outputs: list[int] = field(default_factory=list)
    head_grads: list[int] = field(default_factory=list)
    zero_grads: list[str] = field(default_factory=list)
    external: dict[int, External] = field(default_factory=dict)
    memory: MemoryPlan | None = None

    @property
    def arena_bytes(self) -> int:
        """The arena's size: what the memory plan says, and enough to show an unwanted output in its shape."""
        assert self.memory is not None
        unwanted = [Value(*step.null[k]).nbytes for step in self.steps for k, w in enumerate(step.writes) if w < 0]
        return max(self.memory.arena_bytes, *unwanted, 0)

    @property
    def output_bytes(self) -> int:
        """What the executor's outputs take, outside the arena."""
        return sum(value.nbytes for value in self.values if value.array is not None and value.array[0] == "out")

    @property
    def allocates(self) -> int:
        """All that an executor of this plan allocates."""
        return self.arena_bytes + self.output_bytes

    def place(self, *, share: bool = True, temps: bool = True) -> MemoryPlan:
        """Plan the memory; `share` and `temps` False leave sharing or temporaries out, for comparison."""
        uses = []
        for step in self.steps:
            sizes = [bytes_of(temp.shape, temp.dtype) for temp in step.temps]
            uses.append(
                StepUse(step.reads, tuple(step.writes), _inplace(step), step.view, tuple(sizes) if temps else ())
            )
        nbytes = [value.nbytes for value in self.values]
        return plan_memory(uses, nbytes, self.external, boundary=self.forward_steps, share=share)


def _inplace(step: Step) -> tuple[tuple[int, int], ...]:
    if step.node.op is None:
        return ()
    option = step.node.op.get_attr("FInplaceOption", ())
    pairs = option(step.node.params) if callable(option) else option
    return tuple(
        (i, o)
        for i, o in pairs
        if i < len(step.reads) and o < len(step.writes) and step.req[o] == OpReq.WRITE and step.writes[o] >= 0
    )
