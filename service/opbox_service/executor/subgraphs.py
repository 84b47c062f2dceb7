"""Bodies: the plans of subgraphs, and how they are bound in the memory of the operator that runs them.

A plan is made once for the shapes, types and gradients that are wanted, and kept by the subgraph. Its scratch, a
temporary of the operator's step, holds in this order

    saved       states that backward reads, and what forward leaves in the arena for backward: copied in one piece
    arena       all other intermediate values
    own         arrays of variables, heads and gradients that are the body's own

so that forward and backward, in different scratch, have the same bytes in `saved`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from opbox_ops.compute import Array, ArraySpec, OpContext
from opbox_ops.control_flow.subgraph import CompiledSubgraph, Run, Subgraph

from ..graph.ir import Graph
from ..graph.passes.memory import aligned
from ..graph.subgraph import GraphSubgraph
from .plan import UNWANTED, Plan, Value
from .run import BoundPlan, Half

__all__ = ["PlanSubgraph", "SubgraphCompiler"]

_lock = Lock()


@dataclass(frozen=True, slots=True)
class SubgraphCompiler:
    """See `opbox_ops.control_flow.subgraph.Compiler`; `level` and `compile_plan` are as for the plan around it."""

    device: str
    level: str | None
    gradients: frozenset[int]
    compile_plan: Callable[..., Plan] = field(compare=False)

    def compile(
        self,
        subgraph: Subgraph,
        variables: Sequence[ArraySpec],
        *,
        own: frozenset[int] = frozenset(),
        lent: frozenset[int] = frozenset(),
        lent_heads: frozenset[int] = frozenset(),
        wrt: frozenset[int] = frozenset(),
    ) -> CompiledSubgraph:
        """See `opbox_ops.control_flow.subgraph.Compiler`."""
        assert isinstance(subgraph, GraphSubgraph)
        key = (self.device, self.level, tuple(variables), own, lent, lent_heads, wrt)
        with _lock:
            body = subgraph.bodies.get(key)
        if body is None:
            graph, names = subgraph.runnable, subgraph.inputs
            wanted = {names[k]: "write" if k in own else "add" for k in wrt - subgraph.states}
            plan = self.compile_plan(
                graph,
                {name: spec.shape for name, spec in zip(names, variables, strict=True)},
                {name: spec.dtype for name, spec in zip(names, variables, strict=True)},
                wanted,
                device=self.device,
                # The operator's own inputs may be anybody's arrays; they are never viewed under another shape.
                strided={
                    ("aux" if k in subgraph.states else "arg", name) for k, name in enumerate(names) if k not in own
                },
                level=self.level,
                apart=True,
            )
            body = PlanSubgraph(plan, graph, subgraph, own, lent, lent_heads)
            with _lock:
                subgraph.bodies[key] = body
        return body


class PlanSubgraph(CompiledSubgraph):
    """See CompiledSubgraph.

    Args:
        plan: of the subgraph.
        graph: the graph that it was made of.
        subgraph: its variables' names.
        own, lent, lent_heads: see Compiler.
    """

    def __init__(
        self,
        plan: Plan,
        graph: Graph,
        subgraph: GraphSubgraph,
        own: frozenset[int],
        lent: frozenset[int],
        lent_heads: frozenset[int],
    ) -> None:
        assert plan.memory is not None
        self.plan = plan
        self._own = own
        self._places = [("aux" if k in subgraph.states else "arg", name) for k, name in enumerate(subgraph.inputs)]
        self._heads: list[tuple[str, str | int]] = [plan.values[value].array or ("out", -1) for value in plan.outputs]
        self._values = {value.array: value for value in plan.values if value.array is not None}
        read = self._read_by_backward()
        mine = [*(self._places[k] for k in sorted(own)), *self._heads]
        given_back = {*(self._places[k] for k in lent), *(self._heads[k] for k in lent_heads)}
        saved = [place for place in mine if place in read and place not in given_back]
        grads = [("grad", subgraph.inputs[k]) for k in sorted(own)]
        self._forward = _Layout(self._values, saved, plan, [place for place in mine if place not in saved])
        lent_places = [place for place in mine if place in read and place in given_back]
        self._backward = _Layout(
            self._values, saved, plan, [*lent_places, *(place for place in grads if place in self._values)]
        )
        self.saved_bytes = self._forward.saved_bytes
        self.forward_bytes, self.backward_bytes = self._forward.total, self._backward.total

    def _read_by_backward(self) -> set[tuple[str, str | int]]:
        """The places outside the arena that backward steps read, also under another shape."""
        plan = self.plan
        assert plan.memory is not None
        places = set()
        for step in plan.steps[plan.forward_steps :]:
            for value in step.reads:
                owner = plan.memory.owner[value]
                place = plan.values[value if owner is None else owner].array
                if place is not None:
                    places.add(place)
        return places

    def forward(self, ctx: OpContext, scratch: Array, arrays: Sequence[Array]) -> Run:
        """See CompiledSubgraph."""
        return self._bind(ctx, scratch, arrays, {}, backward=False)

    def backward(self, ctx: OpContext, scratch: Array, arrays: Sequence[Array], grads: Mapping[int, Array]) -> Run:
        """See CompiledSubgraph."""
        return self._bind(ctx, scratch, arrays, grads, backward=True)

    def _bind(
        self, ctx: OpContext, scratch: Array, arrays: Sequence[Array], grads: Mapping[int, Array], *, backward: bool
    ) -> Run:
        layout = self._backward if backward else self._forward
        placed = layout.arrays(ctx, scratch)
        for k, array in enumerate(arrays):
            if array is not None:
                placed[self._places[k]] = array
        for k, array in grads.items():
            placed["grad", self._places[k][1]] = array
        kinds: dict[str, dict[Any, Array]] = {"arg": {}, "aux": {}, "grad": {}, "out": {}}
        for (kind, name), array in placed.items():
            kinds[kind][name] = array
        half = Half(
            backward,
            layout.arena(scratch),
            {("out", number): array for number, array in kinds["out"].items()},
            ctx.mode,
            lambda: ctx.state,
        )
        plan = self.plan
        executor = BoundPlan(plan, kinds["arg"], kinds["grad"], kinds["aux"], ctx.backend, ctx.random, half)
        heads = executor.arrays_of((backward and plan.head_grads) or [UNWANTED] * len(plan.outputs))
        return Run(
            [placed.get(place) for place in self._places],
            [placed.get(place) for place in self._heads],
            scratch[: self.saved_bytes],
            heads,
            [placed.get(("grad", name)) for _, name in self._places],
            executor.run_half,
        )


class _Layout:
    """Offsets in the memory of one half of a plan.

    Args:
        values: by place.
        saved: places of arrays that are saved.
        plan: whose arena it is.
        others: places of arrays that are not.
    """

    def __init__(
        self,
        values: Mapping[tuple[str, str | int], Value],
        saved: Iterable[tuple[str, str | int]],
        plan: Plan,
        others: Iterable[tuple[str, str | int]],
    ) -> None:
        assert plan.memory is not None
        self._values = values
        self._offsets: dict[tuple[str, str | int], int] = {}
        self._end = self._stack(saved, 0)
        self._arena = self._end, self._end + aligned(plan.arena_bytes)
        self.saved_bytes = self._end + plan.memory.kept_bytes
        self.total = self._stack(others, self._arena[1])

    def _stack(self, places: Iterable[tuple[str, str | int]], offset: int) -> int:
        for place in places:
            if place in self._values and place not in self._offsets:
                self._offsets[place] = offset
                offset += aligned(self._values[place].nbytes)
        return offset

    def arrays(self, ctx: OpContext, scratch: Array) -> dict[tuple[str, str | int], Array]:
        """The arrays in a body's scratch, by their place."""
        return {
            place: ctx.backend.view(scratch, offset, self._values[place].shape, self._values[place].dtype)
            for place, offset in self._offsets.items()
        }

    def arena(self, scratch: Array) -> Array:
        """The arena in a body's scratch."""
        return scratch[self._arena[0] : self._arena[1]]
