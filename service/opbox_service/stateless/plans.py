"""Compiled plans for the calls without a session: a graph that comes again in the same shapes runs at once.

An executor is bound to arrays of its own; a call copies its tensors in, runs, and copies the outputs out before it
gives the executor back. Two calls at a time get two executors. What lies idle is bounded in number and in bytes, and
belongs to an owner: nobody computes among the tensors of somebody else's last call.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from opbox_ops.backend import Backend, RandomSource
from opbox_ops.cache import CACHE_BYTES
from opbox_ops.compute import Array

from ..executor import BoundPlan, bind
from ..graph.ir import Graph
from ..quota import Budget, MeteredBackend

__all__ = ["Compiled", "PlanCache", "same_bytes"]


class _Place(NamedTuple):
    """What a plan was compiled for: whose, which graph, where, which gradients, and names, shapes and types."""

    owner: str
    key: str
    device: str
    wrt: tuple[str, ...]
    like: tuple[tuple[str, tuple[int, ...], Any], ...]


@dataclass(slots=True)
class Compiled:
    """An executor, the arrays that it is bound to, and its backend.

    Attributes:
        budget: counts the memory of all, for whoever uses it now or did last.
        nbytes: of all.
        place: what it was compiled for.
        version: another number whenever an array that the executor has a packed copy of is written to.
    """

    executor: BoundPlan
    arrays: dict[str, Array]
    grads: dict[str, Array]
    random: RandomSource
    backend: MeteredBackend
    budget: Budget
    nbytes: int
    place: _Place | None = None
    version: int = 0

    def write(self, inputs: Mapping[str, Any]) -> None:
        """Copy a call's tensors into the arrays; weights that are there already stay, packed as they are.

        Not so with a backward: training comes with other weights each time.
        """
        packed = set() if self.executor.plan.trains else set(map(id, self.executor.packed))
        self.version += self.executor.plan.trains
        write: Any = self.backend.write
        for name, array in self.arrays.items():
            if id(array) in packed:
                if same_bytes(array, inputs[name]):
                    continue
                self.version += 1
            write(array, inputs[name])

    def drop(self) -> None:
        """Drop the plan instead of returning it to the cache, as its state is in doubt."""
        self.budget.close()


def same_bytes(array: Array, tensor: Array) -> bool:
    """True if a tensor has the very bytes of an array of its shape and type; it stops at the first that differ."""
    if not array.flags.c_contiguous or not tensor.flags.c_contiguous:
        return False
    one, other = (x.reshape(-1).view(np.uint8) for x in (array, tensor))
    for begin in range(0, one.size, CACHE_BYTES):
        a, b = one[begin : begin + CACHE_BYTES], other[begin : begin + CACHE_BYTES]
        if a.size % 8 == 0:
            a, b = a.view(np.uint64), b.view(np.uint64)
        if not np.array_equal(a, b):
            return False
    return True


class PlanCache:
    """Idle executors by what they were compiled for; the owner with most loses the least recently used first.

    Args:
        size: how many kinds to keep.
        nbytes: how much memory they may keep.
    """

    def __init__(self, size: int, nbytes: int) -> None:
        self._size = size
        self._limit = nbytes
        self._idle: OrderedDict[_Place, list[Compiled]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def take(
        self,
        owner: str,
        key: str,
        graph: Graph,
        like: Mapping[str, Any],
        wrt: tuple[str, ...],
        device: str,
        backend: Backend,
        memory: Budget,
        limit: int,
    ) -> Compiled:
        """An executor for arrays like these, its caller's own until `give_back`, or `Compiled.drop`.

        Args:
            owner: whose call it is.
            key: the graph's hash.
            graph: the graph.
            like: arrays by argument and auxiliary name, for their shapes and types.
            wrt: the arguments whose gradients are wanted.
            device, backend: where it runs.
            limit: the most memory of the call.
            memory: the owner's. An idle executor goes when anybody needs its memory.

        Raises:
            QuotaError: there is no room in `memory`.
            BadRequestError, ShapeError, …: as `bind`.
        """
        place = _Place(
            owner, key, device, wrt, tuple((name, tensor.shape, tensor.dtype) for name, tensor in like.items())
        )
        compiled = self._take(place)
        if compiled is None:
            compiled = self._compile(graph, like, wrt, backend, memory, limit)
            compiled.place = place
            return compiled
        try:
            compiled.budget.wake(memory, limit)
        except BaseException:
            compiled.drop()
            raise
        return compiled

    def clear(self) -> None:
        """Drop all that is idle."""
        with self._lock:
            while self._idle:
                self._drop(next(iter(self._idle)))

    def _compile(
        self, graph: Graph, like: Mapping[str, Any], wrt: tuple[str, ...], device: Backend, memory: Budget, limit: int
    ) -> Compiled:
        budget = Budget(limit, memory, "memory of the call")
        try:
            return self._bind(graph, like, wrt, MeteredBackend(device, budget), budget)
        except BaseException:
            budget.close()
            raise

    def _bind(
        self, graph: Graph, like: Mapping[str, Any], wrt: tuple[str, ...], metered: MeteredBackend, budget: Budget
    ) -> Compiled:
        backend: Any = metered
        arrays = {name: backend.empty(tuple(tensor.shape), tensor.dtype) for name, tensor in like.items()}
        auxiliary = set(graph.auxiliary_names)
        grads = {name: backend.empty(arrays[name].shape, arrays[name].dtype) for name in wrt if name in arrays}
        random = backend.random(0)
        executor = bind(
            graph,
            args={name: array for name, array in arrays.items() if name not in auxiliary},
            grads=grads,
            aux={name: array for name, array in arrays.items() if name in auxiliary},
            backend=backend,
            random=random,
            max_bytes=budget.limit,
        )
        nbytes = executor.nbytes_with(arrays, grads)
        budget.keep(nbytes)
        budget.settle()
        return Compiled(executor, arrays, grads, random, metered, budget, nbytes)

    def _take(self, place: _Place) -> Compiled | None:
        with self._lock:
            idle = self._idle.get(place)
            if idle is None:
                return None
            compiled = idle.pop()
            self._bytes -= compiled.nbytes
            if not idle:
                del self._idle[place]
            return compiled

    def give_back(self, compiled: Compiled) -> None:
        """Return a plan to the cache for the next equal call, if the cache has space."""
        if compiled.nbytes > self._limit:
            compiled.budget.close()
            return
        compiled.budget.rest()
        assert compiled.place is not None
        with self._lock:
            self._idle.setdefault(compiled.place, []).append(compiled)
            self._idle.move_to_end(compiled.place)
            self._bytes += compiled.nbytes
            while self._bytes > self._limit or len(self._idle) > self._size:
                self._evict(compiled.place, by_bytes=self._bytes > self._limit)

    def _evict(self, newest: _Place, *, by_bytes: bool) -> None:
        """Drop the plan that the owner with most bytes, or with most kinds of plans, has not used for longest."""
        totals: Counter[str] = Counter()
        for place, idle in self._idle.items():
            if place != newest:
                totals[place.owner] += sum(compiled.nbytes for compiled in idle) if by_bytes else 1
        if not totals:
            self._drop(newest)
            return
        ((loser, _),) = totals.most_common(1)
        self._drop(next(place for place in self._idle if place.owner == loser))

    def _drop(self, place: _Place) -> None:
        for compiled in self._idle.pop(place):
            self._bytes -= compiled.nbytes
            compiled.budget.close()
