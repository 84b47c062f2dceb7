"""Compiled plans for the calls without a session: a graph that comes again in the same shapes runs at once.

An executor is bound to arrays of its own; a call copies its tensors in, runs, and copies the outputs out before it
gives the executor back. Two calls at a time get two executors. What lies idle is bounded in number and in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from cachetools import LRUCache

from opbox_ops.backend import RandomSource
from opbox_ops.compute import Array

from ..executor import BoundPlan, bind
from ..graph.ir import Graph

__all__ = ["Compiled", "PlanCache"]


@dataclass(slots=True)
class Compiled:
    """An executor, the arrays that it is bound to, the bytes of all, and what counts its temporaries no more."""

    executor: BoundPlan
    arrays: dict[str, Array]
    grads: dict[str, Array]
    random: RandomSource
    nbytes: int
    settle: Callable[[], None]


class PlanCache:
    """Idle executors by what they were compiled for, the least recently used dropped first.

    Args:
        size: how many kinds to keep.
        nbytes: how much memory they may keep.
        max_bytes: the most memory of one executor.
    """

    def __init__(self, size: int, nbytes: int, max_bytes: int) -> None:
        self._limit = nbytes
        self._max_bytes = max_bytes
        self._idle: LRUCache[Hashable, list[Compiled]] = LRUCache(size)
        self._bytes = 0
        self._lock = Lock()

    @contextmanager
    def borrow(
        self, key: str, graph: Graph, like: dict[str, Any], wrt: tuple[str, ...], device: str, backend: Any
    ) -> Iterator[Compiled]:
        """An executor for arrays like these; the block has it for itself.

        Args:
            key: the graph's hash.
            graph: the graph.
            like: arrays by argument and auxiliary name, for their shapes and types.
            wrt: the arguments whose gradients are wanted.
            device, backend: where it runs; the backend is a MeteredBackend.

        Raises:
            BadRequestError, ShapeError, …: as `bind`.
        """
        place = (key, device, wrt, tuple((name, tensor.shape, tensor.dtype) for name, tensor in like.items()))
        compiled = self._take(place)
        if compiled is None:
            compiled = self._compile(graph, like, wrt, backend)
        try:
            yield compiled
        finally:
            compiled.settle()
        # Not reached when the block failed: an executor in doubt is dropped.
        self._give(place, compiled)

    def clear(self) -> None:
        """Drop all that is idle."""
        with self._lock:
            self._idle.clear()
            self._bytes = 0

    def _compile(self, graph: Graph, like: dict[str, Any], wrt: tuple[str, ...], backend: Any) -> Compiled:
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
            max_bytes=self._max_bytes,
        )
        nbytes = executor.memory.arena_bytes + executor.memory.output_bytes
        nbytes += sum(int(array.nbytes) for group in (arrays, grads) for array in group.values())
        return Compiled(executor, arrays, grads, random, nbytes, backend.settle)

    def _take(self, place: Hashable) -> Compiled | None:
        with self._lock:
            idle = self._idle.get(place)
            if not idle:
                return None
            compiled = idle.pop()
            if not idle:
                del self._idle[place]
            self._bytes -= compiled.nbytes
            return compiled

    def _give(self, place: Hashable, compiled: Compiled) -> None:
        if compiled.nbytes > self._limit:
            return
        with self._lock:
            idle = self._idle.get(place, [])
            if not idle and len(self._idle) == self._idle.maxsize:
                self._drop_oldest()
            idle.append(compiled)
            self._idle[place] = idle
            self._bytes += compiled.nbytes
            while self._bytes > self._limit:
                self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, dropped = self._idle.popitem()
        self._bytes -= sum(compiled.nbytes for compiled in dropped)
