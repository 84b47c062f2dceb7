"""GraphBatches: calls of one owner for one graph become one run along the first axis, where they ask for it.

The calls of a run have equal weights, which are compared byte by byte: each call brings its own, and the server keeps
none for it. So a batch saves what a run costs beside reading the weights once; a served model saves that too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from cachetools import LRUCache

from ..carriers import AnswerLimit
from ..executor.inference import leaves_something
from ..graph.ir import Graph
from ..models.batch_axis import keeps_examples
from ..models.batching import Batcher
from ..models.request_queue import WaitingRequest
from ..task import current
from .plans import same_bytes

__all__ = ["GraphBatches", "GraphCall"]

Array: TypeAlias = "np.ndarray[Any, Any]"
MAX_EXAMPLES = 32
"""The most examples of a run."""
MAX_WAITING = 128
"""The most calls that wait for a run of one graph."""
KEPT_BATCHERS = 64
"""Number of graphs, with their shapes, whose calls are gathered."""
PER_EXAMPLE = frozenset({"data", "label"})
"""An argument that operators read under these names alone has an axis of examples; others are weights."""


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A call of a graph, resolved.

    Attributes:
        owner: whose it is.
        key, graph: the graph's hash, and itself.
        device: where it runs.
        tensors: by argument and auxiliary state.
        limit_bytes: the most memory of the call.
        seed, is_train: how it runs.
    """

    owner: str
    key: str
    graph: Graph
    device: str
    tensors: Mapping[str, Array]
    limit_bytes: int
    seed: int = 0
    is_train: bool = False


Take: TypeAlias = "Callable[[dict[str, Array]], None]"
"""Gets outputs by name, which are valid while it runs."""
Run: TypeAlias = "Callable[[GraphCall, Take], None]"
"""Runs a call forward."""


class GraphBatches:
    """Gathers calls that ask for it. Safe to call from many threads.

    Args:
        run: runs a call forward.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._batchers: LRUCache[Any, _GraphBatcher | None] = LRUCache(KEPT_BATCHERS)
        self._lock = Lock()

    def join(self, call: GraphCall, take: Take, fail: Callable[[Exception], None], limit: AnswerLimit) -> bool:
        """Take a call, which is answered by this thread or another; False for one that has to run alone.

        Raises:
            QuotaError: too many wait.
        """
        batched = batched_inputs(call.graph)
        lengths = {call.tensors[name].shape[0] if call.tensors[name].ndim else -1 for name in batched}
        if call.is_train or len(lengths) != 1:
            return False
        (examples,) = lengths
        if not 0 < examples < MAX_EXAMPLES:
            return False
        forms = tuple(
            (name, tensor.shape[name in batched :], tensor.dtype) for name, tensor in sorted(call.tensors.items())
        )
        place = (call.owner, call.key, call.device, call.limit_bytes, forms)
        with self._lock:
            known = place in self._batchers
            batcher = self._batchers[place] if known else None
        if not known:
            shapes = {name: tensor.shape for name, tensor in call.tensors.items()}
            may = not any(map(leaves_something, call.graph.nodes)) and keeps_examples(call.graph, shapes, batched, 0)
            with self._lock:
                batcher = self._batchers.setdefault(place, _GraphBatcher(self._run, batched) if may else None)
        if batcher is None:
            return False
        batcher.join(call, examples, take, fail, limit)
        return True


@dataclass(eq=False, slots=True)
class _WaitingCall(WaitingRequest):
    """A call that waits for a run."""

    call: GraphCall | None = None


class _Weights:
    """The tensors that all calls of a run have in common: equal where all their bytes are."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Weights):
            return NotImplemented
        return all(same_bytes(tensor, other._tensors[name]) for name, tensor in self._tensors.items())

    __hash__ = None  # type: ignore[assignment]  # compared, never looked up


class _GraphBatcher:
    """Calls for one graph, with inputs of one shape but for the number of examples."""

    def __init__(self, run: Run, batched: frozenset[str]) -> None:
        self._run = run
        self._batched = batched
        self._batcher = Batcher(self, MAX_EXAMPLES, 0.0, MAX_WAITING, "calls with batch")

    def join(
        self, call: GraphCall, examples: int, take: Take, fail: Callable[[Exception], None], limit: AnswerLimit
    ) -> None:
        """Take a call; see `GraphBatches.join`."""

        def bounded(outputs: dict[str, Array]) -> None:
            limit.check("the outputs", outputs.values())
            take(outputs)

        weights = _Weights({name: tensor for name, tensor in call.tensors.items() if name not in self._batched})
        now = time.monotonic()
        self._batcher.join(
            _WaitingCall(call.owner, call.tensors, examples, bounded, fail, (), current(), (weights,), now, call=call)
        )

    def run_together(self, entries: Sequence[WaitingRequest]) -> None:
        """See BatchSizes: a call alone runs as it came; several are padded with zeros to a power of two."""
        try:
            outputs = self._outputs_of(entries)
        except Exception as error:
            for entry in entries:
                entry.fail(error)
            return
        begin = 0
        for entry in entries:
            end = begin + entry.examples
            try:
                entry.take({name: array[begin:end] for name, array in outputs.items()})
            except Exception as error:
                entry.fail(error)
            begin = end

    def _outputs_of(self, entries: Sequence[WaitingRequest]) -> dict[str, Array]:
        """The outputs of all entries, one behind the other, in memory of their own."""
        first = entries[0]
        assert isinstance(first, _WaitingCall)
        assert first.call is not None
        tensors = dict(first.tensors)
        if len(entries) > 1:
            total = sum(entry.examples for entry in entries)
            padding = (1 << (total - 1).bit_length()) - total
            for name in self._batched:
                rows = [entry.tensors[name] for entry in entries]
                tensors[name] = np.concatenate([*rows, np.zeros((padding, *rows[0].shape[1:]), rows[0].dtype)])
        outputs: dict[str, Array] = {}

        def keep(values: dict[str, Array]) -> None:
            outputs.update((name, np.array(array)) for name, array in values.items())

        self._run(replace(first.call, tensors=tensors), keep)
        return outputs


def batched_inputs(graph: Graph) -> frozenset[str]:
    """The arguments that every operator which reads them calls data or label."""
    slots: dict[str, set[str]] = {}
    for node in graph.nodes:
        if node.op is not None:
            for slot, entry in zip(node.op.input_names(node.params), node.inputs, strict=False):
                if entry.node.op is None:
                    slots.setdefault(entry.node.name, set()).add(slot)
    return frozenset(name for name, read_as in slots.items() if read_as <= PER_EXAMPLE)
