"""Executors: bind, forward, backward, describe_executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from opbox_ops.compute import Array
from opbox_protocol.errors import BadRequestError

from ..executor import bind
from ..executor.allocation import allocate
from ..executor.run import BoundPlan
from ..graph.ir import Graph
from ..graph.passes.common_expressions import merge_common_expressions
from ..quota import Allocation
from ..stateless.inference import GraphReference
from ..validation import InPieces
from .array_table import ArrayEntry, ArrayTable, ExecutorEntry
from .command import ID_END, Command, Exchange, Id, IdsByName, IdsOrNone
from .groups import begin_sum

__all__ = ["COMMANDS", "bind_entries", "recurring_run"]


class Bind(Command):
    """Bind a graph to arrays of the session; each run writes the arrays `outputs`.

    `eliminate_common_expr`: whether equal calls on the same inputs are computed once.
    """

    do: Literal["bind"]
    id: Id
    graph: GraphReference
    args: IdsByName = {}
    grads: IdsByName = {}
    grad_req: Annotated[dict[str, Literal["write", "add", "null"]], InPieces()] = {}
    aux: IdsByName = {}
    outputs: IdsOrNone = []
    eliminate_common_expr: bool = True

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        table.reserve(self.id, *self.outputs)
        graph = table.graph(self.graph)
        args, grads, aux = (
            {name: table.entry(id) for name, id in ids.items()} for ids in (self.args, self.grads, self.aux)
        )
        count = len(graph.heads)
        if self.outputs and len(self.outputs) != count:
            raise BadRequestError(f"outputs: expected an id for each of {count} outputs, got {len(self.outputs)}")
        places = {
            "args": self.args,
            "grads": self.grads,
            "grad_req": self.grad_req,
            "aux": self.aux,
            "outputs": self.outputs,
            "eliminate_common_expr": self.eliminate_common_expr,
        }
        bound, allocations = bind_entries(table, graph, args, grads, aux, self.grad_req, places)
        table.add(self.id, bound)
        for number, array in zip(self.outputs, bound.executor.outputs, strict=False):
            allocation = allocations[id(array)]
            if number is not None:
                table.add(number, ArrayEntry(array, None, allocation.share() if allocation is not None else None))


def bind_entries(
    table: ArrayTable,
    graph: Graph,
    args: Mapping[str, ArrayEntry],
    grads: Mapping[str, ArrayEntry],
    aux: Mapping[str, ArrayEntry],
    grad_req: Mapping[str, str],
    places: Mapping[str, Any],
) -> tuple[ExecutorEntry, dict[int, Allocation | None]]:
    """Bind a graph to arrays, and count its memory in the table's budget.

    Args:
        table: whose device and budget it has.
        graph: the graph.
        args, grads, aux, grad_req: as of `bind`.
        places: for the entry; `eliminate_common_expr` in it as of `bind`.

    Returns:
        The entry, which has no number yet, and the memory of its arrays by the id of the array's object.
    """
    budget = table.budget
    executor = bind(
        graph,
        args={name: entry.array for name, entry in args.items()},
        grads={name: entry.array for name, entry in grads.items()},
        grad_req=dict(grad_req) or None,
        aux={name: entry.array for name, entry in aux.items()},
        backend=table.backend,
        random=table.random,
        max_bytes=budget.available,
        eliminate_common_expr=places["eliminate_common_expr"],
    )
    # An output that is an argument's array, or a second head on the same entry, has its memory counted already.
    entries = {id(entry): entry for group in (args, grads, aux) for entry in group.values()}
    by_array = {id(entry.array): entry.allocation for entry in entries.values()}
    memory = executor.memory
    allocations = [Allocation(budget, memory.arena_bytes + memory.packed_bytes + executor.plan.object_bytes)]
    allocations += [allocation.share() for allocation in by_array.values() if allocation is not None]
    for array in executor.outputs:
        if id(array) not in by_array:
            own = by_array[id(array)] = Allocation(budget, int(array.nbytes))
            allocations.append(own)
    return ExecutorEntry(executor, allocations, graph, places), by_array


class Forward(Command):
    """Run an executor forward; copies of operators' outputs that `watch` names become new arrays."""

    silences: ClassVar[bool] = True

    do: Literal["forward"]
    executor: Id
    is_train: bool = False
    watch: IdsByName = Field(default_factory=dict)

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        if self.watch:
            self._run_watched(table)
        else:
            executor = table.executor(self.executor)
            executor.forward(is_train=self.is_train, parameters=table.parameters, profile=table.nodes_profile)
        table.note_run(self.executor)

    def _run_watched(self, table: ArrayTable) -> None:
        table.reserve(*self.watch.values())
        graph = table.executor(self.executor).plan.graph
        names = {name for node in graph.nodes if node.op is not None for name in node.output_names()}
        for name in self.watch:
            if name not in names:
                raise BadRequestError(
                    f"watch: expected names of operators' outputs in the executor's graph, got {name!r}"
                )
        copies: dict[str, Array] = {}

        def copy(name: str, array: Array) -> None:
            if name in self.watch:
                copies[name] = allocate(table.backend, tuple(array.shape), array.dtype, overwritten=True)
                copies[name][...] = array

        table.executor(self.executor).forward(self.is_train, copy, table.parameters)
        for name, array in copies.items():
            table.keep(self.watch[name], array)


class Backward(Command):
    """Compute gradients into the bound arrays, as grad_req says.

    `watch` has a number for each of the executor's `backward_outputs`, which is to become a copy of it, or null.
    """

    silences: ClassVar[bool] = True

    do: Literal["backward"]
    executor: Id
    head_grads: IdsOrNone = Field(default_factory=list)
    is_train: bool = True
    watch: IdsOrNone = Field(default_factory=list)

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        executor = table.executor(self.executor)
        heads = [None if id is None else table.read(id) for id in self.head_grads]
        if self.watch:
            self._run_watched(table, executor, heads)
        else:
            begin_sum(table, executor, exchange.following)
            executor.backward(heads, table.nodes_profile, follower=table.begun_sum, is_train=self.is_train)
        table.steps += 1

    def _run_watched(self, table: ArrayTable, executor: BoundPlan, heads: Sequence[Array | None]) -> None:
        table.reserve(*(id for id in self.watch if id is not None))
        count = len(executor.backward_outputs)
        if len(self.watch) != count:
            raise BadRequestError(
                f"watch: expected a number or null for each of {count} outputs, got {len(self.watch)}"
            )
        numbers = iter(self.watch)
        copies: dict[int, Array] = {}

        def copy(name: str, array: Array) -> None:
            number = next(numbers)
            if number is not None:
                copies[number] = allocate(table.backend, tuple(array.shape), array.dtype, overwritten=True)
                copies[number][...] = array

        executor.backward(heads, monitor=copy, is_train=self.is_train)
        for number, array in copies.items():
            table.keep(number, array)


@lru_cache(maxsize=1024)
def _forward(executor: int, is_train: bool) -> Forward:
    return Forward(do="forward", executor=executor, is_train=is_train)


@lru_cache(maxsize=1024)
def _backward(executor: int) -> Backward:
    return Backward(do="backward", executor=executor)


def recurring_run(command: Any) -> Forward | Backward | None:
    """A `forward` without `watch`, or a `backward` without head gradients, as clients write it; None for anything else.

    A training step is little else, and it takes a tenth of the time of validating the command as a model.

    Args:
        command: right or wrong.
    """
    try:
        name = command["do"]
        if name not in ("forward", "backward"):
            return None
        executor = command["executor"]
        if len(command) != 3 or type(executor) is not int or not 0 <= executor < ID_END:
            return None
        if name == "forward" and type(command["is_train"]) is bool:
            return _forward(executor, command["is_train"])
        if name == "backward" and type(command["head_grads"]) is list and not command["head_grads"]:
            return _backward(executor)
    except (KeyError, TypeError, IndexError):
        pass
    return None


class DescribeExecutor(Command):
    """An executor's memory, steps, merged nodes and backward operators' outputs, in the answer's results."""

    changes_arrays: ClassVar[bool] = False

    do: Literal["describe_executor"]
    id: Id

    def run(self, table: ArrayTable, exchange: Exchange) -> None:
        entry = table.executor_entry(self.id)
        executor = entry.executor
        merged: dict[str, Any] = {}
        if executor.plan.graph is not entry.graph:
            common = merge_common_expressions(entry.graph)
            merged = {"merged": list(common.merged.items()), "heads": common.heads}
        backward = {"backward_outputs": executor.backward_outputs, "backward": executor.backward_shown}
        exchange.report(**asdict(executor.memory), **merged, **backward)


COMMANDS = (Bind, Forward, Backward, DescribeExecutor)
