"""Says in `fit` that a network's outputs have become NaN, and with `check_nan` which node was the first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from .. import ndarray as nd
from ..ndarray import NDArray

__all__ = ["NanFinder", "OutputWatch", "watched"]

_watches: ContextVar[tuple[Any, OutputWatch] | None] = ContextVar("opbox_output_watch", default=None)


class OutputWatch:
    """Looks for NaN in the outputs that the metric is fed with, which come without a request of their own.

    Args:
        logger: where it is said, once.
        finder: names the node; None where nobody asked for it.

    Attributes:
        place: epoch and batch of the step at hand.
    """

    def __init__(self, logger: Any, finder: NanFinder | None = None) -> None:
        self.place = (0, 0)
        self._logger = logger
        self._finder = finder
        self._coming: deque[tuple[tuple[int, int], Mapping[str, Any]]] = deque()
        self._said = False

    @staticmethod
    def of(metric: Any) -> OutputWatch | None:
        """The watch over a metric's outputs, inside `watched`; None for other metrics."""
        watching = _watches.get()
        return watching[1] if watching is not None and watching[0] is metric else None

    def take(self, outputs: Mapping[str, Any]) -> None:
        """Keep a step's outputs, which are on their way, and look at those that have come."""
        if not self._said and self._finder is None:
            self._coming.append((self.place, outputs))
            self.look(wait=False)

    def look(self, wait: bool = True) -> None:
        """Look at the outputs that are kept; without `wait` only at those that are here."""
        while self._coming and (wait or all(value.done() for value in self._coming[0][1].values())):
            place, outputs = self._coming.popleft()
            names = [name for name, value in outputs.items() if _has_nan(value.result())]
            if names:
                self._say(place, f"output {names[0]!r} is NaN", "fit(check_nan=True) names the node that it comes from")
                return

    def drop(self) -> None:
        """Drop outputs that were lost with their session."""
        self._coming.clear()

    def step_ended(self) -> None:
        """Ask the finder about the step; it waits for the engine."""
        if self._finder is not None and not self._said and (source := self._finder.source()) is not None:
            self._say(
                self.place, f"{source} is the first that is not finite", "look at its inputs and the learning rate"
            )

    def close(self) -> None:
        """Stop watching."""
        if self._finder is not None:
            self._finder.close()

    def _say(self, place: tuple[int, int], what: str, remedy: str) -> None:
        self._said = True
        self._coming.clear()
        self.close()
        epoch, batch = place
        self._logger.warning("Epoch[%d] Batch[%d]: the network has become NaN: %s; %s", epoch, batch, what, remedy)


@contextmanager
def watched(metric: Any, watch: OutputWatch | None) -> Iterator[None]:
    """A block in which the outputs that the metric is fed with are shown to the watch."""
    token = _watches.set(None if watch is None else (metric, watch))
    try:
        yield
    finally:
        _watches.reset(token)


def _has_nan(values: Any) -> bool:
    """Return whether an array has a NaN; a sum tells of most that have none in one pass."""
    if values.dtype.kind != "f" and values.dtype.name != "bfloat16":
        return False
    with np.errstate(all="ignore"):
        return bool(np.isnan(values.sum(dtype=np.float64))) and bool(np.isnan(values).any())


class NanFinder:
    """Finds the first array of a step that is not finite: arguments, nodes in their order, gradients.

    It is installed as a `Monitor` is. Sums of each array are computed on the engine, and fetched once a step.
    """

    def __init__(self) -> None:
        self._sums: list[tuple[str, NDArray, NDArray]] = []
        self._executor: Any = None
        self._executors: list[Any] = []
        self._nodes: dict[str, str] = {}

    def install(self, executor: Any) -> None:
        """Watch an executor."""
        executor.set_monitor_callback(partial(self._see, executor))
        self._executors.append(executor)
        for node in executor._symbol._nodes():
            if node.op is not None:
                names = (node.output_name(index) for index in range(node.num_outputs()))
                self._nodes |= dict.fromkeys(names, f"the output of node {node.name!r} ({node.op.name})")

    def close(self) -> None:
        """Stop watching an executor."""
        for executor in self._executors:
            executor.set_monitor_callback(None)
        self._executors.clear()
        self._sums.clear()
        self._executor = None

    def _see(self, executor: Any, name: str, array: NDArray) -> None:
        if not self._sums:
            self._executor = executor
            for argument, values in executor.arg_dict.items():
                self._add(f"argument {argument!r}", values)
        self._add(self._nodes.get(name, f"what backward computes as {name!r}"), array)

    def _add(self, what: str, array: NDArray) -> None:
        # Infinity times 0 is NaN, too.
        self._sums.append((what, nd.sum(array * 0), nd.sum(array != array)))

    def source(self) -> str | None:
        """Return the first array of the last step that is not finite; None if all are."""
        if self._executor is None:
            return None
        for name, gradient in self._executor.grad_dict.items():
            if gradient is not None:
                self._add(f"the gradient of {name!r}", gradient)
        sums = [(what, finite._fetch_async(), nan._fetch_async()) for what, finite, nan in self._sums]
        self._sums, self._executor = [], None
        fetched = [(what, finite.result(), nan.result()) for what, finite, nan in sums]
        if not any(nan.any() for _, _, nan in fetched):
            return None
        return next(what for what, finite, _ in fetched if np.isnan(finite).any())
