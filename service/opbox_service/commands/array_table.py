"""Arrays, executors and kernels by id: the objects that commands work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from cachetools import LRUCache

from opbox_ops.backend import RandomSource
from opbox_ops.compute import Array
from opbox_ops.rtc import KernelForm
from opbox_protocol.errors import BadRequestError, ConflictError, NotFoundError, QuotaError, UnsupportedError
from opbox_protocol.routes import GRAPH_PREFIX, SESSION_GRAPHS

from ..checkpoint_store import Buffer
from ..dataset_store import OwnersDatasets
from ..executor import PROFILE_BYTES, BoundPlan, Profile, Watched
from ..graph.ir import Graph
from ..groups import BegunSum
from ..quota import Allocation, Budget
from ..stateless.graph_cache import GraphCache, is_shareable

if TYPE_CHECKING:
    from .checkpoints import CheckpointPlan

__all__ = [
    "WRITES_TO_INPUT",
    "ArrayEntry",
    "ArrayTable",
    "TableEntry",
    "ExecutorEntry",
    "KeepDefinition",
    "KernelEntry",
    "OnReport",
    "OwnCheckpoints",
    "RowsEntry",
    "UnwrittenOutput",
]

WRITES_TO_INPUT = "it writes to an input: expected inputs to be left as they are; write to the outputs, or to a copy"


class KeepDefinition(Protocol):
    """Keeps the source, or the class, of a user's operator."""

    def __call__(self, kind: str, op_type: str, code: str, bundle: Any = None, live: Any = None) -> object: ...


class OwnCheckpoints(Protocol):
    """The checkpoints of a session's owner; see checkpoint_store.CheckpointStore."""

    def save(self, name: str, parts: Sequence[Buffer], generation: int | None = None) -> int: ...

    def load(self, name: str) -> Buffer: ...

    def take(self, name: str) -> tuple[Buffer, int]: ...


class OnReport(Protocol):
    """Takes what a training reports of itself."""

    def __call__(self, steps: int, epoch: int | None, values: Mapping[str, float | None]) -> None: ...


class TableEntry(Protocol):
    """An entry of an ArrayTable, by its id: an array, an executor or a kernel."""

    kind: str

    def drop(self) -> int:
        """Give back its memory. Returns the bytes that are the table's own to give back."""


class ArrayEntry:
    """An array and its memory; the budget is None if another table counts it.

    Args:
        array: the array.
        budget: where its memory is counted already, for this entry alone; or
        allocation: memory that it shares.
        read_only: whether commands may not write to it.
    """

    __slots__ = ("_allocation", "_budget", "array", "read_only")
    kind = "an array"

    def __init__(
        self, array: Array, budget: Budget | None, allocation: Allocation | None = None, read_only: bool = False
    ) -> None:
        self.array = array
        self.read_only = read_only
        self._budget = budget
        self._allocation = allocation

    @property
    def allocation(self) -> Allocation | None:
        """The array's memory, for others to share; None where another table counts it."""
        if self._budget is not None:
            self._allocation, self._budget = Allocation(self._budget, int(self.array.nbytes), counted=True), None
        return self._allocation

    def drop(self) -> int:
        if self._budget is not None:
            return int(self.array.nbytes)
        if self._allocation is not None:
            self._allocation.drop()
        return 0


class UnwrittenOutput:
    """An output of a restored executor, which has no values until that has run; in the place of its ArrayEntry.

    Attributes:
        entry: the array.
        executor: the number of the executor.
    """

    __slots__ = ("entry", "executor")
    kind = "an output without values"

    def __init__(self, entry: ArrayEntry, executor: int) -> None:
        self.entry = entry
        self.executor = executor

    def drop(self) -> int:
        return self.entry.drop()


class ExecutorEntry:
    """An executor, and the memory that it uses: its own, and that of the arrays that it is bound to.

    Attributes:
        graph: that it runs.
        places: the numbers of its arrays, as `bind` had them.
    """

    __slots__ = ("allocations", "executor", "graph", "places")
    kind = "an executor"

    def __init__(
        self, executor: BoundPlan, allocations: Sequence[Allocation], graph: Graph, places: Mapping[str, Any]
    ) -> None:
        self.executor = executor
        self.graph = graph
        self.places = places
        self.allocations = allocations

    def drop(self) -> int:
        for allocation in self.allocations:
            allocation.drop()
        return 0


class KernelEntry:
    """A compiled kernel; its code is cached by content, so there is nothing to give back."""

    __slots__ = ("form",)
    kind = "a kernel"

    def __init__(self, form: KernelForm) -> None:
        self.form = form

    def drop(self) -> int:
        """Return 0: a kernel's code is cached by content, so nothing is freed."""
        return 0


class RowsEntry:
    """A dataset's array, of whose rows only those count that have been put.

    Args:
        entry: the rows, on the device, with their memory.
        present: for each row, whether it has been put.
    """

    __slots__ = ("_entry", "array", "complete", "present")
    kind = "a dataset"

    def __init__(self, entry: ArrayEntry, present: np.ndarray[Any, Any]) -> None:
        self._entry = entry
        self.array = entry.array
        self.present = present
        self.complete = bool(present.all())

    def mark(self, rows: slice | np.ndarray[Any, Any]) -> None:
        """Note that rows have been put."""
        if not self.complete:
            self.present[rows] = True
            self.complete = bool(self.present.all())

    def drop(self) -> int:
        return self._entry.drop()


class ArrayTable:
    """The numbers in use on one device. A session has one for each of its devices; so has an operator of a user's own.

    Args:
        backend: the device, metered by `budget`.
        random: its random source.
        device: its name, "cpu" or "gpu:0".
        budget: counts the memory of the arrays.
        define: keeps operators' sources.
        graphs: the graphs that executors may be bound to; None where none may.
        owner: whose they are that come with its commands.
        max_entries: how many numbers may be in use.
        max_rank: the most dimensions of a shape.

    Attributes:
        steps: backward passes that have run.
        checkpoints: where they are saved; None where none can be.
        datasets: the owner's store of them; None where there is none.
        plan: what the session saves; None while nobody has asked for it.
        on_report: takes steps, epoch and values that the session's program reports.
        profile: the times of its operators and commands; None while its program has not asked for any.
        silent: whether NumPy has been told to be silent about NaN and infinity while commands run.
        group_host: where groups of sessions listen, and their network, as 10.0.0.5/24; empty: they may not.
        begun_sum: of the `all_reduce` behind the command at hand, which has begun already; None where none has.
        group_ports: where they may listen, as 20000-20099; empty: on any free port.
        group_nccl: whether they may add up arrays of GPUs by NCCL.
        use: makes another device the one of the commands that follow, by its name.
    """

    def __init__(
        self,
        backend: Any,
        random: RandomSource,
        device: str,
        budget: Budget,
        define: KeepDefinition,
        *,
        graphs: GraphCache | None = None,
        owner: str = "",
        max_entries: int = 1 << 31,
        max_rank: int = 32,
    ) -> None:
        self.backend = backend
        self.random = random
        self.device = device
        self.budget = budget
        self.define = define
        self.max_rank = max_rank
        self.silent = False
        self.steps = 0
        self._watched: Watched | None = None
        self._unwritten: dict[int, Sequence[int]] = {}
        self._trusted = True
        self.checkpoints: OwnCheckpoints | None = None
        self.datasets: OwnersDatasets | None = None
        self.plan: CheckpointPlan | None = None
        self.profile: Profile | None = None
        self._profile_memory: Allocation | None = None
        self.on_report: OnReport = lambda steps, epoch, values: None
        self.use: Callable[[str], None] = _refuse_other
        self.group_host = self.group_ports = ""
        self.group_nccl = True
        self.begun_sum: BegunSum | None = None
        self._graphs = graphs
        self._owner = owner
        self._max_entries = max_entries
        self._entries: dict[int, TableEntry] = {}
        self._others: tuple[ArrayTable, ...] = ()
        # Twice what clients rely on: a command that fails may count here and not there.
        self._recent_graphs: LRUCache[str, Graph] = LRUCache(2 * SESSION_GRAPHS)
        self._graphs_lock = Lock()

    def beside(self, backend: Any, random: RandomSource, device: str, budget: Budget) -> ArrayTable:
        """Return a new table of the same session on another device; the tables share their numbers."""
        other = ArrayTable(
            backend,
            random,
            device,
            budget,
            self.define,
            graphs=self._graphs,
            owner=self._owner,
            max_entries=self._max_entries,
            max_rank=self.max_rank,
        )
        other._recent_graphs, other._graphs_lock = self._recent_graphs, self._graphs_lock
        other.on_report, other.use, other.checkpoints = self.on_report, self.use, self.checkpoints
        other.datasets = self.datasets
        other.group_host, other.group_ports, other.group_nccl = self.group_host, self.group_ports, self.group_nccl
        other._trusted = self._trusted
        tables = (self, *self._others, other)
        for table in tables:
            table._others = tuple(one for one in tables if one is not table)
        return other

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def executors(self) -> int:
        """The number of entries that are executors."""
        return sum(type(entry) is ExecutorEntry for entry in list(self._entries.values()))

    def __contains__(self, id: int) -> bool:
        return id in self._entries

    # -- looking up ---------------------------------------------------------------------------------------------

    def entry(self, id: int) -> ArrayEntry:
        """The array `id` and its memory; NotFoundError when there is none. It counts as written to."""
        entry = self._array_entry(id)
        if self._watched is not None:
            self._watched.touch(entry.array)
        return entry

    def _array_entry(self, id: int) -> ArrayEntry:
        entry = self._entries.get(id)
        if type(entry) is ArrayEntry:
            return entry
        if type(entry) is UnwrittenOutput:
            raise ConflictError(
                f"array {id}: expected values, got an output of executor {entry.executor}, which has not run since it "
                "was restored: call forward"
            )
        raise self._absent("array", id, entry)

    def holder_of(self, id: int) -> ArrayTable:
        """The session's table that has the number `id`: this one where none has it."""
        if id not in self._entries:
            for other in self._others:
                if id in other._entries:
                    return other
        return self

    def array(self, id: int) -> Array:
        """Return the array `id` and count it as written to (see `read`); raise NotFoundError if unknown."""
        return self.entry(id).array

    def read(self, id: int) -> Array:
        """Return the array `id` for reading only; raise NotFoundError if unknown."""
        return self._array_entry(id).array

    def arrays(self, ids: Sequence[int]) -> list[Array]:
        """The arrays `ids`; NotFoundError when one of them is none."""
        entries: Any = self._entries
        if self._watched is not None:
            return [self.array(id) for id in ids]
        try:
            if len(ids) == 1:
                return [entries[ids[0]].array]
            if len(ids) == 2:
                return [entries[ids[0]].array, entries[ids[1]].array]
            return [entries[id].array for id in ids]
        except (KeyError, AttributeError):
            return [self.array(id) for id in ids]

    def writable(self, id: int) -> Array:
        """The array `id`, to be written to; BadRequestError when it is an operator's input."""
        entry = self.entry(id)
        if entry.read_only:
            raise BadRequestError(WRITES_TO_INPUT)
        return entry.array

    def executor(self, id: int) -> BoundPlan:
        """The executor `id`, to be run; NotFoundError when there is none. What it may write counts as written to."""
        executor = self.executor_entry(id).executor
        if self._watched is not None:
            self._watched.touch_all(id, executor.writable)
        return executor

    @property
    def parameters(self) -> int | None:
        """The version of the arrays' values, which executors get with a run; see `BoundPlan.forward`."""
        return None if self._watched is None else self._watched.version

    @property
    def nodes_profile(self) -> Profile | None:
        """The profile, while it times the nodes of graphs."""
        return self.profile if self.profile is not None and "symbolic" in self.profile.kinds else None

    def start_profile(self) -> Profile:
        """Begin a profile, which times nothing yet; QuotaError when the session has no memory for it."""
        self._profile_memory = Allocation(self.budget, PROFILE_BYTES)
        self.profile = Profile(None if self.backend.device_type == "cpu" else self.backend.synchronize)
        return self.profile

    def end_profile(self) -> None:
        """Drop the profile, if there is one."""
        if self._profile_memory is not None:
            self._profile_memory.drop()
        self.profile = self._profile_memory = None

    def distrust(self) -> None:
        """Assume from now on that any array may be written to at any time: the session has code of a user's."""
        self._trusted, self._watched = False, None

    def executor_entry(self, id: int) -> ExecutorEntry:
        """The executor `id` and what it was bound to; NotFoundError when there is none."""
        entry = self._entries.get(id)
        if type(entry) is ExecutorEntry:
            return entry
        raise self._absent("executor", id, entry)

    def bound_plans(self) -> list[tuple[int, BoundPlan]]:
        """All executors with their ids."""
        entries = list(self._entries.items())
        return [(id, entry.executor) for id, entry in entries if type(entry) is ExecutorEntry]

    def rows_entry(self, id: int) -> RowsEntry:
        """The dataset `id`; NotFoundError when there is none."""
        entry = self._entries.get(id)
        if type(entry) is RowsEntry:
            return entry
        raise self._absent("dataset", id, entry)

    def keep_dataset(self, id: int, entry: RowsEntry) -> None:
        """Register a dataset under an id and count its memory; raise QuotaError if the quota is full."""
        self.budget.keep(int(entry.array.nbytes))
        self._entries[id] = entry

    def entries(self) -> dict[int, TableEntry]:
        """All entries by their numbers, the oldest first."""
        return dict(self._entries)

    def kernel(self, id: int) -> KernelForm:
        """The kernel `id`; NotFoundError when there is none."""
        entry = self._entries.get(id)
        if type(entry) is KernelEntry:
            return entry.form
        raise self._absent("kernel", id, entry)

    def graph(self, reference: Any) -> Graph:
        """A graph by its JSON or hash; UnsupportedError inside an operator."""
        if self._graphs is None:
            raise UnsupportedError("inside an operator, expected mx.nd's operators one by one: bind graphs outside")
        with self._graphs_lock:
            recent = self._recent_graphs.get(reference) if isinstance(reference, str) else None
        if recent is not None:
            return recent
        key, graph = self._graphs.resolve(reference, self._owner)
        if is_shareable(graph):
            self.keep_graph(GRAPH_PREFIX + key, graph)
        return graph

    def keep_graph(self, name: str, graph: Graph) -> None:
        """Know a graph by its name, for as long as it is among the last ones used."""
        with self._graphs_lock:
            self._recent_graphs[name] = graph

    def recent_graphs(self) -> dict[str, Graph]:
        """The graphs that it knows by their names."""
        with self._graphs_lock:
            return dict(self._recent_graphs)

    # -- changing -----------------------------------------------------------------------------------------------

    def reserve(self, *ids: int | None) -> None:
        """Check that new entries may take these numbers; None is passed over.

        Raises:
            ConflictError: a number is in use, or comes twice.
            QuotaError: there would be too many entries.
        """
        count, only = len(self._entries), not self._others
        if only and len(ids) == 1 and ids[0] not in self._entries and count < self._max_entries:
            return
        numbers = [id for id in ids if id is not None]
        if len(set(numbers)) != len(numbers):
            raise ConflictError(f"ids {numbers}: expected each once")
        for id in numbers:
            if id in self.holder_of(id)._entries:
                raise ConflictError(f"id {id} is taken: free it first, or choose another")
        count += sum(len(other) for other in self._others)
        if count + len(ids) > self._max_entries:
            raise QuotaError(
                f"session: expected at most {self._max_entries} arrays, executors and kernels, got "
                f"{count} and {len(ids)} more: free some, or ask the server's administrator for more "
                "(OPBOX_MAX_SESSION_OBJECTS)"
            )

    def keep(self, id: int, array: Array) -> None:
        """Register a new array under an id and count its memory; raise QuotaError if the quota is full."""
        self.budget.keep(int(array.nbytes))
        self._entries[id] = ArrayEntry(array, self.budget)

    def add(self, id: int, entry: TableEntry) -> None:
        """Give a number to an entry."""
        self._entries[id] = entry
        if type(entry) is ExecutorEntry and entry.executor.packed and self._trusted:
            if self._watched is None:
                self._watched = Watched()
            self._watched.add(id, entry.executor.packed)

    def await_run(self, executor: int, outputs: Sequence[int]) -> None:
        """Refuse to read these outputs of an executor until it has run (`note_run`)."""
        for id in outputs:
            self._entries[id] = UnwrittenOutput(self.entry(id), executor)
        if outputs:
            self._unwritten[executor] = outputs

    def note_run(self, executor: int) -> None:
        """Note that an executor has run, so that its outputs have values."""
        if not self._unwritten:
            return
        for id in self._unwritten.pop(executor, ()):
            entry = self._entries.get(id)
            if type(entry) is UnwrittenOutput:
                self._entries[id] = entry.entry

    def drop(self, id: int) -> None:
        """Free an id; unknown ids are ignored."""
        self.drop_all((id,))

    def drop_all(self, ids: Sequence[int]) -> None:
        """Free ids on every device, as `drop` does; return their memory to the budget at once."""
        self._drop_own(ids)
        if self._others:
            for other in self._others:
                other._drop_own(ids)

    def _drop_own(self, ids: Sequence[int]) -> None:
        pop, nbytes = self._entries.pop, 0
        for id in ids:
            entry = pop(id, None)
            if entry is not None:
                if self._watched is not None and type(entry) is ExecutorEntry and not self._watched.discard(id):
                    self._watched = None
                nbytes += entry.drop()
        self.budget.give(nbytes)

    def clear(self) -> None:
        """Free all ids of this device."""
        self._drop_own(list(self._entries))
        self.end_profile()

    def _absent(self, kind: str, id: int, entry: TableEntry | None) -> NotFoundError:
        holder = self.holder_of(id)
        if holder is not self:
            return NotFoundError(
                f"{kind} {id}: expected one on {self.device}, where this command runs, got "
                f"{holder._entries[id].kind} on {holder.device}: copy it first"
            )
        origin = {"array": "of", "executor": "bound in", "kernel": "compiled in", "dataset": "opened in"}[kind]
        got = "nothing" if entry is None else entry.kind
        return NotFoundError(f"{kind} {id}: expected one {origin} this session, got {got}")


def _refuse_other(device: str) -> None:
    raise UnsupportedError(f"use_device {device[:40]!r}: expected a batch of a session, got an operator's command")
